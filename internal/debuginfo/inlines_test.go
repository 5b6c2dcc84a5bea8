package debuginfo

import (
	"cmp"
	"debug/dwarf"
	"debug/elf"
	"os"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/cbuild"
	"kprobes.dev/kprobes/internal/testprog"
)

// TestInlined compares the inlined calls with those that debug/dwarf finds by reading every entry: for each version of DWARF, both
// compilers, and a Go program.
func TestInlined(t *testing.T) {
	for _, flags := range [][]string{
		{"-gdwarf-2", "-gno-strict-dwarf"},
		{"-gdwarf-3"},
		{"-gdwarf-4"},
		{"-gdwarf-5"},
		{"-gdwarf-5", "-gdwarf64"},
		{"CC=clang++", "-gdwarf-4"},
		{"CC=clang++", "-gdwarf-5"},
		{"go"},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			var path string
			if flags[0] == "go" {
				path = testprog.Build(t, "goserver")
			} else {
				var err error
				if path, err = cbuild.Build(os.DirFS("../vars/testdata"), ".", "books", append(flags, "-O2")...); err != nil {
					t.Fatal(err)
				}
			}
			f, e := linesOf(t, path)
			got, err := f.Inlined(func(string, string) bool { return true })
			if err != nil {
				t.Fatal(err)
			}
			want := inlinedByWalk(t, f, e)
			t.Logf("%d inlined calls", len(want))
			if len(want) < 20 || !slices.Equal(got, want) {
				t.Errorf("%d inlined calls, %d by reading every entry", len(got), len(want))
			}
		})
	}
}

// inlinedByWalk reads every entry.
func inlinedByWalk(t *testing.T, f *File, e *elf.File) (calls []InlinedCall) {
	t.Helper()
	data, err := e.DWARF()
	if err != nil {
		t.Fatal(err)
	}
	w, r := f.walk(), data.Reader()
	for {
		e, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			break
		}
		if e.Tag != dwarf.TagInlinedSubroutine {
			continue
		}
		one := InlinedCall{Name: w.name(e)}
		one.Linkage, _ = w.val(e, dwarf.AttrLinkageName).(string)
		var begins bool
		if one.PC, begins = w.begin(e); begins {
			calls = append(calls, one)
		}
	}
	slices.SortFunc(calls, func(a, b InlinedCall) int {
		return cmp.Or(cmp.Compare(a.PC, b.PC), strings.Compare(a.Name, b.Name), strings.Compare(a.Linkage, b.Linkage))
	})
	return slices.Compact(calls)
}

func BenchmarkInlined(b *testing.B) {
	path := testprog.Build(b, "goserver")
	for b.Loop() {
		f, _ := linesOf(b, path)
		if calls, err := f.Inlined(func(name, _ string) bool { return name == "net/http.(*conn).serve" }); err != nil {
			b.Fatal(calls, err)
		}
	}
}
