package symbol

import (
	"debug/gosym"
	"fmt"
	"testing"
)

// TestGoLines compares the lines of a program's functions with those that debug/gosym reads, also where the program is stripped and
// where others have linked it.
func TestGoLines(t *testing.T) {
	for _, form := range []string{"plain", "pie_sw", "ext_sw"} {
		path := buildGoForm(t, form)
		im := open(t, path, noDebug)
		g := im.table().goTab
		_, b, err := im.elf.findPclntab()
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := gosym.NewTable(nil, gosym.NewLineTable(b, g.textStart))
		if err != nil {
			t.Fatal(err)
		}
		checked, inlined := 0, 0
		for i, fn := range im.Funcs() {
			if fn.Lang != LangGo || i%3 != 0 {
				continue
			}
			for pc := fn.Addr; pc < fn.End(); pc += 7 {
				file, line, _ := theirs.PCToLine(pc)
				ls := im.GoLines(pc)
				if len(ls) == 0 {
					if line != 0 {
						t.Fatalf("%s: %s+0x%x: no line, %s:%d", form, fn, pc-fn.Addr, file, line)
					}
					continue
				}
				checked++
				if fmt.Sprintf("%s:%d", ls[0].File, ls[0].Line) != fmt.Sprintf("%s:%d", file, line) {
					t.Fatalf("%s: %s+0x%x: %+v, %s:%d", form, fn, pc-fn.Addr, ls, file, line)
				}
				inlined += len(ls) - 1
				for j, l := range ls {
					if (l.Func == "") != (j == len(ls)-1) {
						t.Fatalf("%s: %s+0x%x: %+v", form, fn, pc-fn.Addr, ls)
					}
				}
			}
		}
		t.Logf("%s: %d places, %d inlined functions", form, checked, inlined)
		if checked < 10000 || inlined < checked/20 {
			t.Errorf("%s: %d places, %d inlined functions", form, checked, inlined)
		}
	}
}
