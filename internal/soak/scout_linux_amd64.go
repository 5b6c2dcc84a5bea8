package soak

import (
	"fmt"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/target/process"
)

// know finds out which instructions of the program run, and has the referee count.
func (s *Stage) know() error {
	if s.ran != nil {
		return nil
	}
	if s.Referee != Callgrind {
		ran, err := s.scout()
		s.ran = ran
		return err
	}
	for i := range s.refs {
		c, err := s.callgrind(i == 1)
		if err != nil {
			return err
		}
		s.refs[i] = c
	}
	s.ran = s.refs[0]
	return nil
}

// scoutEvents is the most functions that are counted at once.
const scoutEvents = 60000

// scout runs the program with a counter at every function that a pattern finds, and gives the
// instructions of those that ran. What the program writes must be right.
func (s *Stage) scout() (counts, error) {
	st, err := s.streams()
	if err != nil {
		return nil, err
	}
	defer st.close()
	proc, held, err := process.Start(s.startCommand(st))
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	st.started()
	ran, err := s.countAll(proc, held, st)
	if err != nil {
		_ = proc.Signal(9)
	}
	ps, werr := proc.Wait()
	if err != nil || werr != nil {
		return nil, fmt.Errorf("counters at every function: %w", firstOf(err, werr))
	}
	o, err := st.collect(ps)
	if err != nil {
		return nil, err
	}
	if d := o.differs(s.plain); d != "" {
		return nil, fmt.Errorf("counters at every function: %s", d)
	}
	return ran, nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Stage) countAll(proc *process.Proc, held *process.Stopped, st *streams) (counts, error) {
	t, err := process.Attach(proc, &process.TargetOptions{Stopped: held, Events: scoutEvents})
	if err != nil {
		return nil, err
	}
	core, err := kprobes.Open(t, nil)
	if err != nil {
		return nil, err
	}
	var defs []*event.Def
	for _, o := range s.Objects {
		text := "p " + o.Name + ":*"
		if o.Main {
			text = "p *"
		}
		d, err := event.Parse(text)
		if err != nil {
			return nil, err
		}
		if len(o.Image.Glob("*")) > 0 {
			defs = append(defs, d)
		}
	}
	evs, err := core.Add(defs, &kprobes.AddOptions{Count: true, Skip: func(string, error) {}})
	if err != nil {
		return nil, err
	}
	if err := t.Run(); err != nil {
		return nil, err
	}
	if err := st.waiting(proc.PID()); err != nil {
		return nil, err
	}
	if err := st.rest(); err != nil {
		return nil, err
	}
	<-proc.Exited()
	if err := core.Close(nil); err != nil {
		return nil, err
	}
	out := counts{}
	for _, e := range evs {
		if core.Counts(e).Hits == 0 {
			continue
		}
		stands := engine.OfEvent(e).Place
		o := s.object(stands.Module.Name)
		for _, at := range o.instructions(stands.Func) {
			out[place{o.Name, at}] = 0
		}
	}
	return out, nil
}
