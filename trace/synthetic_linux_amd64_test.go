package trace

import (
	"context"
	"strings"
	"testing"
	"time"
)

// An instance that is closed behind its end leaves another one of its name alone.
func TestCloseTwice(t *testing.T) {
	_, in := instance(t, nil)
	must(t, in.Write("p:a f_push v=%di"))
	a, err := in.NewInstance("x")
	must(t, err)
	must(t, in.RemoveInstance("x"))
	b, err := in.NewInstance("x")
	must(t, err)
	must(t, b.Enable("kprobes", "a", true))
	must(t, a.Close())
	if in.Instance("x") != b {
		t.Errorf("the new instance x has gone: %v", in.Instances())
	}
	if err := in.Write("-:a"); err == nil {
		t.Errorf("deleted while b has it enabled")
	}
}

// A trigger of a synthetic event in one instance acts at what another one traces.
func TestSyntheticTraceoff(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push v=%di"))
	must(t, in.WriteSynthetic("foo u64 v"))
	b, err := in.NewInstance("b")
	must(t, err)
	must(t, b.WriteTrigger("synthetic", "foo", "traceoff"))
	must(t, b.Enable("kprobes", "a", true))
	must(t, in.WriteTrigger("kprobes", "a", "hist:keys=common_pid:val1=v:onchange($val1).trace(foo,$val1)"))
	goes(prog, 10, "f_push")
	in.drain()
	b.pollMu.Lock()
	set := b.set.Tracing()
	b.pollMu.Unlock()
	n := lines(t, b, "a")
	goes(prog, 10, "f_push")
	if again := lines(t, b, "a"); set || b.Tracing() || again != n {
		t.Errorf("tracing is on: %v, %v; %d lines, then %d", set, b.Tracing(), n, again)
	}
}

func TestSyntheticPIDs(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push v=%di"))
	must(t, in.WriteSynthetic("foo u64 v"))
	b, err := in.NewInstance("b")
	must(t, err)
	must(t, b.AddPIDs("1", false))
	must(t, b.Enable("synthetic", "foo", true))
	must(t, in.WriteTrigger("kprobes", "a", "hist:keys=common_pid:val1=v:onchange($val1).trace(foo,$val1)"))
	goes(prog, 10, "f_push")
	if n := lines(t, b, "foo"); n != 0 {
		t.Errorf("%d records of threads that are not chosen", n)
	}
}

// The snapshot has no records of an event that was deleted.
func TestSnapshotDeleted(t *testing.T) {
	prog, in := instance(t, nil)
	must(t, in.Write("p:a f_push v=%di"))
	must(t, in.Enable("kprobes", "a", true))
	goes(prog, 10, "f_push")
	must(t, in.Enable("kprobes", "a", false))
	in.Snapshot()
	if s := text(t, in.WriteSnapshot); !strings.Contains(s, ": a: ") {
		t.Errorf("the snapshot is\n%s", s)
	}
	must(t, in.Write("-:a"))
	if s := text(t, in.WriteSnapshot); strings.Contains(s, ": a: ") {
		t.Errorf("records of a deleted event in the snapshot:\n%s", s)
	}
}

// Who waits for records is woken where the snapshot brings some back.
func TestSnapshotWakes(t *testing.T) {
	in := New(nil, nil)
	_, err := in.Mark(1, "one")
	must(t, err)
	in.Snapshot()
	p := in.Pipe()
	ready, more := p.Ready()
	if ready {
		t.Fatal("there is something to read")
	}
	in.Snapshot()
	select {
	case <-more:
	case <-time.After(patience):
		t.Error("nobody is woken")
	}
	if b, err := p.Read(context.Background(), 100, false); err != nil || !strings.Contains(string(b), "one") {
		t.Errorf("%q: %v", b, err)
	}
}
