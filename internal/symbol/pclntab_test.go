package symbol

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const goSource = `package main

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
)

type Server struct{ n int }

//go:noinline
func (s *Server) Handle(x int) int { s.n += x; return s.n }

type Shape interface{ Area() int }

type Square int

//go:noinline
func (q Square) Area() int { return int(q * q) }

var shapes []Shape

//go:noinline
func Sum[T int | float64 | string](v []T) (s T) {
	for _, x := range v {
		s += x
	}
	return
}

//go:noinline
func probe(x int) int { f := func(y int) int { return x + y + len(os.Args) }; return apply(f) }

//go:noinline
func apply(f func(int) int) int { return f(2) }

func main() {
	var sh Shape = Square(len(os.Args))
	shapes = append(shapes, new(Square), sh)
	s := &Server{}
	fmt.Println(s.Handle(1), probe(2), shapes[0].Area()+shapes[len(os.Args)].Area(), Sum([]int{1}), Sum([]float64{2}), Sum([]string{"a"}), cgo(3))
	maps, _ := os.ReadFile("/proc/self/maps")
	exe, _ := os.Executable()
	at := strings.Index(string(maps), exe)
	line := maps[:at][strings.LastIndexByte(string(maps[:at]), '\n')+1:]
	base, _, _ := strings.Cut(string(line), "-")
	fmt.Printf("base %s\n", base)
	for _, f := range []any{probe, apply, (*Server).Handle, Square.Area} {
		fn := runtime.FuncForPC(reflect.ValueOf(f).Pointer())
		fmt.Printf("func %x %s\n", fn.Entry(), fn.Name())
	}
}
`

const (
	pureGo = goSource + "func cgo(x int) int { return x }\n"
	withC  = "package main\n\n// int twice(int x) { return 2 * x; }\nimport \"C\"\n" +
		"func cgo(x int) int { return int(C.twice(C.int(x))) }\n"
)

// goBuilds are the forms in which a Go program comes.
var goBuilds = map[string][]string{
	"plain":    {},
	"sw":       {"-ldflags=-s -w"},
	"pie":      {"-buildmode=pie"},
	"pie_sw":   {"-buildmode=pie", "-ldflags=-s -w"},
	"external": {"-ldflags=-linkmode=external"},
	"ext_sw":   {"-ldflags=-linkmode=external -s -w"},
	"ext_pie":  {"-buildmode=pie", "-ldflags=-linkmode=external -s -w"},
	"static":   {"-ldflags=-linkmode=external -extldflags=-static"},
}

func buildGoForm(t testing.TB, form string) string {
	src := pureGo
	if strings.HasPrefix(form, "ext") || form == "static" {
		src = strings.Replace(withC, "func cgo", goImports(goSource)+"func cgo", 1)
	}
	return build(t, "go", src, goBuilds[form]...)
}

// goImports is a Go source without its package clause.
func goImports(src string) string { return strings.TrimPrefix(src, "package main\n") }

// TestGoEntries runs the programs, which print where some of their functions are.
func TestGoEntries(t *testing.T) {
	for form := range goBuilds {
		t.Run(form, func(t *testing.T) {
			path := buildGoForm(t, form)
			out := run(t, path)
			for name, p := range map[string]string{"whole": path, "no sections": sstrip(t, path)} {
				im := open(t, p, noDebug)
				if v := im.GoVersion(); !im.IsGo() || !strings.HasPrefix(v, "go1.") {
					t.Errorf("%s: Go program %v, version %q", name, im.IsGo(), v)
				}
				compareEntries(t, im, out)
			}
		})
	}
}

// compareEntries compares with what the program printed.
func compareEntries(t *testing.T, im *Image, out string) {
	t.Helper()
	bias, n := uint64(0), 0
	for line := range strings.Lines(out) {
		p := strings.Fields(line)
		switch p[0] {
		case "base":
			if im.Type() == TypeDyn {
				bias = hexNum(t, p[1]) - im.Segments()[0].Vaddr&^0xfff
			}
		case "func":
			fn, err := im.Lookup(p[2])
			if err != nil || len(fn) != 1 || fn[0].Addr+bias != hexNum(t, p[1]) || fn[0].Lang != LangGo {
				t.Errorf("Lookup(%q) = %v, %v, the program says 0x%s, bias 0x%x", p[2], fn, err, p[1], bias)
			}
			n++
		}
	}
	if n != 4 {
		t.Errorf("%d functions compared", n)
	}
}

// TestGoBounds compares the functions of a stripped program with those go tool nm lists
// for the same program before it was stripped.
func TestGoBounds(t *testing.T) {
	for _, form := range []string{"plain", "pie", "external", "static", "arm64"} {
		t.Run(form, func(t *testing.T) {
			var path, without string
			if form == "arm64" { // which objcopy may not know; the linker puts the code at the same addresses
				path, without = build(t, "go", pureGo, "GOARCH=arm64"), build(t, "go", pureGo, "GOARCH=arm64", "-ldflags=-s -w")
			} else {
				path = buildGoForm(t, form)
				without = objcopy(t, path, ".stripped", "--strip-all")
			}
			stripped := open(t, without, noDebug)
			n, inexact := 0, 0
			for line := range strings.Lines(run(t, "go", "tool", "nm", "-size", "-type", path)) {
				var addr, size uint64
				var kind string
				if _, err := fmt.Sscanf(line, "%x %d %s", &addr, &size, &kind); err != nil || strings.ToLower(kind) != "t" || size == 0 {
					continue
				}
				name := nmName(line)
				if g := stripped.table().goTab; !g.text.Contains(addr) || boundaryName(name) {
					continue
				}
				fn, off, ok := stripped.At(addr)
				if !ok || off != 0 {
					t.Errorf("%s at 0x%x: %v+%d", name, addr, fn, off)
					continue
				}
				name = strings.TrimSuffix(name, ".abi0")
				if withoutTypeArgs(strings.ReplaceAll(fn.Name, "·", ".")) != withoutTypeArgs(name) {
					t.Errorf("0x%x is %q, go tool nm says %q", addr, fn.Name, name)
				}
				if fn.Size != size {
					inexact++
					t.Logf("%s: %d bytes, go tool nm says %d, asm %v", name, fn.Size, size, fn.Asm)
				}
				n++
			}
			if n < 1000 || inexact > n/100 {
				t.Errorf("%d functions compared, %d sizes differ", n, inexact)
			}
		})
	}
}

// TestGoTextWithoutModuledata finds the text start when the moduledata is of no use, or
// says that it can not: an externally linked program's .text begins with C code.
func TestGoTextWithoutModuledata(t *testing.T) {
	for form, found := range map[string]bool{"sw": true, "ext_sw": false} {
		whole := open(t, buildGoForm(t, form), noDebug)
		b, err := os.ReadFile(whole.Path())
		if err != nil {
			t.Fatal(err)
		}
		md := whole.elf.section(".go.module")
		clear(b[md.off : md.off+md.size])
		im, err := Open(bytes.NewReader(b), int64(len(b)), form, noDebug)
		if err != nil {
			t.Fatal(err)
		}
		err = im.Load()
		if !found && (err == nil || !strings.Contains(err.Error(), "runtime.text")) || found && err != nil {
			t.Errorf("%s: %v", form, err)
		}
		if found && one(t, im, "main.main").Addr != one(t, whole, "main.main").Addr {
			t.Errorf("%s: main.main at 0x%x", form, one(t, im, "main.main").Addr)
		}
	}
}

// TestPclntabVersions reads hand-made tables of both formats.
func TestPclntabVersions(t *testing.T) {
	im := open(t, buildC(t, "pie"), noDebug)
	for name, magic := range map[string]uint32{"1.18": pcln118, "1.20": pcln120} {
		p, err := im.elf.parsePclntab(0, tinyPclntab(magic))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := p.functions(im.elf, 0)
		want := []goFunc{{name: "a", size: 5, asm: true}, {name: "main.b", entry: 16, size: 9, args: 32, id: 23}}
		if magic == pcln120 { // no function has data
			for i := range want {
				want[i].argInfo, want[i].told = noFuncdata, true
			}
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
	}
	for name, magic := range map[string]uint32{"Go 1.18": pclnOld, "unknown": 0x12345678} {
		if _, err := im.elf.parsePclntab(0, tinyPclntab(magic)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("magic 0x%x: %v, want %q", magic, err, name)
		}
	}
}

// TestForeign finds C in Go's table, where the Go linker links it in: it is not Go's.
func TestForeign(t *testing.T) {
	src := strings.Replace(withC, "int twice", "__attribute__((noinline)) int twice", 1)
	src = strings.Replace(src, "func cgo", goImports(goSource)+"func cgo", 1)
	path := build(t, "go", src, "-ldflags=-linkmode=internal")
	im, bare := open(t, path, noDebug), open(t, sstrip(t, path), noDebug)
	for name, lang := range map[string]Lang{
		"twice": LangC, "_cgo_sys_thread_start": LangC, "_cgo_try_pthread_create": LangC, "crosscall1": LangC,
		"main.probe": LangGo, "runtime.main": LangGo, "runtime.memmove": LangGo, "runtime.asmcgocall": LangGo,
	} {
		f, b := one(t, im, name), one(t, bare, name)
		if f.Lang != lang || b.Lang != lang || b.Addr != f.Addr {
			t.Errorf("%s: %+v, without symbols %+v, want %v", name, f, b, lang)
		}
		if lang == LangC && name != "crosscall1" && (f.SizeFrom != SourceSymtab || f.Size > b.Size || f.Size+16 <= b.Size) {
			t.Errorf("%s: %d bytes by %v, without symbols %d by %v", name, f.Size, f.SizeFrom, b.Size, b.SizeFrom)
		}
	}
	for _, f := range im.Funcs() {
		if f.Source == SourcePclntab && f.Lang != LangGo && slices.ContainsFunc(f.Aliases, func(a string) bool { return strings.Contains(a, ".text") }) {
			t.Errorf("%s has aliases %q", f.Name, f.Aliases)
		}
	}
}

// TestForeignAliases: the race detector's functions have several names at one address, and without
// symbols the table alone tells where they end.
func TestForeignAliases(t *testing.T) {
	src := strings.Replace(pureGo, "import (", "import (\n\t_ \"net\"", 1)
	im := open(t, build(t, "go", src, "-race", "-ldflags=-linkmode=internal -s -w"), noDebug)
	last, aliases := (*Func)(nil), 0
	for _, f := range im.Funcs() {
		if at, off, ok := im.At(f.Addr); !ok || off != 0 || at != f || f.Size == 0 || last != nil && last.Addr >= f.Addr && f.Lang != LangGo {
			t.Errorf("%s at 0x%x, %d bytes, behind %v; there is %v+%d", f.Name, f.Addr, f.Size, last, at, off)
		}
		if f.Lang != LangGo {
			aliases += len(f.Aliases)
		}
		last = f
	}
	if f := one(t, im, "memcpy"); f.Lang != LangC || aliases < 10 {
		t.Errorf("memcpy: %+v; %d aliases", f, aliases)
	}
}

// TestGoEscapes finds a function of a package with a dot in the last element of its path.
func TestGoEscapes(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "lib.v2"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "lib.v2", "lib.go"), "package lib\n\n//go:noinline\nfunc Do(x int) int { return x + 1 }\n")
	buildGo(t, dir, "package main\n\nimport lib \"example.com/prog/lib.v2\"\n\nfunc main() { println(lib.Do(1)) }\n", filepath.Join(dir, "prog"), []string{"-ldflags=-s -w"})
	im := open(t, filepath.Join(dir, "prog"), noDebug)
	if a, b := one(t, im, "example.com/prog/lib%2ev2.Do"), one(t, im, "example.com/prog/lib.v2.Do"); a != b {
		t.Errorf("%v and %v", a, b)
	}
}

// nmName is the fourth field of a line, which may hold blanks.
func nmName(line string) string {
	for range 3 {
		_, line, _ = strings.Cut(strings.TrimLeft(line, " "), " ")
	}
	return strings.TrimSpace(line)
}

func TestGoFacts(t *testing.T) {
	whole := open(t, buildGoForm(t, "plain"), noDebug)
	stripped := open(t, buildGoForm(t, "sw"), noDebug)
	for _, f := range whole.Funcs() {
		if !f.ABI0 {
			continue
		}
		if f2, _, _ := stripped.At(f.Addr); f2 == nil || !f2.ABI0 && !f2.Asm {
			t.Errorf("%q: neither known as ABI0 nor as assembly without the symbol table", f)
		}
	}
	for _, im := range []*Image{whole, stripped} {
		if f := one(t, im, "main.(*Server).Handle"); f.Wrapper || f.ABI0 || f.Asm {
			t.Errorf("%+v", f)
		}
		if f := one(t, im, "main.(*Square).Area"); !f.Wrapper {
			t.Errorf("%+v, want a wrapper", f)
		}
		if f := one(t, im, "internal/bytealg.Count"); f.Wrapper || !f.Asm {
			t.Errorf("%+v, want the assembly function", f)
		}
		if f := one(t, im, "main.probe.func1"); f.Lang != LangGo {
			t.Errorf("%+v", f)
		}
		if f := one(t, im, "reflect.callMethod"); f.Wrapper || f.ABI0 || f.Size < 100 {
			t.Errorf("%+v, want the function, not its ABI wrapper", f)
		}
		fns, err := im.Lookup("main.Sum")
		if err == nil || len(fns) != 3 {
			t.Errorf("Lookup(main.Sum) = %v, %v, want three instances", fns, err)
		}
		if fns := im.Glob("main.(?Server).*"); len(fns) != 1 {
			t.Errorf("Glob gives %v", fns)
		}
	}
}
