package amd64

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"kprobes.dev/kprobes/internal/cbuild"
)

// stepCheck compares the flow of some functions with what runs.
type stepCheck struct {
	t     *testing.T
	im    *image
	flows map[string]*Flow
	exits map[*Flow]map[uint64]ExitKind
	went  map[uint64]map[uint64]bool // indirect jump to the targets seen
	prev  uint64
}

func newStepCheck(t *testing.T, im *image, isGo bool, wanted func(name string) bool) *stepCheck {
	t.Helper()
	c := &stepCheck{t: t, im: im, flows: map[string]*Flow{}, exits: map[*Flow]map[uint64]ExitKind{}, went: map[uint64]map[uint64]bool{}}
	for _, f := range im.funcs {
		if strings.HasSuffix(f.name, ".cold") || !wanted(f.name) {
			continue
		}
		fl := im.analyse(t, f, isGo)
		c.flows[f.name] = fl
		exits, reason := fl.Exits()
		if reason != nil {
			t.Error(reason)
		}
		c.exits[fl] = map[uint64]ExitKind{}
		for _, e := range exits {
			c.exits[fl][e.Addr] = e.Kind
		}
	}
	if len(c.flows) == 0 {
		t.Fatal("no function to check")
	}
	return c
}

func (c *stepCheck) flow(pc uint64) *Flow {
	f, ok := c.im.at(pc)
	if !ok {
		return nil
	}
	return c.flows[strings.TrimSuffix(f.name, ".cold")]
}

// at checks the way from the last instruction to pc.
func (c *stepCheck) at(pc uint64) {
	from, to := c.flow(c.prev), c.flow(pc)
	if to != nil {
		if ok, in := to.Boundary(pc); !ok || !to.Reachable(pc) {
			c.t.Fatalf("%s: 0x%x ran, boundary %v inside 0x%x reachable %v", to.fn.Name, pc, ok, in, to.Reachable(pc))
		}
	}
	if from != nil {
		c.left(from, to, pc)
	}
	c.prev = pc
}

// left checks the way from the last instruction, in from, to pc.
func (c *stepCheck) left(from, to *Flow, pc uint64) {
	in, _ := from.Inst(c.prev)
	kind, exit := c.exits[from][c.prev]
	call := in.Kind == KindCall || in.Kind == KindCallInd
	if to == from && in.Kind == KindJmpInd {
		c.jumped(from, pc)
	}
	switch {
	case to == from && pc == c.prev+uint64(in.Len), call, pc == c.prev:
	case in.Kind == KindRet:
		if !exit || kind != ExitRet {
			c.t.Errorf("%s: ret at 0x%x is no exit", from.fn.Name, c.prev)
		}
	case to == from:
		if !to.Target(pc) {
			c.t.Errorf("%s: 0x%x went to 0x%x, which is no target", from.fn.Name, c.prev, pc)
		}
	case !exit:
		c.t.Errorf("%s: left at 0x%x to 0x%x, which is no exit", from.fn.Name, c.prev, pc)
	}
}

func (c *stepCheck) jumped(fl *Flow, pc uint64) {
	if c.went[c.prev] == nil {
		c.went[c.prev] = map[uint64]bool{}
	}
	c.went[c.prev][pc] = true
	for _, j := range fl.IndirectJumps() {
		if j.Addr == c.prev && !slices.Contains(j.Targets, pc) {
			c.t.Errorf("%s: jump at 0x%x went to 0x%x, known are %#x", fl.fn.Name, c.prev, pc, j.Targets)
		}
	}
}

// tables counts the tables that were used, and requires that all targets of a bounded
// table were seen: the program drives each switch with every value.
func (c *stepCheck) tables() (used int) {
	for _, fl := range c.flows {
		for _, j := range fl.IndirectJumps() {
			if j.Tail || c.went[j.Addr] == nil {
				continue
			}
			used++
			for _, target := range j.Targets {
				if j.Bounded && !c.went[j.Addr][target] {
					c.t.Errorf("%s: jump at 0x%x never went to 0x%x", fl.fn.Name, j.Addr, target)
				}
			}
		}
	}
	return used
}

// Every jump that runs goes to a known target, every target of a table is real, and every
// way out is an exit; for all that gcc and clang make of the same source.
func TestJumpTablesByStepping(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags string
		least int  // jump tables that run
		long  bool // it is tried in long runs
	}{
		{"gcc_O0_pic", "CC=gcc -O0 -fPIE -pie", 8, true},
		{"gcc_O0_abs", "CC=gcc -O0 -fno-pie -no-pie", 8, true},
		{"gcc_O1_pic", "CC=gcc -O1 -fPIE -pie", 8, true},
		{"gcc_O2_pic", "CC=gcc -O2 -fPIE -pie", 8, true},
		{"gcc_O2_abs", "CC=gcc -O2 -fno-pie -no-pie", 8, true},
		{"gcc_O2_cet", "CC=gcc -O2 -fPIE -pie -fcf-protection", 8, false},
		{"gcc_O3_pic", "CC=gcc -O3 -march=x86-64-v3 -fPIE -pie", 8, true},
		{"gcc_Os_abs", "CC=gcc -Os -fno-pie -no-pie", 6, true},
		{"clang_O0_pic", "CC=clang -O0 -fPIE -pie", 8, false},
		{"clang_O0_abs", "CC=clang -O0 -fno-pie -no-pie", 8, true},
		{"clang_O2_pic", "CC=clang -O2 -fPIE -pie", 8, true},
		{"clang_O2_abs", "CC=clang -O2 -fno-pie -no-pie", 8, false},
		{"clang_O3_pic", "CC=clang -O3 -march=x86-64-v3 -fPIE -pie", 8, false},
	} {
		if c.long && !longRun {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			im := openImage(t, buildFlow(t, "switches", strings.Fields(c.flags)...))
			check := newStepCheck(t, im, false, func(name string) bool {
				return strings.HasPrefix(name, "sw_") || strings.HasPrefix(name, "goto_") || strings.HasPrefix(name, "tail_")
			})
			p := startStepped(t, im.path)
			if !p.steps(im.find(t, "run").addr, check.at) {
				t.Fatal("the program died")
			}
			if n := check.tables(); n < c.least {
				t.Errorf("%d jump tables ran, want at least %d", n, c.least)
			}
			for name, fl := range check.flows {
				if strings.HasPrefix(name, "sw_") && len(fl.Unresolved()) > 0 {
					t.Errorf("%s: unresolved %#x", name, fl.Unresolved())
				}
			}
		})
	}
}

// buildGo builds the Go program of testdata/flow.
func buildGo(t *testing.T, flags ...string) string {
	t.Helper()
	src, err := os.ReadFile("testdata/flow/goswitch/main.go")
	if err != nil {
		t.Fatal(err)
	}
	path, err := cbuild.Cached("goswitch", hashOf(src, flags), func(out string) error {
		runTool(t, "go", append(append([]string{"build", "-o", out}, flags...), filepath.Join("testdata", "flow", "goswitch", "main.go"))...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestStepsAskedToYield steps a goroutine that sysmon has asked to let others run before it was held.
func TestStepsAskedToYield(t *testing.T) {
	im := openImage(t, buildGo(t, "-buildmode=exe"))
	p := startStepped(t, im.path)
	p.runTo(im.find(t, "main.run").addr)
	const (
		guard = 16            // of runtime.g's stackguard0
		asked = ^uint64(1313) // runtime.stackPreempt
	)
	for word := make([]byte, 8); binary.LittleEndian.Uint64(word) != asked; {
		if _, err := syscall.PtracePeekData(p.pid, uintptr(p.regs.R14+guard), word); err != nil {
			t.Fatal(err)
		}
	}
	scheduled := false
	schedule := im.find(t, "runtime.schedule").addr
	if !p.stepsHere(func(pc uint64) { scheduled = scheduled || pc == schedule }) {
		t.Fatal("the program died")
	}
	if !scheduled {
		t.Error("the goroutine did not let others run")
	}
}

func TestGoJumpTablesByStepping(t *testing.T) {
	modes := []string{"-buildmode=exe"}
	if longRun {
		modes = append(modes, "-buildmode=pie")
	}
	for _, mode := range modes {
		t.Run(mode[11:], func(t *testing.T) {
			im := openImage(t, buildGo(t, mode))
			check := newStepCheck(t, im, true, func(name string) bool { return strings.HasPrefix(name, "main.sw") })
			p := startStepped(t, im.path)
			if !p.steps(im.find(t, "main.run").addr, check.at) {
				t.Fatal("the program died")
			}
			if n := check.tables(); n < 2 {
				t.Errorf("%d jump tables ran, want at least 2", n)
			}
		})
	}
}
