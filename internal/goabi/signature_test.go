package goabi

import (
	"debug/dwarf"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/abicases"
	lib "kprobes.dev/kprobes/internal/abicases/lib.v2"
	"kprobes.dev/kprobes/internal/symbol"
)

// buildCases builds the program that holds all functions of abicases.
func buildCases(t *testing.T, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "prog")
	cmd := exec.Command("go", append(append([]string{"build", "-o", out}, flags...), "kprobes.dev/kprobes/internal/abicases/prog")...)
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, msg)
	}
	return out
}

func openImage(t *testing.T, path string) *symbol.Image {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	im, err := symbol.Open(f, st.Size(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// caseName is the name of one of abicases.Funcs.
func caseName(f any) string { return runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name() }

// findCase finds one of abicases.Funcs in the program.
func findCase(t *testing.T, im *symbol.Image, name string) *symbol.Func {
	t.Helper()
	fns, err := im.Lookup(name)
	if err != nil || len(fns) != 1 {
		t.Fatalf("Lookup(%q) = %v, %v", name, fns, err)
	}
	return fns[0]
}

// unoptimised makes the compiler give a home in its caller's frame to every argument.
const unoptimised = "-gcflags=kprobes.dev/kprobes/internal/abicases=-N -l"

// TestEntryArgs compares frames with what the compiler wrote into two programs: the size of
// each function's frame in the function table, and the places of arguments and results on
// the stack in the debug information.
func TestEntryArgs(t *testing.T) {
	for _, flags := range [][]string{nil, {unoptimised}} {
		path := buildCases(t, flags...)
		im, places := openImage(t, path), dwarfPlaces(t, path)
		sizes, compared := 0, 0
		for _, f := range abicases.Funcs {
			typ, name := reflect.TypeOf(f), caseName(f)
			frame, err := frameOf(typ)
			if err != nil {
				t.Fatal(err)
			}
			fn := findCase(t, im, name)
			sig, err := im.GoSignature(fn)
			if err != nil {
				t.Fatal(err)
			}
			if n := frame.args + frame.results + frame.spill; n != sig.Frame {
				t.Errorf("%s, %v: %+v: %d bytes, the compiler reserves %d", name, typ, frame, n, sig.Frame)
			}
			sizes++
			compared += comparePlaces(t, name, places[fn.Addr], append(frame.in, frame.out...))
		}
		t.Logf("%q: %d sizes, %d places compared", flags, sizes, compared)
		if least := map[bool]int{true: 20, false: 50}[flags == nil]; sizes < 50 || compared < least {
			t.Errorf("%q: only %d sizes and %d places compared", flags, sizes, compared)
		}
	}
}

// dwarfPlaces gives, for each function of the program by its address, the offsets of its
// parameters from the frame's base, which is the address behind the return address; outside
// where the debug information tells none.
func dwarfPlaces(t *testing.T, path string) map[uint64][]int64 {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := f.DWARF()
	if err != nil {
		t.Fatal(err)
	}
	places := map[uint64][]int64{}
	for r, pc := d.Reader(), uint64(0); ; {
		e, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			return places
		}
		switch e.Tag {
		case dwarf.TagSubprogram:
			pc, _ = e.Val(dwarf.AttrLowpc).(uint64)
		case dwarf.TagInlinedSubroutine, dwarf.TagLexDwarfBlock:
			r.SkipChildren()
		case dwarf.TagFormalParameter:
			loc, _ := e.Val(dwarf.AttrLocation).([]byte)
			places[pc] = append(places[pc], frameOffset(loc))
		}
	}
}

const outside = -1

// frameOffset reads DW_OP_call_frame_cfa and DW_OP_fbreg.
func frameOffset(loc []byte) int64 {
	const callFrameCFA, fbreg = 0x9c, 0x91
	switch {
	case len(loc) == 1 && loc[0] == callFrameCFA:
		return 0
	case len(loc) < 2 || loc[0] != fbreg:
		return outside
	}
	v, shift := int64(0), 0
	for _, b := range loc[1:] {
		v |= int64(b&0x7f) << shift
		shift += 7
	}
	if loc[len(loc)-1]&0x40 != 0 {
		v -= 1 << shift
	}
	return max(v, outside)
}

// comparePlaces compares the places that the debug information tells.
func comparePlaces(t *testing.T, name string, got []int64, want []slot) int {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d parameters and results, the debug information has %d", name, len(want), len(got))
		return 0
	}
	n := 0
	for i, w := range want {
		if got[i] == outside || w.off < 0 {
			continue
		}
		if n++; int64(w.off) != got[i] {
			t.Errorf("%s: parameter %d at %d, %+v expected", name, i, got[i], w)
		}
	}
	return n
}

// TestEntryArgsSplit pins the two numbers of some frames, which abi-internal.md explains.
func TestEntryArgsSplit(t *testing.T) {
	for _, c := range []struct {
		f            any
		stack, spill int
	}{
		{func() {}, 0, 0},
		{func(uint8, [2]uintptr, uint8) (r struct {
			x uintptr
			y [2]uintptr
		}, s string,
		) {
			return
		}, 16, 32}, // the example of abi-internal.md: 24 of result, 8 of spill area
		{func(a, b, c, d, e, f, g, h, i, j int) {}, 8, 72},
		{func([3]byte) [5]byte { return [5]byte{} }, 8, 8},
		{func(string, ...any) {}, 0, 40},
	} {
		stack, spill, err := entryArgs(reflect.TypeOf(c.f))
		if err != nil || stack != c.stack || spill != c.spill {
			t.Errorf("%T: %d, %d, %v, want %d, %d", c.f, stack, spill, err, c.stack, c.spill)
		}
	}
	for _, c := range []struct {
		v    any
		want unix.Errno
	}{{7, unix.EINVAL}, {nil, unix.EINVAL}, {func([maxEntryFrame + 1]byte) {}, unix.E2BIG}} {
		if _, _, err := entryArgs(reflect.TypeOf(c.v)); !errors.Is(err, c.want) {
			t.Errorf("%T: %v, want %v", c.v, err, c.want)
		}
	}
}

// TestSameSignature compares every function's type with every function of a program: it
// fits those that have the same type, and no others.
func TestSameSignature(t *testing.T) {
	im := openImage(t, buildCases(t))
	for i, f := range abicases.Funcs {
		fn := findCase(t, im, caseName(f))
		for j, g := range abicases.Funcs {
			ft, gt := reflect.TypeOf(f), reflect.TypeOf(g)
			err := sameSignature(fn, im, gt)
			// A func may also leave the results out.
			fits := ft == gt || gt.NumOut() == 0 && slices.Equal(inTypes(ft), inTypes(gt))
			if fits != (err == nil) || i == j && !fits {
				t.Errorf("%v, a %v, with %v: %v", fn, ft, gt, err)
			}
			if err != nil && !errors.Is(err, unix.EINVAL) {
				t.Errorf("%v with %v: %v is not EINVAL", fn, gt, err)
			}
		}
	}
}

// TestDescribeArgs compares what is made of every function's type with what the compiler has
// written for tracebacks: of all of them where there is debug information and where there is none,
// in programs that are loaded anywhere, and without optimisation.
func TestDescribeArgs(t *testing.T) {
	for _, flags := range [][]string{nil, {"-ldflags=-s -w"}, {"-ldflags=-s -w", "-buildmode=pie"}, {unoptimised}} {
		im := openImage(t, buildCases(t, flags...))
		n := 0
		for _, f := range abicases.Funcs {
			typ, fn := reflect.TypeOf(f), findCase(t, im, caseName(f))
			frame, err := frameOf(typ)
			if err != nil {
				t.Fatal(err)
			}
			want, ok := im.GoArgs(fn)
			if !ok {
				t.Errorf("%q: nothing is known of the arguments of %v", flags, fn)
			}
			if got := describeArgs(typ, frame, frame.args+frame.results+frame.spill); string(got) != string(want) {
				t.Errorf("%v, %v: %s, the compiler has written %s", fn, typ, symbol.ArgsText(got), symbol.ArgsText(want))
			}
			n++
		}
		if n < 50 {
			t.Errorf("only %d functions", n)
		}
	}
}

// TestSameSignatureStripped compares every function's type with every function of a program
// without debug information: it fits where it is the same, and does not where a caller's frame, or
// the words of the parameters, differ.
func TestSameSignatureStripped(t *testing.T) {
	im := openImage(t, buildCases(t, "-ldflags=-s -w"))
	refused, pairs := 0, 0
	for i, f := range abicases.Funcs {
		fn := findCase(t, im, caseName(f))
		whole := reflect.TypeOf(f)
		if err := sameSignature(fn, im, reflect.FuncOf(inTypes(whole), nil, whole.IsVariadic())); err != nil {
			t.Errorf("%v, a %v, without results: %v", fn, whole, err)
		}
		for j, g := range abicases.Funcs {
			ft, gt := reflect.TypeOf(f), reflect.TypeOf(g)
			err := sameSignature(fn, im, gt)
			if i == j && err != nil || ft == gt && err != nil {
				t.Errorf("%v, a %v, with %v: %v", fn, ft, gt, err)
			}
			if ft != gt {
				pairs++
				if err != nil {
					refused++
				}
			}
		}
	}
	if refused < pairs*95/100 {
		t.Errorf("%d of %d pairs of different types are told apart", refused, pairs)
	}
}

type (
	lookalike struct{ A, B int }
	alias     = abicases.Num
)

func TestSameSignatureDetails(t *testing.T) {
	whole := openImage(t, buildCases(t))
	stripped := openImage(t, buildCases(t, "-ldflags=-s -w"))
	const pkg = "kprobes.dev/kprobes/internal/abicases."
	for _, c := range []struct {
		im    *symbol.Image
		fn    string
		entry any
		want  string // "" if it fits
	}{
		{whole, "variadic", func(int, []string) {}, ""},
		{whole, "variadic", func(int, ...string) int { return 0 }, ""},
		{whole, "variadic", func(int, ...string) string { return "" }, "abicases.variadic returns (int), the handler returns (string)"},
		{whole, "variadic", func(int, ...[]byte) {}, "abicases.variadic takes (a int, b []string), the handler takes (int, [][]uint8)"},
		{whole, "variadic", func(int) {}, "takes (int): "},
		{whole, "nothing", func(int) {}, "abicases.nothing takes (), the handler takes (int)"},
		{whole, "ints", func(int, int8, uint16, rune, uint64, uintptr) {}, ""},
		{whole, "ints", func(int, int8, alias, int32, uint64, uintptr) {}, "the handler takes (int, int8, kprobes.dev/kprobes/internal/abicases.Num, "},
		{whole, "(*Vec).Scale", func(*abicases.Vec, float64, []float32) {}, ""},
		{whole, "(*Vec).Scale", func(abicases.Vec, float64, []float32) {}, "takes (v *kprobes.dev/kprobes/internal/abicases.Vec, f float64, more []float32)"},
		{whole, "Inlined", func(int, string) int { return 0 }, ""},
		{whole, "closure.func1", func(int) {}, ""},
		{whole, "lib%2ev2.T.Sum", func(lib.T) {}, ""},
		{whole, "lib%2ev2.T.Sum", func(lookalike) {}, ".lookalike): give a func"},
		{stripped, "variadic", func(int, []string) {}, ""},
		{stripped, "variadic", func(int, []string) int { return 0 }, ""},
		{stripped, "variadic", func(int, string, string) {}, "take 32 bytes of its caller's stack, those of the handler, func(int, string, string), take 40 (the program has no debug information"},
		{stripped, "stackBoth", func([3]byte, int) {}, ""},
		{stripped, "stackBoth", func([3]byte, int) int { return 0 }, "those of the handler, func([3]uint8, int) int, take 16 ("},
		{stripped, "nothing", func(int) {}, "take 0 bytes"},
		{stripped, "variadic", func(int) {}, "abicases.variadic are (8@0, {8@8, 8@16, 8@24}) (size@offset of each word), those of the handler, func(int), are (8@24)"},
		{stripped, "variadic", func(int, int, int, int) {}, "are (8@0, 8@8, 8@16, 8@24) (the program has no debug information"},
		{stripped, "ints", func(int, int8, uint16, rune, uint64, uintptr) {}, ""},
		{stripped, "ints", func(int, int16, uint16, rune, uint64, uintptr) {}, "are (8@0, 1@8, 2@10, 4@12, 8@16, 8@24)"},
	} {
		name := pkg + c.fn
		if strings.HasPrefix(c.fn, "lib") {
			name = "kprobes.dev/kprobes/internal/abicases/" + c.fn
		}
		err := sameSignature(findCase(t, c.im, name), c.im, reflect.TypeOf(c.entry))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s with %T: %v", c.fn, c.entry, err)
		case c.want != "" && (!errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s with %T: %v, want %q", c.fn, c.entry, err, c.want)
		}
	}
}

func TestSameSignatureRefused(t *testing.T) {
	im := openImage(t, buildCases(t))
	for name, want := range map[string]string{"runtime.memmove": "assembly", "*/abicases.Generic*": "generic"} {
		fns := im.Glob(name)
		if len(fns) == 0 {
			t.Errorf("%s: not found", name)
		}
		for _, fn := range fns {
			err := sameSignature(fn, im, reflect.TypeOf(func(int) {}))
			if !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v, want %q", fn, err, want)
			}
		}
	}
	c := &symbol.Func{Name: "puts", Lang: symbol.LangC}
	if err := sameSignature(c, im, reflect.TypeOf(func() {})); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("%v", err)
	}
	if err := sameSignature(c, im, reflect.TypeOf(7)); !errors.Is(err, unix.EINVAL) {
		t.Errorf("%v", err)
	}
}

func TestWithoutOrdinals(t *testing.T) {
	for name, want := range map[string]string{
		"main.T": "main.T", "main.T·1": "main.T", "[]main.T·12,main.U·3": "[]main.T,main.U", "a·b": "a·b", "·1·2": "", "x·": "x·", "": "",
	} {
		if got := withoutOrdinals(name); got != want {
			t.Errorf("withoutOrdinals(%q) = %q, want %q", name, got, want)
		}
	}
}
