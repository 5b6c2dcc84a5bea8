package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/testprog"
)

// work counts what a tracer does in stops: requests of ptrace, those of them that come once the last thread was told to stop,
// and reads of files and memory, range by range.
type work struct{ requests, late, reads, stops int }

// minus is what a stop takes more than one of o.
func (w work) minus(o work) work {
	return work{
		requests: w.requests/w.stops - o.requests/o.stops, late: w.late/w.stops - o.late/o.stops, reads: w.reads/w.stops - o.reads/o.stops,
	}
}

// TestWorkPerThread counts what is done between the first thread's stop and the last one's release, for
// a thousand threads more. The time of that is the stall of the program. A machine that has much else to do adds
// to it: threads stop late. What all of some attempts need is the tracer's.
func TestWorkPerThread(t *testing.T) {
	const attempts = 5
	var over []string
	for range attempts {
		if over = workOver(t); len(over) == 0 {
			return
		}
	}
	t.Errorf("in each of %d attempts; in the last one:\n%s", attempts, strings.Join(over, "\n"))
}

// workOver says what a thousand threads more take too much.
func workOver(t *testing.T) (over []string) {
	t.Helper()
	const few, many = 50, 1050
	var total [2]map[string]work
	for i, n := range []int{few, many} {
		total[i] = inStops(t, n)
	}
	const late, reads = 0.1, 0.5 // the status of those in epoll_wait, a fifth of them, is read; nothing else range by range
	for what, requests := range map[string]float64{
		"preparation":      9, // interrupt, two for the registers, detach; rseq's place, the mask, the filters
		"a change":         5,
		"a look at blocks": 6, // and rseq's place
		"the end":          5,
	} {
		w := total[1][what].minus(total[0][what])
		each := func(n int) float64 { return float64(n) / (many - few) }
		t.Logf("%s: %.2f requests, %.2f of them late, and %.2f reads a thread", what, each(w.requests), each(w.late), each(w.reads))
		if each(w.requests) > requests || each(w.late) > late || each(w.reads) > reads {
			over = append(over, fmt.Sprintf("%s takes %d requests, %d of them late, and %d reads for %d threads more, in each stop: more than %v, %v and %v a thread",
				what, w.requests, w.late, w.reads, many-few, requests, late, reads))
		}
	}
	return over
}

// inStops counts the work in the stops of a session on a program with so many threads.
func inStops(t *testing.T, threads int) map[string]work {
	t.Helper()
	prog := testprog.Start(t, testprog.Build(t, "crowd"), strconv.Itoa(threads))
	p, err := OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	tg, err := Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]work{}
	during := func(what string, f func() error) {
		t.Helper()
		var w work
		reads, last, inside, releasing := 0, 0, false, false
		ptrace.OnStep = func(step string) {
			switch {
			case step == "interrupt" && !inside:
				w.stops++
				inside, releasing, reads = true, false, readsSoFar(t)
			case step == "detach" && !releasing: // from here on nothing is read
				releasing = true
				w.reads += readsSoFar(t) - reads
				w.late += last
			case step == "seize" && releasing: // the next stop
				inside = false
			}
			if inside {
				w.requests++
				last++
			}
			if step == "interrupt" {
				last = 0
			}
		}
		defer func() { ptrace.OnStep = nil }()
		if err := f(); err != nil {
			t.Fatalf("%s with %d threads: %v", what, threads, err)
		}
		out[what] = w
	}
	during("preparation", func() error { return tg.Prepare() })
	during("a change", func() error {
		return tg.stopped(func(s *ptrace.Stopped) error { return tg.scanStacks(s, func(int, uint64, []byte) error { return nil }) })
	})
	during("a look at blocks", tg.CheckOwn)
	during("the end", tg.Close)
	if n := prog.Counts("count")["interrupted"]; n != 0 {
		t.Errorf("epoll_wait returned EINTR %d times", n)
	}
	return out
}

// readsSoFar is how many calls of read and its like this process has made.
func readsSoFar(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(l, "syscr: "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(v))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("/proc/self/io has no syscr")
	return 0
}
