package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// TestInsmodFaultHandler has the handlers of every kind of probe fault at every tenth hit, in all ways: the fault handler has each go on, so that all
// calls are counted, and all faults, and no probe is disabled.
func TestInsmodFaultHandler(t *testing.T) {
	t.Parallel()
	faulty := object(t, "faulty")
	p := program(t, "work", "4")
	for _, trap := range []int{14, 13, 6, 0, 17} {
		module(t, p, "insmod", faulty, fmt.Sprint("trap=", trap))
		n := right(t, p, "count")
		m := right(t, p, "go 1003")
		calls := func(name string) uint64 { return m[name] - n[name] }
		lea, push, six := calls("f_lea"), calls("f_push"), calls("f_six")
		want := fmt.Sprintf("pre=%d post=%d entered=%d returned=%d jumped=%d faults=%d wrong=0 missed=0\n", lea, lea, push, push, six, 2*(lea/10)+2*(push/10)+six/10)
		log := module(t, p, "dmesg")
		if out := module(t, p, "rmmod", "faulty"); !strings.HasSuffix(out, want) || six != 4*1003 || log != "" {
			t.Errorf("trap %d: %s%s, want %s", trap, log, out, want)
		}
	}
	within(t, "nothing is left in the program", func() bool { return len(ours(t, p)) == 0 })
	right(t, p, "go 100")
}

// TestInsmodFaultHandlerGo has handlers fault in a Go program, on their own stacks, while the collector runs and the goroutines' stacks move.
func TestInsmodFaultHandlerGo(t *testing.T) {
	t.Parallel()
	p := program(t, "gowork", "4")
	module(t, p, "insmod", "testdata/faulty.c", "only=main.Ints")
	n := right(t, p, "count")["main.Ints"]
	for range 3 {
		right(t, p, "go 1500")
		p.Counts("gc")
	}
	n = right(t, p, "count")["main.Ints"] - n
	if out, want := module(t, p, "rmmod", "faulty"), fmt.Sprintf("pre=%d post=%d entered=0 returned=0 jumped=0 faults=%d wrong=0 missed=0\n", n, n, 2*(n/10)); !strings.HasSuffix(out, want) || n < 4*3*1500 {
		t.Errorf("%s, want %s", out, want)
	}
	right(t, p, "go 100")
	if left := ours(t, p); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestInsmodFaultHandlerFails has fault handlers that give up, that fault themselves, and that let the handler try again for ever: the handlers end, their
// probes are disabled, and the log says why.
func TestInsmodFaultHandlerFails(t *testing.T) {
	t.Parallel()
	faulty := object(t, "faulty")
	p := program(t, "work", "2")
	for _, c := range []struct {
		answer int
		line   string
	}{{1, "a fault in a handler"}, {3, "a fault in a handler"}, {2, "a handler that does not end"}} {
		module(t, p, "insmod", faulty, fmt.Sprint("answer=", c.answer))
		m := right(t, p, "go 1000")
		for _, name := range []string{"f_lea", "f_push", "f_six"} {
			line := regexp.MustCompile(`\] faulty: ` + c.line + ` of the probe at ` + name + `\+0x[04]/0x[0-9a-f]+: the probe is disabled\n`)
			within(t, "the fault is told", func() bool { return line.MatchString(module(t, p, "dmesg")) })
		}
		if again := right(t, p, "go 1000"); again["f_six"] != m["f_six"]+2000 {
			t.Errorf("%d calls, %d before", again["f_six"], m["f_six"])
		}
		n := tellings(t, module(t, p, "rmmod", "faulty"))
		if n["faults"] < 3 || n["pre"] < 10 || n["pre"] >= 4000 || n["wrong"] != 0 {
			t.Errorf("answer %d: %v", c.answer, n)
		}
	}
	within(t, "nothing is left in the program", func() bool { return len(ours(t, p)) == 0 })
	right(t, p, "go 100")
}

// TestInsmodFaultHandlerGoesOn has a fault handler lead a handler to code that its own instructions do not lead to: what that changes of the thread's registers counts.
func TestInsmodFaultHandlerGoesOn(t *testing.T) {
	t.Parallel()
	p := program(t, "forkopen")
	module(t, p, "insmod", "testdata/resumed.c")
	if n := p.Counts("open 30"); n["opens"] != 30 || n["failed"] != 30 {
		t.Errorf("%v, want all of 30 failed", n)
	}
	module(t, p, "rmmod", "resumed")
	if n := p.Counts("open 30"); n["failed"] != 30+10 {
		t.Errorf("%v, want 10 more failed", n)
	}
}
