package amd64

import (
	"bufio"
	"bytes"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// flowStats counts what the analysis of a whole program found.
type flowStats struct {
	funcs, known      int // functions, and those all of whose exits are known
	insts, swept      int // instructions, and those that only the sweep found
	jumps, unresolved int // indirect jumps, and those that may go anywhere
	tails             int // indirect jumps that leave the function
	tables, bounded   int // jump tables, and those that a comparison bounds
	free              int // registers free at the functions' entries
}

func measureFlow(t *testing.T, im *image, isGo bool) (s flowStats) {
	t.Helper()
	for _, f := range im.funcs {
		fl := im.analyse(t, f, isGo)
		s.funcs++
		if _, reason := fl.Exits(); reason == nil {
			s.known++
		} else {
			t.Log(reason)
		}
		for i := range fl.nodes {
			s.insts++
			if fl.nodes[i].swept {
				s.swept++
			}
		}
		s.addJumps(fl)
		for free := AllRegs &^ fl.LiveAt(f.addr); free != 0; free &= free - 1 {
			s.free++
		}
	}
	return s
}

func (s *flowStats) addJumps(fl *Flow) {
	s.unresolved += len(fl.Unresolved())
	for _, j := range fl.IndirectJumps() {
		s.jumps++
		switch {
		case j.Tail:
			s.tails++
		case j.Resolved():
			s.tables++
			if j.Bounded {
				s.bounded++
			}
		}
	}
}

// Every function of real programs is analysed, and of nearly all everything is known. The
// floors are what is reached on Debian 12 with Go 1.26 (all of it), less a little.
func TestFlowOfWholePrograms(t *testing.T) {
	for _, c := range []struct {
		path  string
		isGo  bool
		funcs int // at least
	}{
		{"/lib/x86_64-linux-gnu/libc.so.6", false, 3000},
		{"/usr/bin/redis-server", false, 4000},
		{"/usr/bin/gdb", false, 15000},
		{toolPath(t, "go"), true, 10000},
	} {
		t.Run(filepath.Base(c.path), func(t *testing.T) {
			s := measureFlow(t, openImage(t, c.path), c.isGo)
			t.Logf("%+v", s)
			if s.funcs < c.funcs || s.known*1000 < s.funcs*999 {
				t.Errorf("all exits are known of %d functions of %d, want 99.9 %% of at least %d", s.known, s.funcs, c.funcs)
			}
			if s.unresolved*200 > s.jumps {
				t.Errorf("%d indirect jumps of %d are not resolved, want at most 0.5 %%", s.unresolved, s.jumps)
			}
			if s.free < s.funcs {
				t.Errorf("%d free registers at %d entries, want one each", s.free, s.funcs)
			}
		})
	}
}

// All instructions that the flow of redis-server reaches, by jump tables too, stand where
// objdump sees instructions, which decodes the file from beginning to end.
func TestFlowAgainstObjdump(t *testing.T) {
	const path = "/usr/bin/redis-server"
	starts := map[uint64]bool{}
	sc := bufio.NewScanner(bytes.NewReader(runTool(t, "objdump", "-d", "--no-show-raw-insn", path)))
	for sc.Scan() {
		addr, _, _ := strings.Cut(strings.TrimSpace(sc.Text()), ":")
		if a, err := strconv.ParseUint(addr, 16, 64); err == nil {
			starts[a] = true
		}
	}
	im, n := openImage(t, path), 0
	for _, f := range im.funcs {
		for a := range im.analyse(t, f, false).All() {
			if n++; !starts[a] {
				t.Errorf("%s: 0x%x is no instruction for objdump", f.name, a)
			}
		}
	}
	if n < 200_000 {
		t.Errorf("only %d instructions", n)
	}
}
