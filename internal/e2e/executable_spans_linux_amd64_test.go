package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// The calls of all processes are spans, each of its own process, whether a call has two records or one; the sums are those of the processes.
func TestExecutableSpans(t *testing.T) {
	const n = 12
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	p := testprog.Start(t, b.prog)
	for _, flags := range [][]string{nil, {"--slower", "1ns", "--wait", "0s"}} {
		_ = os.Remove(b.file)
		c := newCollector(t)
		s := everywhere(t, p, append([]string{"spans", "-x", b.prog, "--otlp", c.url, "brief_work brief.n=$arg1:u64", "--kind", "client"}, flags...)...)
		b.run(n, 3)
		right(t, p, "go 50")
		r := s.end()
		of, total := b.counted()
		of[p.PID] = 50
		total += 50
		got := map[string]uint64{}
		for _, s := range c.spans {
			got[s.about["process.pid"]]++
			if s.name != "brief_work" || s.about["service.name"] != s.about["process.executable.name"] || s.attrs["thread.id"] != s.about["process.pid"] || s.attrs["brief.n"] == "" || s.kind != kindClient {
				t.Errorf("%+v", s)
			}
		}
		for pid, calls := range of {
			if got[fmt.Sprint(pid)] != calls {
				t.Errorf("%q: %d spans of process %d, which has made %d calls", flags, got[fmt.Sprint(pid)], pid, calls)
			}
		}
		sum := r.sums(t)
		if len(got) != n+1 || sum["spans"] != total || sum["sent"] != total || sum["left"]+sum["unjoined"]+sum["dropped"]+sum["active"]+sum["split"] != 0 {
			t.Errorf("%q: %d processes, sums %v, the processes have made %d calls: %v", flags, len(got), sum, total, r.outcome)
		}
	}
	right(t, p, "go 1")
}

// As text the spans of several processes of Go are those of each, and say whose they are.
func TestExecutableSpansText(t *testing.T) {
	prog := testprog.Copy(t, testprog.Build(t, "gowork"))
	p := testprog.Start(t, prog, "2")
	s := everywhere(t, p, "spans", "-x", prog, "main.Ints")
	want := map[int]uint64{p.PID: right(t, p, "go 10")["main.Ints"]}
	for range 2 {
		q := testprog.Start(t, prog, "4")
		want[q.PID] = right(t, q, "go 50")["main.Ints"]
		q.Quit(nil)
	}
	r := s.end()
	for pid, n := range want {
		if got := strings.Count(r.stdout, fmt.Sprintf("main.Ints process.pid=%d\n", pid)); uint64(got) != n {
			t.Errorf("%d lines of process %d, which has made %d calls: %.2000s", got, pid, n, r.stdout)
		}
	}
}
