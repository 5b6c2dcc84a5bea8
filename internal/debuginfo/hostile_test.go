package debuginfo

import (
	"debug/elf"
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"kprobes.dev/kprobes/internal/cbuild"
)

// names of the sections that are damaged, in the order of FuzzFile's arguments.
var names = []string{".debug_info", ".debug_abbrev", ".debug_str", ".debug_loclists", ".debug_rnglists", ".debug_addr"}

// realSections are those of a small program in C++.
func realSections(tb testing.TB) map[string][]byte {
	tb.Helper()
	path, err := cbuild.Build(os.DirFS("../vars/testdata"), ".", "books")
	if err != nil {
		tb.Fatal(err)
	}
	f, err := elf.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	out := map[string][]byte{}
	for _, name := range append([]string{".debug_line", ".debug_loc", ".debug_ranges", ".debug_line_str", ".debug_str_offsets"}, names...) {
		if s := f.Section(name); s != nil {
			if out[name], err = s.Data(); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return out
}

// ask asks a file all that can be asked.
func ask(sections map[string][]byte) {
	f, err := New(func(name string) ([]byte, error) { return sections[name], nil })
	if err != nil {
		return
	}
	f.Var("main.main")
	f.Var("os.Args")
	f.GoTypes([]string{"*main.books", "int"})
	f.GoStructs("sc", "next")
	f.GoConst("main.most")
	f.Inlined(func(string, string) bool { return true })
	spans := f.spans
	for i := range min(len(spans), 4) {
		for pc := spans[i].start; pc < min(spans[i].end, spans[i].start+64); pc += 5 {
			f.Lines(pc)
		}
		fn, err := f.Func(spans[i].start)
		if err != nil {
			continue
		}
		for _, p := range append(fn.Params, fn.Results...) {
			shape(p.Type, 0)
		}
	}
	for i := range min(len(f.units), 4) {
		for pc := range f.units[i].funcs {
			f.Func(pc)
		}
	}
}

func shape(t Type, depth int) {
	s, err := t.Shape()
	if err != nil || depth > 4 {
		return
	}
	t.ByReference()
	if s.Kind == Pointer || s.Kind == Array {
		shape(s.Elem, depth+1)
	}
	fs, err := t.Fields()
	if err != nil {
		return
	}
	for i := range min(len(fs), 8) {
		shape(fs[i].Type, depth+1)
	}
}

// TestDamagedFiles damages real debug information in many ways: each is read to an end, or refused.
func TestDamagedFiles(t *testing.T) {
	whole := realSections(t)
	ask(whole)
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		hurt := map[string][]byte{}
		for name, b := range whole {
			hurt[name] = b
		}
		for range 1 + rnd.IntN(3) {
			name := append(names[:2:2], ".debug_line")[rnd.IntN(3)]
			b := append([]byte(nil), hurt[name]...)
			for range 1 + rnd.IntN(20) {
				at := rnd.IntN(len(b))
				if rnd.IntN(2) == 0 {
					at = rnd.IntN(min(len(b), 4000))
				}
				b[at] = byte(rnd.Uint32())
			}
			if rnd.IntN(10) == 0 {
				b = b[:rnd.IntN(len(b))]
			}
			hurt[name] = b
		}
		ask(hurt)
	}
}

// TestHostileTables refuses abbreviations that would take long.
func TestHostileTables(t *testing.T) {
	wide := []byte{1, 0x11, 0}
	for range 2 * maxAttrs {
		wide = append(wide, 3, 0x19)
	}
	wide = append(wide, 0, 0, 0)
	long := []byte{}
	for range 1000 {
		long = append(long, 1, 0x11, 0, 0, 0)
	}
	unit := func(at byte) []byte { return []byte{7, 0, 0, 0, 4, 0, at, 0, 0, 0, 8} }
	var many []byte
	for at := range byte(200) {
		many = append(many, unit(at)...)
	}
	for name, sections := range map[string]map[string][]byte{
		"an entry of thousands of attributes": {".debug_info": unit(0), ".debug_abbrev": wide},
		"tables that overlap":                 {".debug_info": many, ".debug_abbrev": long},
	} {
		if _, err := New(func(name string) ([]byte, error) { return sections[name], nil }); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzFile(f *testing.F) {
	s := realSections(f)
	f.Add(s[names[0]], s[names[1]], s[names[2]], s[names[3]], s[names[4]], s[names[5]])
	f.Fuzz(func(_ *testing.T, info, abbrev, str, loclists, rnglists, addr []byte) {
		sections := map[string][]byte{}
		for i, b := range [][]byte{info, abbrev, str, loclists, rnglists, addr} {
			sections[names[i]] = b
		}
		ask(sections)
	})
}
