package amd64

import (
	"path/filepath"
	"testing"
)

// flowStats counts what the analysis of a whole program found.
type flowStats struct {
	funcs, known        int // functions, and those all of whose exits are known
	insts, clear        int // instructions, and those in functions without unresolved jumps
	jumps, tail, tables int // indirect jumps, tail calls among them, jump tables
	bounded, unresolved int // tables with a bounds check; jumps not resolved
	undecoded           int // functions that reach bytes that are no code
	boundary, swept     int // code bytes' instructions found by sweep only
}

func measureFlow(t *testing.T, im *image, isGo bool) flowStats {
	var s flowStats
	for _, f := range im.funcs {
		fl := im.analyse(t, f, isGo)
		s.funcs++
		exits, reason := fl.Exits()
		if reason == nil {
			s.known++
		} else if len(fl.unresolved) == 0 {
			s.undecoded++
			if testing.Verbose() {
				t.Log(reason)
			}
		}
		if len(exits) == 0 && reason == nil && testing.Verbose() {
			t.Logf("%s 0x%x has no exits", f.name, f.addr)
		}
		s.insts += len(fl.nodes)
		if len(fl.unresolved) == 0 {
			s.clear += len(fl.nodes)
		}
		s.addJumps(t, fl)
		for i := range fl.nodes {
			if fl.nodes[i].swept {
				s.swept++
			}
		}
		fl.LiveAt(f.addr)
	}
	return s
}

func (s *flowStats) addJumps(t *testing.T, fl *Flow) {
	for _, j := range fl.IndirectJumps() {
		s.jumps++
		switch {
		case j.Tail:
			s.tail++
		case j.Resolved() && j.Bounded:
			s.bounded++
			s.tables++
		default:
			s.tables++
			if testing.Verbose() {
				t.Logf("%s 0x%x: jump at 0x%x % x: %d targets, %d outside, tail %v", fl.fn.Name, fl.fn.Addr, j.Addr, fl.Bytes(j.Addr, 4), len(j.Targets), len(j.Outside), j.Tail)
			}
		}
	}
	s.unresolved += len(fl.unresolved)
	for range fl.unresolved {
		s.tables--
	}
	if testing.Verbose() && len(fl.unresolved) > 0 {
		t.Logf("%s: unresolved %#x", fl.fn.Name, fl.unresolved)
	}
}

func TestFlowOfWholePrograms(t *testing.T) {
	for _, c := range []struct {
		path string
		isGo bool
	}{
		{"/lib/x86_64-linux-gnu/libc.so.6", false},
		{"/usr/bin/redis-server", false},
		{"/usr/bin/gdb", false},
		{"/usr/local/go/bin/go", true},
	} {
		t.Run(filepath.Base(c.path), func(t *testing.T) {
			im := openImage(t, c.path)
			s := measureFlow(t, im, c.isGo)
			t.Logf("%+v", s)
		})
	}
}
