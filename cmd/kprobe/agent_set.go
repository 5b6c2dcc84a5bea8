package main

import (
	"fmt"
	"strings"
	"time"

	"kprobes.dev/kprobes/internal/executables"
	"kprobes.dev/kprobes/target/process"
)

// probeSet has all processes of a program probed, those that run and those that come, until the target goes. An error says why none can be.
func (t *agentTarget) probeSet() (stop bool, err error) {
	file, err := executables.Find(t.is.Exe)
	if err != nil {
		return false, err
	}
	set, watchErr, err := executables.Open(executables.Options{File: file, Only: t.is.Only, Arm: t.arm, Refused: t.refused, Replaced: func() {
		t.a.say("replaced", "target", t.is.Name, "file", file.Path())
	}})
	if err != nil {
		return false, err
	}
	t.mu.Lock()
	t.set = set
	t.mu.Unlock()
	if watchErr != nil {
		t.a.say("trouble", "target", t.is.Name, "error", executables.WhyUnwatched(watchErr)+": new processes are probed some time after they have begun, and short ones are not seen")
	}
	looked := set.Looked()
	for {
		select {
		case why := <-t.stop:
			t.mu.Lock()
			t.ending = why
			t.mu.Unlock()
			set.Close()
			return true, nil
		case <-t.wake:
			t.arrange()
		case <-looked:
			t.hasLooked()
			looked = nil
		}
	}
}

// arm probes a process of the program. It goes on, whatever becomes of the probes.
func (t *agentTarget) arm(proc *process.Proc, stopped *process.Stopped) (executables.Member, error) {
	s, err := t.session(proc, &process.TargetOptions{Buffer: executableBuffer, Events: executableEvents, Stopped: stopped})
	if err != nil {
		return nil, err
	}
	p := newAgentProcess(t, s, nil)
	p.update(t.reason())
	if err := p.p.Run(); err != nil {
		p.leave("it can not go on")
		return nil, err
	}
	go p.attend()
	return p, nil
}

// refused says that a process can not be probed, and that execs are not seen any more (pid 0). Of each reason the first process is told.
func (t *agentTarget) refused(pid int, err error) {
	if pid == 0 {
		t.a.say("trouble", "target", t.is.Name, "error", err.Error())
		return
	}
	kind := strings.ReplaceAll(err.Error(), fmt.Sprintf("process %d", pid), "process PID")
	t.refusals.failed(kind, err, func() { t.a.say("refused", "target", t.is.Name, "pid", pid, "error", err.Error()) })
}

// replaced says that a process does not run the program any more.
func (t *agentTarget) replaced(p *agentProcess) {
	t.mu.Lock()
	set := t.set
	t.mu.Unlock()
	if set != nil {
		set.Replaced(p)
	}
}

// whyLeft is why a process of the program is being left.
func (t *agentTarget) whyLeft(p *agentProcess) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ending != "":
		return t.ending
	case p.p.s.proc.Alive():
		return fmt.Sprintf("process %d executes another program: its probes are gone", p.pid)
	}
	return "the process has ended"
}

// processesInShare is how many processes of a target are looked at as often as one alone. If there are more, each is looked at less often.
const processesInShare = 16

// share is how many times rarer a process of the target is looked at than one alone.
func (t *agentTarget) share() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return 1 + time.Duration(len(t.processes)/processesInShare)
}
