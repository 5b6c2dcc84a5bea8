package spans_test

import (
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/spans"
	"kprobes.dev/kprobes/target/process"
)

// open opens a Core of a program that runs.
func open(t *testing.T, p *testprog.Proc) (core *kprobes.Core, leave func()) {
	t.Helper()
	proc, err := process.OpenUnwaited(p.PID)
	if err != nil {
		t.Fatal(err)
	}
	to, err := process.Attach(proc, nil)
	if err != nil {
		t.Fatal(err)
	}
	core, err = kprobes.Open(to, nil)
	if err != nil {
		t.Fatal(err)
	}
	return core, func() {
		if err := core.Close(nil); err != nil {
			t.Error(err)
		}
		proc.Close()
	}
}

// TestOther makes spans of another process, by the number of calls that it has counted itself, and of one that ends.
func TestOther(t *testing.T) {
	p := testprog.Start(t, testprog.Build(t, "work"), "2")
	core, leave := open(t, p)
	var c collected
	s, err := spans.Start(core, &spans.Options{Export: c.export, PID: p.PID}, "r:str f_str n=$arg2:u32", "r:six f_six r=$retval:u64 --error 'r > 0'")
	if err != nil {
		t.Fatal(err)
	}
	before := p.Counts("count")
	after := p.Counts("go 200")
	n := end(t, s)
	leave()
	names, failed := map[string]uint64{}, uint64(0)
	for _, sp := range c.all {
		if names[sp.Name]++; sp.Status == spans.StatusError {
			failed++
		}
	}
	if names["str"] != after["f_str"]-before["f_str"] || names["six"] != after["f_six"]-before["f_six"] || names["str"] == 0 || n.Spans != uint64(len(c.all)) || n.Errors != failed || failed == 0 {
		t.Errorf("%v of %v, %v: %+v", names, before, after, n)
	}
	if n.Unjoined+n.Left+n.Lost+n.Hidden != 0 {
		t.Errorf("%+v", n)
	}
	core, leave = open(t, p)
	c.all = nil
	if s, err = spans.Start(core, &spans.Options{Export: c.export}, "r:str f_str"); err != nil {
		t.Fatal(err)
	}
	before = p.Counts("count")
	after = p.Counts("go 100")
	p.Kill()
	<-s.Done()
	defer leave()
	if n := end(t, s); n.Spans != after["f_str"]-before["f_str"] || n.Spans != uint64(len(c.all)) {
		t.Errorf("%v, %v: %+v", before, after, n)
	}
}
