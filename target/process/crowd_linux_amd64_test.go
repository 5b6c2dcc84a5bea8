package process

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// work counts what a tracer does in stops: requests of ptrace, and reads of files and memory.
type work struct{ requests, reads, stops int }

// minus is what a stop takes more than one of o.
func (w work) minus(o work) work {
	return work{requests: w.requests/w.stops - o.requests/o.stops, reads: w.reads/w.stops - o.reads/o.stops}
}

// TestWorkPerThread counts what is done between the first thread's stop and the last one's release, for
// a thousand threads more. The time of that is the stall of the program.
func TestWorkPerThread(t *testing.T) {
	const few, many = 50, 1050
	var total [2]map[string]work
	for i, n := range []int{few, many} {
		total[i] = inStops(t, n)
	}
	for what, limit := range map[string]work{
		"a stop":      {requests: 5, reads: 1}, // interrupt, two for the registers, detach; the status of those in epoll_wait
		"preparation": {requests: 9, reads: 2}, // and rseq's place, the mask, the filters; the thread's id
		"a change":    {requests: 5, reads: 2}, // and its stack
		"the end":     {requests: 5, reads: 2},
	} {
		w := total[1][what].minus(total[0][what])
		t.Logf("%s: %.2f requests and %.2f reads a thread", what, float64(w.requests)/(many-few), float64(w.reads)/(many-few))
		if w.requests > limit.requests*(many-few) || w.reads > limit.reads*(many-few) {
			t.Errorf("%s takes %d requests and %d reads for %d threads more, in each stop: more than %d and %d a thread",
				what, w.requests, w.reads, many-few, limit.requests, limit.reads)
		}
	}
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
		reads, inside, releasing := 0, false, false
		stepHook = func(step string) {
			switch {
			case step == "interrupt" && !inside:
				w.stops++
				inside, releasing, reads = true, false, readsSoFar(t)
			case step == "detach" && !releasing: // from here on nothing is read
				releasing = true
				w.reads += readsSoFar(t) - reads
			case step == "seize" && releasing: // the next stop
				inside = false
			}
			if inside {
				w.requests++
			}
		}
		defer func() { stepHook = nil }()
		if err := f(); err != nil {
			t.Fatalf("%s with %d threads: %v", what, threads, err)
		}
		out[what] = w
	}
	during("a stop", func() error {
		s, err := p.Stop(&StopOptions{Attempts: 20})
		if err != nil {
			return err
		}
		return s.Release()
	})
	during("preparation", func() error { return tg.Prepare() })
	during("a change", func() error {
		return tg.stopped(func(s *Stopped) error { return tg.scanStacks(s, func(int, uint64, uint64) error { return nil }) })
	})
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
