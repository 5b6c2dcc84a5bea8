package e2e

import (
	"strconv"
	"strings"
	"testing"
)

// A process that traces another has that one's ring mapped and its descriptor open. They are
// no leftovers: list, detach and trace leave them alone, also once the tracer is a target
// itself and what was put into it is taken out again.
func TestTracerOfTracer(t *testing.T) {
	p := program(t, "work", "1")
	old := right(t, p, "count")
	s := trace(t, p.PID, "--alone", "p:a f_push a=%di", "r:b f_push ret=$retval")
	tracer := strconv.Itoa(s.cmd.Process.Pid)
	untouched := func(verb string, words ...string) {
		t.Helper()
		o := run(t, command(t, verb, "-p", tracer))
		if o.code != 0 || o.stdout != "" || !strings.Contains(o.stderr, strings.Join(words, " ")) {
			t.Fatalf("kprobe %s on a tracer: %v", verb, o)
		}
		right(t, p, "go 100")
	}
	untouched("list")
	untouched("detach", "holds nothing of ours")

	// One that ends well takes out what is its own.
	const probe = "p:poll kprobes.dev/kprobes/internal/engine/records.(*Reader).Poll"
	if o := run(t, command(t, "trace", "-p", tracer, "--stat", "--count", "20", probe)); o.code != 0 || totals(o.stderr)["poll"].hits < 20 {
		t.Fatalf("trace of a tracer: %v", o)
	}
	untouched("detach", "holds nothing of ours")

	// One that is killed leaves only what is its own.
	k := &session{t: t, pid: s.cmd.Process.Pid}
	k.start(command(t, "trace", "-p", tracer, "--alone", "--stat", probe))
	k.armed()
	right(t, p, "go 100")
	if err := k.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-k.done
	if o := run(t, command(t, "list", "-p", tracer)); !strings.Contains(o.stdout, "Poll") {
		t.Fatalf("list of a tracer that was a target: %v", o)
	}
	untouched("detach", "sites restored, ")
	untouched("detach", "holds nothing of ours")

	n := right(t, p, "go 100")
	r := s.end()
	for _, e := range []string{"a", "b"} {
		r.counted(t, e, n["f_push"]-old["f_push"], "jump")
	}
	r.whole(t)
}
