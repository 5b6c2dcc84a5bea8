package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testprog"
)

// Of the functions of busy programs that are armed all at once few have to wait for a thread
// that is in the way, and a second later at most one in a hundred does. The programs compute
// right meanwhile, and nothing is left in them.
func TestShareThatWaits(t *testing.T) {
	for _, b := range []struct {
		name, program string
		args          []string
		work          string
		probes        []string
	}{
		{"signals", "sigs", []string{"4"}, "go 60000", []string{"p *", "p libc.so.6:*printf*", "p libc.so.6:*sig*", "p libc.so.6:*pthread*"}},
		{"threads", "work", []string{"8"}, "go 20000", []string{"p *"}},
		{"returns", "work", []string{"8"}, "go 20000", []string{"r *"}},
		{"goroutines", "gowork", []string{"8"}, "go 600", []string{"p *"}},
	} {
		t.Run(b.name, func(t *testing.T) {
			p := program(t, b.program, b.args...)
			busy := busied(p, b.work)
			c := open(t, p)
			busy.begin(t)
			shareThatWaits(t, c, b.probes)
			busy.end(t)
			if err := c.Close(nil); err != nil {
				t.Error(err)
			}
			right(t, p, b.work)
		})
	}
}

// shareThatWaits arms probes, and waits until at most one in a hundred waits.
func shareThatWaits(t *testing.T, c *kprobes.Core, probes []string) {
	t.Helper()
	left := 0
	evs, err := c.Add(parsed(t, probes...), &kprobes.AddOptions{Count: true, Skip: func(string, error) { left++ }})
	if err != nil {
		t.Fatal(err)
	}
	first := c.Stats()
	time.Sleep(time.Second)
	o := c.Stats()
	t.Logf("%d probes, %d left out; at once %d wait, %d of them unarmed; a second later %d, %d; %q", o.Probes, left, first.Queued, first.Unarmed, o.Queued, o.Unarmed, o.Why)
	for end := time.Now().Add(patience); o.Queued*100 > o.Probes; o = c.Stats() {
		if time.Now().After(end) {
			t.Fatalf("%d of %d probes wait after %v: %q", o.Queued, o.Probes, patience, o.Why)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if len(evs) != o.Probes || first.Postponed < uint64(first.Queued) {
		t.Errorf("%d events, of %+v, then %+v", len(evs), first, o)
	}
}

// busyness has a program do its work again and again.
type busyness struct {
	p    *testprog.Proc
	work string
	stop chan struct{}
	done sync.WaitGroup
	bad  uint64
}

func busied(p *testprog.Proc, work string) *busyness {
	return &busyness{p: p, work: work, stop: make(chan struct{})}
}

func (b *busyness) begin(t testing.TB) {
	t.Helper()
	b.done.Go(func() {
		for {
			select {
			case <-b.stop:
				return
			default:
				b.bad += b.p.Counts(b.work)["bad"]
			}
		}
	})
}

func (b *busyness) end(t testing.TB) {
	t.Helper()
	close(b.stop)
	b.done.Wait()
	if b.bad > 0 {
		t.Error(fmt.Sprint(b.bad, " results are wrong"))
	}
}

// `kprobe list` tells of a probe that a thread is in the way of, from the process's memory, and
// the summary of the trace that it had to wait.
func TestListTellsWhoWaits(t *testing.T) {
	const says = "postponed: queued: "
	for _, arg := range []string{"", "mask"} {
		p := program(t, "stand", strings.Fields(arg)...)
		p.Counts("in")
		s := trace(t, p.PID, "--counters", "p:a stand", "p:b first")
		listed := func(want string) {
			t.Helper()
			var o outcome
			for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				o = run(t, command(t, "list", "-p", fmt.Sprint(p.PID)))
				if strings.Contains(o.stdout, "  k  stand+0x0    "+want+"\n") && strings.Contains(o.stdout, "  k  first+0x0    [OPTIMIZED]\n") {
					return
				}
			}
			t.Fatalf("stand %s: %s", arg, o.stdout)
		}
		listed(says + "a thread is in the way of a jump")
		p.Counts("out") // no breakpoint serves meanwhile, which nobody has asked for
		listed("[OPTIMIZED]")
		p.Counts("go 100")
		r := s.end()
		r.counted(t, "a", 100, "jump")
		r.counted(t, "b", 100, "jump")
		if !strings.Contains(r.stderr, "kprobe: 1 of 2 probes had to wait for a thread that was in the way, 0 do still\n") {
			t.Errorf("stand %s: the summary does not tell:\n%s", arg, r.stderr)
		}
	}
}
