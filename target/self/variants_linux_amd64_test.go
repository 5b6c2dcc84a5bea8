package self

import (
	"debug/dwarf"
	"debug/elf"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/goabi"
)

// oldGo is the older version that programs are built with too. The go command fetches it
// as a module.
const oldGo = "go1.25.14"

// Long says whether all is tried, or goes on for long.
var Long = os.Getenv("KPROBES_E2E_LONG") == "1"

// variant is a way to build a program.
type variant struct {
	name string
	env  []string
	args []string
}

// The first one's debug information tells for those that have none.
var variants = []variant{
	{"plain", []string{"CGO_ENABLED=0"}, nil},
	{"stripped", []string{"CGO_ENABLED=0"}, []string{"-ldflags=-s -w"}},
	{"pie", []string{"CGO_ENABLED=0"}, []string{"-buildmode=pie"}},
	{"cgo_internal", []string{"CGO_ENABLED=1"}, []string{"-ldflags=-linkmode=internal"}},
	{"cgo_external", []string{"CGO_ENABLED=1"}, []string{"-ldflags=-linkmode=external"}},
	{"cgo_pie_stripped", []string{"CGO_ENABLED=1"}, []string{"-buildmode=pie", "-ldflags=-linkmode=external -s -w"}},
	{"race", []string{"CGO_ENABLED=1"}, []string{"-race"}},
}

// newVariants are the ways that this version of Go is tried in: in usual runs two that differ most. Each takes a standard library built
// anew.
func newVariants() []variant {
	if Long {
		return variants
	}
	return []variant{variants[0], variants[6]}
}

// oldVariants are the ways that the older version of Go is tried in: in usual runs the first one.
func oldVariants() []variant {
	if Long {
		return variants
	}
	return variants[:1:1]
}

// TestVariants builds a program in these ways and with both versions of Go. What it finds out
// about its own runtime is what its debug information says.
func TestVariants(t *testing.T) {
	t.Run(runtime.Version(), func(t *testing.T) { testVariants(t, newVariants(), nil) })
	t.Run(oldGo, func(t *testing.T) { testVariants(t, oldVariants(), oldEnv) })
}

// oldEnv makes the go command that of the older version.
var oldEnv = []string{"GOTOOLCHAIN=" + oldGo}

// build builds a program of testdata in one way.
func (v *variant) build(t *testing.T, env []string, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name+"_"+v.name)
	cmd := exec.Command("go", append(append([]string{"build", "-o", program}, v.args...), "./testdata/"+name)...)
	cmd.Env = append(append(os.Environ(), env...), v.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v %s: %v (the go command fetches another version of Go, and modules, from a module proxy)\n%s",
			v.name, env, cmd, err, out)
	}
	return program
}

// TestVariantsProbing builds a program that probes itself in every way, in these ways and with
// both versions of Go, in long runs without the compiler's optimisations too.
func TestVariantsProbing(t *testing.T) {
	debug := variant{"debug", []string{"CGO_ENABLED=0"}, []string{"-gcflags=all=-N -l"}}
	try := func(version string, ways []variant, env []string) {
		if Long {
			ways = append(slices.Clone(ways), debug)
		}
		for _, v := range ways {
			t.Run(version+"_"+v.name, func(t *testing.T) {
				out, err := exec.Command(v.build(t, env, "probing")).CombinedOutput()
				if err != nil || string(out) != "ok "+version+"\n" {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
	try(runtime.Version(), newVariants(), nil)
	try(oldGo, oldVariants(), oldEnv)
}

func testVariants(t *testing.T, ways []variant, env []string) {
	var told *goabi.Layout
	for _, v := range ways {
		program := v.build(t, env, "describe")
		if l := dwarfLayout(t, program); l != nil {
			told = l
		}
		if told == nil {
			t.Fatalf("%s: the program has no debug information", v.name)
		}
		t.Run(v.name, func(t *testing.T) { checkDescribe(t, program, told, env) })
	}
}

// checkDescribe compares what the program says of itself with its debug information.
func checkDescribe(t *testing.T, program string, told *goabi.Layout, env []string) {
	cmd := exec.Command(program)
	cmd.Stderr = new(strings.Builder)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, cmd.Stderr)
	}
	var got struct {
		Version string
		Layout  struct {
			goabi.Layout
			TLS int32
		}
		Path map[string]string
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(env) > 0 && got.Version != oldGo {
		t.Errorf("version %s, want %s", got.Version, oldGo)
	}
	want := *told
	want.Minor = got.Layout.Minor
	if got.Layout.Layout != want {
		t.Errorf("layout\n%+v, the debug information says\n%+v", got.Layout.Layout, want)
	}
	if tls := got.Layout.TLS; tls >= 0 || tls%8 != 0 {
		t.Errorf("g lies at %d from the FS base", tls)
	}
	checkPath(t, got.Path)
}

// dwarfLayout reads the layout from a program's debug information; nil if it has none.
func dwarfLayout(t *testing.T, program string) *goabi.Layout {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := f.DWARF()
	if err != nil {
		return nil
	}
	fields, err := structFields(d, "runtime.g", "runtime.m", "runtime.stack", "runtime.gobuf", "runtime._panic", "runtime.p", "runtime.wbBuf")
	if err != nil {
		return nil
	}
	at := func(path ...string) (sum int32) {
		for _, p := range path {
			off, ok := fields[p]
			if !ok {
				t.Fatalf("%s: no %s", program, p)
			}
			sum += off
		}
		return sum
	}
	return &goabi.Layout{
		StackLo:     at("runtime.g.stack", "runtime.stack.lo"),
		StackHi:     at("runtime.g.stack", "runtime.stack.hi"),
		StackGuard0: at("runtime.g.stackguard0"),
		M:           at("runtime.g.m"),
		SchedSP:     at("runtime.g.sched", "runtime.gobuf.sp"),
		SchedPC:     at("runtime.g.sched", "runtime.gobuf.pc"),
		SchedBP:     at("runtime.g.sched", "runtime.gobuf.bp"),
		Status:      at("runtime.g.atomicstatus"),
		GoID:        at("runtime.g.goid"),
		G0:          at("runtime.m.g0"),
		ProcID:      at("runtime.m.procid"),
		GSignal:     at("runtime.m.gsignal"),
		CurG:        at("runtime.m.curg"),
		P:           at("runtime.m.p"),
		ID:          at("runtime.m.id"),
		Mallocing:   at("runtime.m.mallocing"),
		Locks:       at("runtime.m.locks"),
		IsExtra:     at("runtime.m.isextra"),
		NCgoCall:    at("runtime.m.ncgocall"),
		NCgo:        at("runtime.m.ncgo"),
		WBNext:      at("runtime.p.wbBuf", "runtime.wbBuf.next"),
		Panic:       at("runtime.g._panic"),
		PanicSP:     at("runtime._panic.sp"),
	}
}

// structFields gives the offsets of the fields of structs, by "struct.field".
func structFields(d *dwarf.Data, names ...string) (map[string]int32, error) {
	left := map[string]bool{}
	for _, n := range names {
		left[n] = true
	}
	fields := map[string]int32{}
	for r := d.Reader(); len(left) > 0; {
		e, err := r.Next()
		if err != nil {
			return nil, err
		}
		if e == nil {
			return nil, errors.New("the debug information ends before all structs were found")
		}
		name, _ := e.Val(dwarf.AttrName).(string)
		if e.Tag != dwarf.TagStructType || !left[name] {
			continue
		}
		delete(left, name)
		typ, err := d.Type(e.Offset)
		if err != nil {
			return nil, err
		}
		for _, f := range typ.(*dwarf.StructType).Field {
			fields[name+"."+f.Name] = int32(f.ByteOffset)
		}
	}
	return fields, nil
}
