package symbol

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/arch/objfile"
)

// frameList gives all frames of an image.
func frameList(im *Image) (list []Frame, lo, hi uint64) {
	lo, hi = im.Frames(func(f Frame) { list = append(list, f) })
	return list, lo, hi
}

func ruleAt(list []Frame, at uint64) objfile.FrameRule {
	i, exact := slices.BinarySearchFunc(list, at, func(f Frame, at uint64) int { return cmpU64(f.Start, at) })
	if !exact {
		i--
	}
	if i < 0 {
		return objfile.FrameRule{}
	}
	return list[i].Rule
}

// readelfRule is the rule that a row of readelf's tells; told is false where readelf shows no more than that there is an
// expression.
func readelfRule(t *testing.T, columns, fields []string) (r objfile.FrameRule, told bool) {
	t.Helper()
	cfa := fields[1]
	if !strings.HasPrefix(cfa, "r") {
		return r, false
	}
	reg, off, ok := strings.Cut(cfa, "+")
	n, err := strconv.Atoi(off)
	if !ok || err != nil {
		t.Fatalf("CFA %q", cfa)
	}
	for i, name := range columns {
		v := fields[i]
		switch {
		case name == "ra" && v == "u":
			return objfile.FrameRule{CFA: objfile.FrameEnd}, true
		case name == "ra" && v != "c-8", name == "rbp" && strings.HasSuffix(v, "exp"):
			return r, false
		case name == "rbp" && strings.HasPrefix(v, "c"):
			off, err := strconv.Atoi(v[1:])
			if err != nil {
				t.Fatalf("rbp %q", v)
			}
			r.FP, r.FPOff = objfile.FPAtCFA, int32(off)
		}
	}
	switch reg {
	case "rsp":
		r.CFA = objfile.FrameBySP
	case "rbp":
		r.CFA = objfile.FrameByFP
	default:
		return objfile.FrameRule{}, true
	}
	r.Off = int32(n)
	return r, true
}

// TestFrames compares the rules of real programs with readelf's tables, row by row.
func TestFrames(t *testing.T) {
	for _, path := range []string{redis, "/usr/bin/gdb", "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2", buildC(t, "static"), buildC(t, "clang")} {
		im := open(t, path, noDebug)
		list, lo, hi := frameList(im)
		for i := 1; i < len(list); i++ {
			if list[i].Start <= list[i-1].Start || list[i].Start < lo || list[i].Start >= hi {
				t.Fatalf("%s: frame %d at 0x%x behind 0x%x", path, i, list[i].Start, list[i-1].Start)
			}
		}
		var columns []string
		rows, hidden := 0, 0
		for line := range strings.Lines(run(t, "readelf", "-W", "-wNF", path)) {
			fields := strings.Fields(line)
			if len(fields) > 2 && fields[0] == "LOC" {
				columns = fields
			}
			if len(fields) != len(columns) || len(fields) < 3 || len(fields[0]) != 16 {
				continue
			}
			at := hexNum(t, fields[0])
			if at < lo { // a CIE's row
				continue
			}
			rows++
			want, told := readelfRule(t, columns, fields)
			if !told {
				hidden++
				continue
			}
			if got := ruleAt(list, at); got != want {
				t.Fatalf("%s: 0x%x: %+v, readelf has %s", path, at, got, line)
			}
			if got := im.FrameAt(at); rows%97 == 0 && got != want {
				t.Fatalf("%s: at 0x%x: %+v, readelf has %s", path, at, got, line)
			}
		}
		unknown := 0
		for _, f := range list {
			if f.Rule.CFA == objfile.FrameUnknown {
				unknown++
			}
		}
		t.Logf("%s: %d rows of readelf, %d of them with an expression; %d rules, %d unknown", path, rows, hidden, len(list), unknown)
		if rows < 30 || hidden > 3 {
			t.Errorf("%s: %d rows, %d not comparable", path, rows, hidden)
		}
	}
}

// TestFrameOfSignal finds the C library's code that signals return to.
func TestFrameOfSignal(t *testing.T) {
	im := open(t, "/lib/x86_64-linux-gnu/libc.so.6", noDebug)
	found := 0
	im.Frames(func(f Frame) {
		if f.Rule.CFA == objfile.FrameSignal {
			found++
			if !im.SignalFrame(f.Start) {
				t.Errorf("0x%x is no signal's frame", f.Start)
			}
		}
	})
	if found != 1 {
		t.Errorf("%d pieces of code for signals, want 1", found)
	}
}

// TestAlignedFrames has the compiler align the stack in a function: its CFA is found where the frame pointer leads.
func TestAlignedFrames(t *testing.T) {
	const source = `
extern void take(void *);
int aligned(int n) {
	__attribute__((aligned(64))) char room[64];
	char more[n];
	take(room);
	take(more);
	return room[3] + more[2];
}
void take(void *p) { __asm__ volatile("" :: "r"(p) : "memory"); }
int main(int n, char **v) { return aligned(n + 70); }
`
	im := open(t, build(t, "gcc", source, "-O2", "-fno-inline"), noDebug)
	fn := one(t, im, "aligned")
	seen := map[string]bool{}
	im.Frames(func(f Frame) {
		if fn.Contains(f.Start) {
			seen[fmt.Sprintf("%d %d", f.Rule.CFA, f.Rule.FP)] = true
		}
	})
	if !seen[fmt.Sprintf("%d %d", objfile.FrameAtFP, objfile.FPAtFP)] {
		t.Errorf("rules of %s: %v", fn, seen)
	}
}

// TestGoFrames finds frame pointers in all of a Go program's functions.
func TestGoFrames(t *testing.T) {
	im := open(t, buildGoForm(t, "plain"), noDebug)
	list, _, _ := frameList(im)
	n := 0
	for _, fn := range im.Funcs() {
		if fn.Lang != LangGo {
			continue
		}
		n++
		if r := ruleAt(list, fn.Addr); r.CFA != objfile.FrameLink {
			t.Errorf("%s: %+v", fn, r)
		}
	}
	if n < 1000 {
		t.Errorf("%d functions of Go", n)
	}
}
