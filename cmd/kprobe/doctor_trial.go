package main

import (
	"errors"
	"fmt"
	"os"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/workload"
	"kprobes.dev/kprobes/target/process"
)

// trialCalls is how often the trial's function is called.
const trialCalls = 3200

// trial starts this program as a workload, counts the calls of a function of it and
// compares with what it says itself.
func trial() (err error) {
	dir, err := os.MkdirTemp("", "kprobe-doctor-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path, err := copySelf(dir)
	if err != nil {
		return err
	}
	w, err := workload.Start(path, workloadVerb)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	s, err := attach(w.PID(), process.TargetOptions{Events: ringEvents})
	if err != nil {
		return err
	}
	defer s.proc.Close()
	return errors.Join(s.countCalls(w), s.core.Close(nil))
}

// countCalls probes a function of the workload while it is called.
func (s *session) countCalls(w *workload.Program) error {
	const function = "bench_lea"
	at, err := s.target.Space().Resolve(symbol.Place{Sym: workload.Symbols[function]})
	if err != nil {
		return err
	}
	d, err := event.Parse(fmt.Sprintf("p:trial 0x%x", at.Vaddr))
	if err != nil {
		return err
	}
	evs, err := s.core.Add([]*event.Def{d}, &kprobes.AddOptions{Count: true})
	if err != nil {
		return err
	}
	r, err := w.Run(function, trialCalls, 1)
	if err != nil {
		return err
	}
	if n := s.core.Counts(evs[0]).Hits; n != r.Calls {
		return fmt.Errorf("%d hits of %d calls were counted", n, r.Calls)
	}
	return nil
}

func checkTrial(err error) finding {
	if err != nil {
		return fine("trial", "%s", escapedError(err)).fail("this is what every probe does: the lines above may tell why it fails here")
	}
	return fine("trial", "a process was probed: all of %d calls were counted, and it went on", trialCalls)
}
