package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"kprobes.dev/kprobes/internal/agentconfig"
	"kprobes.dev/kprobes/internal/metrics"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spans"
	"kprobes.dev/kprobes/target/process"
)

// agentTarget is a target of the agent: a process that runs, or is waited for.
type agentTarget struct {
	a    *agentRun
	is   *agentconfig.Target
	wake chan struct{} // the probes have changed
	stop chan string   // the target goes, and why
	done chan struct{} // closed when it has gone
	told string        // what has been said of why there is no process

	mu      sync.Mutex // held while counts are read, and while what is counted changes
	want    []*agentconfig.Probe
	why     string // the probes are wanted
	probes  []*agentProbe
	process *agentProcess // nil: there is none
	opened  uint64        // processes that had probes
	looked  bool          // the process, if it was there, has been opened
	sent    agentSpans
}

// agentProbe is a probe of the file, with what it has counted in processes that have ended.
type agentProbe struct {
	is     *agentconfig.Probe
	counts []*eventCounts
	hists  *metrics.Set
	shown  map[string]*metrics.Counted // by event
	failed uint64                      // processes in which it could not be armed
}

// agentSpans is what has become of calls.
type agentSpans struct {
	made spans.Stats // by processes that have ended
	sent otlp.Stats  // by exporters that are closed
	open []*otlp.Exporter
}

func newAgentTarget(a *agentRun, is *agentconfig.Target) *agentTarget {
	t := &agentTarget{a: a, is: is, wake: make(chan struct{}, 1), stop: make(chan string, 1), done: make(chan struct{})}
	go t.run()
	return t
}

// change says which probes are wanted.
func (t *agentTarget) change(want []*agentconfig.Probe, why string) {
	t.mu.Lock()
	t.want, t.why = want, why
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default: // it has not looked yet
	}
}

// end takes all probes out, and waits until that is done.
func (t *agentTarget) end(why string) {
	t.stop <- why
	<-t.done
}

// targetEvery is the time between two looks for a process that is not there.
const targetEvery = time.Second

// run has the process probed, and the one after it.
func (t *agentTarget) run() {
	defer close(t.done)
	<-t.wake // the probes are known
	for {
		t.arrange()
		p, err := t.open()
		switch {
		case err != nil:
			t.waiting(err)
		default:
			t.told = ""
			why, stop := t.attend(p)
			t.leave(p, why)
			if stop {
				return
			}
		}
		if t.is.PID != 0 && (err == nil || errors.Is(err, process.ErrNoProcess)) {
			t.over()
			return
		}
		select {
		case <-t.stop:
			return
		case <-t.wake:
		case <-time.After(targetEvery):
		}
	}
}

// over waits until the target goes. There is no process any more: its number may be another's by now.
func (t *agentTarget) over() {
	for {
		select {
		case <-t.stop:
			return
		case <-t.wake:
			t.arrange()
		}
	}
}

// waiting says once why there is no process.
func (t *agentTarget) waiting(err error) {
	t.mu.Lock()
	t.looked = true
	t.mu.Unlock()
	if t.told != err.Error() {
		t.told = err.Error()
		t.a.say("waiting", "target", t.is.Name, "why", t.told)
	}
}

// pid finds the process.
func (t *agentTarget) pid() (int, error) {
	if t.is.PID != 0 {
		return t.is.PID, nil
	}
	text, err := os.ReadFile(t.is.PIDFile)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 32)
	if err != nil || pid < 1 {
		return 0, fmt.Errorf("pidfile %s: %.40q is no number of a process", t.is.PIDFile, text)
	}
	return int(pid), nil
}

// arrange makes the list of probes that of the file. Those that stay keep what they have counted.
func (t *agentTarget) arrange() {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := map[string]*agentProbe{}
	for _, p := range t.probes {
		old[p.is.Key] = p
	}
	t.probes = nil
	for _, is := range t.want {
		p := old[is.Key]
		if p == nil {
			p = &agentProbe{is: is, hists: metrics.NewSet(), shown: map[string]*metrics.Counted{}}
		}
		delete(old, is.Key) // of two that say the same each has its own
		t.probes = append(t.probes, p)
	}
}

// open opens the process and arms its probes.
func (t *agentTarget) open() (*agentProcess, error) {
	pid, err := t.pid()
	if err != nil {
		return nil, err
	}
	p, err := openAgentProcess(t, pid)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.process = p
	t.opened++
	t.mu.Unlock()
	p.update(t.reason())
	t.mu.Lock()
	t.looked = true
	t.mu.Unlock()
	return p, nil
}

// reason is why the probes are wanted.
func (t *agentTarget) reason() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.why
}

// attend follows a process until it ends or is given up. stop says that the target goes.
func (t *agentTarget) attend(p *agentProcess) (why string, stop bool) {
	look := time.NewTimer(syncEvery)
	defer look.Stop()
	file := time.NewTicker(targetEvery)
	defer file.Stop()
	for {
		select {
		case why := <-t.stop:
			return why, true
		case <-p.p.Exited():
			return "the process has ended", false
		case <-t.wake:
			t.arrange()
			p.update(t.reason())
		case <-file.C:
			if pid, err := t.pid(); err == nil && pid != p.pid {
				return fmt.Sprintf("the pidfile names process %d", pid), false
			}
		case <-p.pending:
		case <-look.C:
		}
		if why := p.follow(); why != "" {
			return why, false
		}
		look.Reset(syncEvery)
	}
}

// leave takes all out of a process, and keeps what it has counted.
func (t *agentTarget) leave(p *agentProcess, why string) {
	err := p.close()
	t.mu.Lock()
	for _, one := range t.probes {
		if armed := p.probes[one]; armed != nil {
			one.keep(p, armed)
		}
	}
	t.process = nil
	t.mu.Unlock()
	args := []any{"target", t.is.Name, "pid", p.pid, "why", why}
	if err != nil && !errors.Is(err, process.ErrNoProcess) {
		args = append(args, "error", err.Error())
	}
	t.a.say("left", args...)
}
