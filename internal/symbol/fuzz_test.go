package symbol

import (
	"bytes"
	"os"
	"testing"
)

// exercise opens an image and calls everything that reads its tables.
func exercise(b []byte) {
	im, err := Open(bytes.NewReader(b), int64(len(b)), "fuzz", &Options{NoDebugFiles: true, MaxSize: 8 << 20})
	if err != nil {
		return
	}
	fns := im.Funcs()
	for i, fn := range fns {
		if i > 0 && fns[i-1].Addr >= fn.Addr {
			panic("functions are not sorted")
		}
		if fn.Size == 0 || !im.InText(fn.Addr) || !im.InText(fn.End()-1) {
			panic("function outside of the code")
		}
		if got, _, ok := im.At(fn.Addr); !ok || got.Addr != fn.Addr {
			panic("function not found at its own address")
		}
		if i < 64 {
			im.LandingPads(fn)
			im.Parts(fn)
			im.Clones(fn)
			im.Lookup(fn.Name)
			im.Lookup(fn.Pretty())
		}
	}
	im.Lookup("ns::f(int)")
	im.Data("environ")
	im.Glob("*a*")
	im.GoVersion()
	im.IRelatives()
	im.Slots("malloc")
	s := NewSpace()
	s.Add(im, 0x1000, "")
	s.Resolve(Place{Addr: im.Entry()})
	s.SymbolAt(im.Entry() + 0x1000)
	for _, g := range im.Segments() {
		im.ReadAt(g.Vaddr, make([]byte, 16))
		im.Vaddr(g.Off)
	}
}

// tinyC is a program of a few kilobytes, so that the fuzzer is fast.
const tinyC = `
__attribute__((noinline)) int f(int x) { return x + 1; }
static __attribute__((noinline)) int g(int x) { return f(x) * 2; }
void _start(void) { __asm__ volatile("syscall" : : "a"(60), "D"(g(3))); __builtin_unreachable(); }
`

func FuzzOpen(f *testing.F) {
	for _, flags := range [][]string{
		{"-O1", "-nostdlib", "-static"},
		{"-O1", "-nostdlib", "-fPIE", "-pie", "-Wl,--hash-style=gnu"},
		{"-O1", "-nostdlib", "-shared", "-fPIC", "-Wl,--hash-style=sysv"},
	} {
		path := build(f, "gcc", tinyC, append(flags, "-Wl,-z,noseparate-code", "-Wl,-z,max-page-size=4096")...)
		for _, p := range []string{path, sstrip(f, path), objcopy(f, path, ".stripped", "--strip-all")} {
			b, err := os.ReadFile(p)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) { exercise(b) })
}

func FuzzEHFrame(f *testing.F) {
	im := open(f, build(f, "gcc", tinyC, "-O1", "-nostdlib", "-static"), noDebug)
	s := im.elf.section(".eh_frame")
	b, err := im.elf.bytesAt(s.off, s.size, s.name)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		fdes, _ := im.elf.ehFrame(b, ehBases{vaddr: 0x1000, text: 0x2000, data: 0x3000})
		eh := &ehTable{b, ehBases{vaddr: 0x1000, text: 0x2000, data: 0x3000}}
		for _, d := range fdes {
			if d.end <= d.start {
				t.Errorf("%+v", d)
			}
			last := uint64(0)
			w := frameWriter{m: im.elf.machine, f: func(f Frame) {
				if f.Start < d.start || f.Start >= d.end || f.Start <= last && last > 0 {
					t.Errorf("%+v: rule at 0x%x behind 0x%x", d, f.Start, last)
				}
				last = f.Start
			}}
			w.describe(eh, &d, map[int]*frameCIE{})
		}
	})
}

// FuzzPclntab feeds function tables; the bounds that come out must make sense.
func FuzzPclntab(f *testing.F) {
	im := open(f, buildGoForm(f, "plain"), noDebug)
	s := im.elf.section(".gopclntab")
	b, err := im.elf.bytesAt(s.off, 1<<12, s.name)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(tinyPclntab(pcln120))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := im.elf.parsePclntab(0, b)
		if err != nil {
			return
		}
		fns, err := p.functions(im.elf, 0)
		if err != nil {
			return
		}
		for _, fn := range fns {
			if fn.size == 0 {
				t.Errorf("%+v", fn)
			}
		}
	})
}

// tinyPclntab is a table with two functions: a, assembly of 5 bytes, and main.b, a
// wrapper of 9.
func tinyPclntab(magic uint32) []byte {
	var b bytes.Buffer
	u32 := func(vs ...uint32) {
		for _, v := range vs {
			b.Write([]byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)})
		}
	}
	u64 := func(vs ...uint32) {
		for _, v := range vs {
			u32(v, 0)
		}
	}
	u32(magic)
	b.Write([]byte{0, 0, 1, 8})
	u64(2, 0, 0, 72, 84, 84, 84, 92)
	b.WriteString("\x00a\x00main.b\x00\x00\x00")          // names, at 72
	b.Write([]byte{0, 2, 5, 0, 2, 9, 0, 0})               // pctab, at 84
	u32(0, 20, 16, 64, 48)                                // functab, at 92
	fn := func(entry, name, pcsp uint32, id, flag byte) { // 44 bytes
		u32(entry, name, 2*entry, 0, pcsp, 0, 0, 0, 0)
		if magic != pcln118 {
			u32(0)
		}
		b.Write([]byte{id, flag, 0, 0})
		if magic == pcln118 {
			u32(0)
		}
	}
	fn(0, 1, 1, 0, funcFlagAsm)
	fn(16, 3, 4, 23, 0)
	return b.Bytes()
}
