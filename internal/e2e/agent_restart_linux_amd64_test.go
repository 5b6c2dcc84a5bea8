package e2e

import (
	"bytes"
	"fmt"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/testprog"
)

// Phases of a test in which an agent is killed and another one is started.
const (
	phaseFirst  = iota + 1 // the first agent is ready
	phaseKilled            // it is being killed, or the next one is not ready yet
	phaseSecond            // the next one is ready
)

// stream is short processes that run one after the other, some at a time, with the phases that they ran in.
type stream struct {
	b     *briefs
	phase atomic.Int32
	stop  chan struct{}
	all   sync.WaitGroup
	n     atomic.Int32

	mu  sync.Mutex
	ran []ran
}

// ran is a process that has ended, and the phases in which it began and ended.
type ran struct {
	pid      int
	from, to int32
}

// streamOf starts processes, until halt.
func streamOf(b *briefs, at int) *stream {
	s := &stream{b: b, stop: make(chan struct{})}
	s.phase.Store(phaseFirst)
	for range at {
		s.all.Go(func() {
			for {
				select {
				case <-s.stop:
					return
				default:
					s.run(int(s.n.Add(1)))
				}
			}
		})
	}
	return s
}

// run runs a process, and checks that it ends as it does without probes.
func (s *stream) run(i int) {
	var out bytes.Buffer
	cmd := exec.Command(s.b.prog, s.b.file, strconv.Itoa(100+i%100), strconv.Itoa(i%5))
	cmd.Stdout, cmd.Stderr = &out, &out
	one := ran{from: s.phase.Load()}
	if err := cmd.Start(); err != nil {
		s.b.t.Error(err)
		return
	}
	one.pid = cmd.Process.Pid
	if o := outcomeOf(s.b.t, cmd.Wait(), out.String(), ""); o.code != i%5 || o.stdout != "" {
		s.b.t.Errorf("process %d of %s: want status %d: %v", i, s.b.prog, i%5, o)
	}
	one.to = s.phase.Load()
	s.mu.Lock()
	s.ran = append(s.ran, one)
	s.mu.Unlock()
}

// wholly gives the processes that have begun and ended in a phase.
func (s *stream) wholly(phase int32) (pids []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.ran {
		if one.from == phase && one.to == phase {
			pids = append(pids, one.pid)
		}
	}
	return pids
}

// more waits until n processes have run wholly in a phase.
func (s *stream) more(phase int32, n int) {
	s.b.t.Helper()
	for had := -1; had < n; {
		now := 0
		within(s.b.t, fmt.Sprintf("a process of phase %d", phase), func() bool { now = len(s.wholly(phase)); return now > had })
		had = now
	}
}

// halt waits for the processes that run.
func (s *stream) halt() {
	close(s.stop)
	s.all.Wait()
}

// counts checks that an agent has counted each of these processes exactly, by the program's own count.
func (a *agentSession) counts(b *briefs, pids []int) {
	a.t.Helper()
	got := a.metrics()
	want, _ := b.counted()
	for _, pid := range pids {
		name := fmt.Sprintf(`kprobe_keyed_hits_total{target="shop",group="kprobes",event="by",common_pid="%d"}`, pid)
		if n, ok := got[name]; !ok || n != float64(want[pid]) {
			a.t.Errorf("the agent has %v hits of process %d (%v), which has made %d", n, pid, ok, want[pid])
		}
	}
	if left := got[`kprobe_series_left_out{target="shop",group="kprobes",event="by"}`]; left != 0 {
		a.t.Errorf("%v series are left out", left)
	}
}

// TestAgentRestarted kills an agent among short processes and starts another one among them. None is harmed, and those that ran wholly under one of the agents count exactly
// there; what the first one has counted is not in the second one. The long variant has 2,000 processes.
func TestAgentRestarted(t *testing.T) {
	n := 30
	if long {
		n = 1000
	}
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief")))
	p := testprog.Start(t, b.prog)
	before := stateOf(t, p.PID)
	a := newAgent(t)
	a.write(programOf("shop", b.prog, "", briefByPID, briefProbe))
	a.begin()
	old := right(t, p, "go 100")["brief_work"]
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="a"}`, float64(old))
	begun := time.Now()
	s := streamOf(b, 4)
	s.more(phaseFirst, n)
	first := s.wholly(phaseFirst)
	a.counts(b, first)
	s.phase.Store(phaseKilled)
	_ = a.cmd.Process.Kill()
	<-a.done
	s.more(phaseKilled, 4)
	a.begin()
	s.phase.Store(phaseSecond)
	now := right(t, p, "go 10")["brief_work"] - old
	s.more(phaseSecond, n)
	s.halt()
	took := time.Since(begun)
	second := s.wholly(phaseSecond)
	a.is(`kprobe_target_up{target="shop"}`, 1)
	a.counts(b, second)
	got := a.metrics()
	for _, pid := range first {
		if v, ok := got[fmt.Sprintf(`kprobe_keyed_hits_total{target="shop",group="kprobes",event="by",common_pid="%d"}`, pid)]; ok {
			t.Errorf("process %d had ended before this agent began, which has %v hits of it", pid, v)
		}
	}
	a.is(fmt.Sprintf(`kprobe_keyed_hits_total{target="shop",group="kprobes",event="by",common_pid="%d"}`, p.PID), float64(now))
	if of, _ := b.counted(); len(of) != int(s.n.Load()) {
		t.Errorf("%d processes have noted their counts, there were %d", len(of), s.n.Load())
	}
	t.Logf("%d processes in %v: %d wholly under the first agent, %d wholly under the second", s.n.Load(), took, len(first), len(second))
	a.stops()
	before.same(t)
	right(t, p, "go 10")
}
