package symbol

import (
	"os"
	"os/exec"
	"testing"
)

// BenchmarkLoad reads all tables of a program: what an attach costs at most.
func BenchmarkLoad(b *testing.B) {
	gdb, large := "/usr/bin/gdb", llvm(b)
	goTool, err := exec.LookPath("go")
	if err != nil {
		b.Fatal(err)
	}
	for name, path := range map[string]string{"redis": redis, "gdb": gdb, "llvm": large, "go": goTool} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f, err := os.Open(path)
				if err != nil {
					b.Fatal(err)
				}
				st, err := f.Stat()
				if err != nil {
					b.Fatal(err)
				}
				im, err := Open(f, st.Size(), path, nil)
				if err != nil {
					b.Fatal(err)
				}
				if err := im.Load(); err != nil {
					b.Fatal(err)
				}
				f.Close()
			}
		})
	}
}

// BenchmarkLookup finds names in the largest object, by way of the index and by
// demangling.
func BenchmarkLookup(b *testing.B) {
	im := open(b, llvm(b), noDebug)
	for name, query := range map[string]string{
		"raw":       "LLVMContextCreate",
		"demangled": "llvm::Module::getFunction",
		"common":    "llvm::Value::~Value",
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if fns, err := im.Lookup(query); len(fns) == 0 {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAt finds the function of addresses all over the largest object.
func BenchmarkAt(b *testing.B) {
	im := open(b, llvm(b), noDebug)
	fns := im.Funcs()
	i := 0
	for b.Loop() {
		if _, _, ok := im.At(fns[i].Addr + 1); !ok && fns[i].Size > 1 {
			b.Fatal(fns[i])
		}
		i = (i + 7919) % len(fns)
	}
}
