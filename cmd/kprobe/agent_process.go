package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/spanmaker"
	"kprobes.dev/kprobes/target/process"
)

// agentBuffer is the size of the ring for each CPU, in bytes. A program of which there may be thousands of processes has executableBuffer.
const agentBuffer = 1 << 20

// newAgentProcess makes a process one of the target's, and reads its hits from now on. attend follows.
func newAgentProcess(t *agentTarget, s *session, exited <-chan struct{}) *agentProcess {
	p := &agentProcess{
		t: t, pid: s.proc.PID(), p: &tracedProcess{probed: probed{core: s.core}, s: s}, exited: exited, probes: map[*agentProbe]*agentArmed{},
		wake: make(chan struct{}, 1), end: make(chan string, 1), gone: make(chan struct{}), pending: make(chan struct{}, 1),
		stop: make(chan struct{}), read: make(chan struct{}), said: map[string]bool{}, known: map[*hit.Event]*agentHist{}, hists: map[string]*agentHist{},
	}
	t.mu.Lock()
	t.processes = append(t.processes, p)
	t.opened++
	t.mu.Unlock()
	go p.reading()
	return p
}

// changed has the process take the target's probes anew.
func (p *agentProcess) changed() {
	select {
	case p.wake <- struct{}{}:
	default: // it has not looked yet
	}
}

// finish has the process be left, and waits until that is done. It may be called several times.
func (p *agentProcess) finish(why string) {
	select {
	case p.end <- why:
	default:
	}
	<-p.gone
}

// attend follows the process until it ends or is given up, and leaves it.
func (p *agentProcess) attend() {
	look := time.NewTimer(syncEvery)
	defer look.Stop()
	for {
		select {
		case why := <-p.end:
			p.leave(why)
			return
		case <-p.exited:
			p.leave("the process has ended")
			return
		case <-p.wake:
			p.update(p.t.reason())
		case <-p.pending:
		case <-look.C:
		}
		if why := p.follow(); why != "" {
			p.over(why)
			return
		}
		look.Reset(syncEvery * p.t.share())
	}
}

// over leaves a process whose program has ended. One of a set is left when the set says so.
func (p *agentProcess) over(why string) {
	for p.exited == nil {
		p.t.replaced(p)
		select {
		case why := <-p.end:
			p.leave(why)
			return
		case <-time.After(syncEvery): // it had not become a member yet
		}
	}
	p.leave(why)
}

// Leave implements executables.Member.
func (p *agentProcess) Leave() (children []int) {
	p.finish(p.t.whyLeft(p))
	return p.p.s.target.Children()
}

// leave takes all out of the process, and keeps what it has counted. Nothing is left of it here.
func (p *agentProcess) leave(why string) {
	err := p.close()
	for one, armed := range p.probes {
		one.keep(armed)
	}
	err = errors.Join(err, p.p.s.target.Discard())
	t := p.t
	t.mu.Lock()
	t.processes = slices.DeleteFunc(t.processes, func(o *agentProcess) bool { return o == p })
	t.mu.Unlock()
	var args []any
	if err != nil && !errors.Is(err, process.ErrNoProcess) {
		args = []any{"error", err.Error()}
	}
	p.say("left", append([]any{"why", why}, args...)...)
	close(p.gone)
}

// maxAgentPause bounds the time between two looks at a ring, which may fill up meanwhile; a thread may wait for Sync.
const maxAgentPause = 100 * time.Millisecond

// reading takes the hits until it is told to stop.
func (p *agentProcess) reading() {
	defer close(p.read)
	idle := time.NewTimer(0)
	defer idle.Stop()
	for pause := pollMin; ; {
		pause = min(2*pause, 5*pollMax*p.t.share(), maxAgentPause)
		if p.poll() > 0 {
			pause = pollMin
		}
		if p.p.Pending() {
			select {
			case p.pending <- struct{}{}:
			default:
			}
		}
		idle.Reset(pause)
		select {
		case <-p.stop:
			return
		case <-idle.C:
		}
	}
}

// poll takes the hits that are there.
func (p *agentProcess) poll() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.p.Poll(p.take)
	p.p.Losses(false, p.lose)
	return n
}

// take takes a hit. Precondition: p.mu is held.
func (p *agentProcess) take(h *hit.Hit) {
	if p.spans != nil {
		p.spans.Hit(h)
	}
	to, ok := p.known[h.Event]
	if !ok {
		to = p.hists[h.Event.Group+"/"+h.Event.Name]
		p.known[h.Event] = to
	}
	if to == nil {
		return
	}
	vs, comm, err := decoded(h, p.values, p.p.s.names)
	p.values = vs
	if err != nil {
		return // the ring's reader counts what is damaged
	}
	to.hist.Add(h, vs, comm)
}

// lose takes that hits were lost. Precondition: p.mu is held.
func (p *agentProcess) lose(*event.Def, int, uint64) {
	if p.spans != nil {
		p.spans.Lost()
	}
}

// say writes an audit line about the process.
func (p *agentProcess) say(what string, args ...any) {
	p.t.a.say(what, append([]any{"target", p.t.is.Name, "pid", p.pid}, args...)...)
}

// once says what goes wrong, the first time.
func (p *agentProcess) once(what string, err error) {
	if !p.said[err.Error()] {
		p.said[err.Error()] = true
		p.say(what, "error", err.Error())
	}
}

// update makes the probes of the process those of the target.
func (p *agentProcess) update(why string) {
	probes, wanted := p.t.list(), map[*agentProbe]bool{}
	for _, one := range probes {
		wanted[one] = true
	}
	for one, armed := range p.probes {
		if !wanted[one] && !one.is.Spans {
			p.disarm(one, armed, why)
		}
	}
	p.updateSpans(probes, why)
	for _, one := range probes {
		if p.probes[one] == nil && !one.is.Spans {
			p.arm(one, why)
		}
	}
}

// disarm takes a probe out, which keeps what it has counted.
func (p *agentProcess) disarm(one *agentProbe, armed *agentArmed, why string) {
	if err := p.p.core.Remove(armed.evs); err != nil {
		p.say("disarm failed", "probe", one.is.Define, "error", err.Error())
	}
	p.poll() // its last hits
	p.mu.Lock()
	clear(p.known)
	for _, h := range armed.hists {
		delete(p.hists, h.group+"/"+h.name)
	}
	p.mu.Unlock()
	one.keep(armed)
	delete(p.probes, one)
	if len(armed.evs) > 0 {
		p.say("disarmed", "probe", one.is.Define, "why", why)
	}
}

// set notes what is armed of a probe.
func (p *agentProcess) set(one *agentProbe, armed *agentArmed) {
	p.probes[one] = armed
	one.note(armed)
}

// arm arms a probe, or says why it can not be.
func (p *agentProcess) arm(one *agentProbe, why string) {
	armed := &agentArmed{probed: probed{core: p.p.core}, p: p}
	err := p.tryArm(one, armed)
	if err != nil {
		armed.evs, armed.hists = nil, nil
		p.set(one, armed)
		p.say("arm failed", "probe", one.is.Define, "why", why, "error", err.Error())
		return
	}
	p.mu.Lock()
	clear(p.known)
	for _, h := range armed.hists {
		p.hists[h.group+"/"+h.name] = h
	}
	p.mu.Unlock()
	p.set(one, armed)
	p.say("armed", "probe", one.is.Define, "events", len(armed.evs), "why", why)
}

func (p *agentProcess) tryArm(one *agentProbe, armed *agentArmed) error {
	d, err := one.is.Def()
	if err != nil {
		return err
	}
	o := p.addOptions(one)
	o.Count = d.Filter == "" && d.Hist == nil
	if armed.evs, err = p.p.core.Add([]*event.Def{d}, o); err != nil || d.Hist == nil {
		return err
	}
	e := engine.Of(p.p.core)
	for _, ev := range armed.evs {
		h := &agentHist{group: ev.Group, name: ev.Name, ev: engine.OfEvent(ev)}
		switch {
		case e.Program(h.ev) == nil:
			err = fmt.Errorf("%s: its object is not there: a histogram needs it", ev.Name)
		case len(armed.hists) > 0 && armed.hists[len(armed.hists)-1].name == h.name:
			err = fmt.Errorf("%s has several probes: a histogram of the agent takes one, or a pattern without f", ev.Name)
		default:
			h.hist, err = e.NewHistogram(h.ev)
		}
		if err != nil {
			return errors.Join(err, p.p.core.Remove(armed.evs))
		}
		armed.hists = append(armed.hists, h)
	}
	return nil
}

// addOptions are those of a probe.
func (p *agentProcess) addOptions(one *agentProbe) *kprobes.AddOptions {
	left := 0
	return &kprobes.AddOptions{Late: true, Found: true, Inlines: kprobes.InlinesAuto, Budget: kprobes.Budget(one.is.Budget), Skip: func(name string, why error) {
		if left++; left == 1 { // of a pattern there may be thousands
			p.say("left out", "probe", one.is.Define, "function", name, "error", spanmaker.Reason(why).Error())
		}
	}}
}

// follow follows what changes in the process, and says why it has ended; "": it has not.
func (p *agentProcess) follow() string {
	ended, err := p.p.Sync()
	switch {
	case ended && err != nil:
		return err.Error()
	case ended:
		return "the process has ended"
	case err != nil:
		p.once("trouble", err)
	}
	for _, armed := range p.probes {
		armed.Exceeded(func(name string, why error) { p.say("disabled", "event", name, "why", "budget: "+why.Error()) })
	}
	return ""
}

// close takes all out of the process. What its events have counted can still be read.
func (p *agentProcess) close() error {
	close(p.stop)
	<-p.read
	p.mu.Lock()
	err := p.p.Leave(p.take)
	p.p.Losses(true, p.lose)
	p.mu.Unlock()
	p.runtime = nil // has been taken out
	p.endSpans("the process is left")
	return errors.Join(err, p.p.Close())
}
