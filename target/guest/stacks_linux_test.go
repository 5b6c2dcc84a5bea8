package guest_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/testguest"
)

// stacksIn counts the stacks in a text of ftrace's form that belong to the events of a task, whatever its name is at that time: the lines that begin with =>, but for
// the first: where the kernel's breakpoint is the probe, that is behind the breakpoint.
func stacksIn(text, task string) map[string]int {
	out := map[string]int{}
	var stack strings.Builder
	in := false
	end := func() {
		if _, callers, ok := strings.Cut(stack.String(), "\n"); ok && in {
			out[callers]++
		}
		stack.Reset()
	}
	for l := range strings.Lines(text) {
		l = strings.TrimSpace(l)
		switch frame, ok := strings.CutPrefix(l, "=> "); {
		case ok:
			stack.WriteString(frame + "\n")
		default:
			end()
			in = strings.Contains(l, task)
		}
	}
	end()
	return out
}

// TestStacks compares the stacks of probes in the guest's kernel with those that the guest's own tracer records in the same calls.
func TestStacks(t *testing.T) {
	const calls = 30
	g := testguest.Shared(t)
	places := []string{"do_sys_openat2", "do_filp_open", "path_openat", "getname_flags", "do_dentry_open"}
	its := map[string]map[string]int{}
	for _, o := range []string{"stacktrace", "sym-offset"} {
		if e := g.Write(tracing+"options/"+o, "1", true); e != 0 {
			t.Fatal(e)
		}
		t.Cleanup(func() { g.Write(tracing+"options/"+o, "0", true) })
	}
	for _, place := range places {
		remove := ownEvents(t, g, "p:own "+place)
		n := g.Hit("open", calls, 0)
		text, err := g.Read(tracing + "trace")
		if err != nil {
			t.Fatal(err)
		}
		remove()
		its[place] = stacksIn(text, fmt.Sprintf("-%d ", n.PID))
	}
	p := attach(t, g, nil)
	for _, place := range places {
		var defs []*event.Def
		for _, text := range []string{"p:entry " + place, "r:exit " + place} {
			d, err := event.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			d.Stack = 40
			defs = append(defs, d)
		}
		evs, err := p.core.Add(defs, nil)
		if err != nil {
			t.Fatal(err)
		}
		p.hits = nil
		n := p.g.Hit("open", calls, 0)
		p.poll()
		if err := p.core.Remove(evs); err != nil {
			t.Fatal(err)
		}
		entry, exit := map[string]int{}, map[string]int{}
		for i, l := range p.lines() {
			h := &p.hits[i]
			task := fmt.Sprintf("-%d ", n.PID)
			if h.Event.Name == "exit" { // the function itself is not on the stack any more
				l = strings.Replace(l, "\n", "\n => "+string(fetch.AppendSym(nil, h.Event.Addr, p.Symbol))+"\n", 1)
				maps.Copy(exit, stacksIn(l, task))
				continue
			}
			for s, k := range stacksIn(l, task) {
				entry[s] += k
			}
		}
		for s, k := range its[place] {
			if entry[s] != k {
				t.Errorf("%s: %d times, the guest's own tracer has it %d times:\n%s", place, entry[s], k, s)
			}
			delete(entry, s)
		}
		for s, k := range entry {
			t.Errorf("%s: %d times, the guest's own tracer does not have it:\n%s", place, k, s)
		}
		for s := range exit {
			if its[place][s] == 0 {
				t.Errorf("%s: at a return, and at no entry:\n%s", place, s)
			}
		}
		if len(its[place]) == 0 || len(exit) == 0 {
			t.Errorf("%s: %d stacks at the entry, %d at the return", place, len(its[place]), len(exit))
		}
	}
}

// TestStackOfInterrupt records stacks in an interrupt: they go on to what it has interrupted.
func TestStackOfInterrupt(t *testing.T) {
	p := attach(t, testguest.Shared(t), nil)
	d, err := event.Parse("p:tick hrtimer_interrupt")
	if err != nil {
		t.Fatal(err)
	}
	d.Stack = 60
	evs, err := p.core.Add([]*event.Def{d}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for len(p.hits) < 50 {
		p.g.Hit("open", 2000, 0)
		p.poll()
	}
	if err := p.core.Remove(evs); err != nil {
		t.Fatal(err)
	}
	for i, l := range p.lines() {
		fs, end, err := p.hits[i].Callers(nil)
		if err != nil || end != fetch.StackWhole || len(fs) < 3 || !strings.Contains(l, "timer_interrupt+") {
			t.Errorf("%v, %v: %s", err, end, l)
		}
	}
}
