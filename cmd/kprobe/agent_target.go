package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"kprobes.dev/kprobes/internal/agentconfig"
	"kprobes.dev/kprobes/internal/spanmaker"
	"kprobes.dev/kprobes/target/process"
)

func newAgentTarget(a *agentRun, is *agentconfig.Target) *agentTarget {
	t := &agentTarget{a: a, is: is, wake: make(chan struct{}, 1), stop: make(chan string, 1), done: make(chan struct{}), refusals: tellOnce{most: maxReasons}}
	t.sent.making, t.sent.losses.most = map[*spanmaker.Maker]*agentProcess{}, maxReasons
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

// run has the processes probed, one after the other, or all of a program at a time.
func (t *agentTarget) run() {
	defer close(t.done)
	defer t.endSending()
	<-t.wake // the probes are known
	for {
		t.arrange()
		stop, err := t.probe()
		switch {
		case stop:
			return
		case err != nil:
			t.waiting(err)
		default:
			t.told = ""
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

// probe has processes probed as long as there are any. stop says that the target goes. An error says why there is none.
func (t *agentTarget) probe() (stop bool, err error) {
	if t.is.Exe != "" {
		return t.probeSet()
	}
	p, err := t.open()
	if err != nil {
		return false, err
	}
	return t.follow(p), nil
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
	t.hasLooked()
	if t.told != err.Error() {
		t.told = err.Error()
		t.a.say("waiting", "target", t.is.Name, "why", t.told)
	}
}

// hasLooked notes that the processes that were there have been opened.
func (t *agentTarget) hasLooked() {
	t.mu.Lock()
	t.looked = true
	t.mu.Unlock()
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

// arrange makes the list of probes that of the file, and has the processes take it. Those that stay keep what they have counted.
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
			p = newAgentProbe(is)
		}
		delete(old, is.Key) // of two that say the same each has its own
		t.probes = append(t.probes, p)
	}
	for _, p := range t.processes {
		p.changed()
	}
}

// list gives the probes.
func (t *agentTarget) list() []*agentProbe {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.probes)
}

// reason is why the probes are wanted.
func (t *agentTarget) reason() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.why
}

// open opens the process and arms its probes.
func (t *agentTarget) open() (*agentProcess, error) {
	pid, err := t.pid()
	if err != nil {
		return nil, err
	}
	proc, err := process.OpenUnwaited(pid)
	if err != nil {
		return nil, err
	}
	s, err := t.session(proc, &process.TargetOptions{Buffer: agentBuffer, Events: executableEvents})
	if err != nil {
		return nil, err
	}
	p := newAgentProcess(t, s, s.proc.Exited())
	p.update(t.reason())
	t.hasLooked()
	go p.attend()
	return p, nil
}

// session takes a process, so that nobody else changes it. If that fails the process goes on, and is closed.
func (t *agentTarget) session(proc *process.Proc, o *process.TargetOptions) (*session, error) {
	release := func() error {
		if o.Stopped == nil {
			return nil
		}
		return o.Stopped.Release()
	}
	if err := proc.Lock(); err != nil {
		return nil, errors.Join(err, release(), proc.Close())
	}
	o.HandlerWait, o.Files = handlerWait, &t.a.files
	s, err := newSession(proc, o)
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return s, nil
}

// follow waits until a process has been left, and says whether the target goes.
func (t *agentTarget) follow(p *agentProcess) (stop bool) {
	file := time.NewTicker(targetEvery)
	defer file.Stop()
	for {
		select {
		case why := <-t.stop:
			p.finish(why)
			return true
		case <-p.gone:
			return false
		case <-t.wake:
			t.arrange()
		case <-file.C:
			if pid, err := t.pid(); err == nil && pid != p.pid {
				p.finish(fmt.Sprintf("the pidfile names process %d", pid))
				return false
			}
		}
	}
}
