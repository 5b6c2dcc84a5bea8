package guest

import "kprobes.dev/kprobes/internal/target"

var _ target.Target = (*Target)(nil)

// Capabilities implements target.Target.
func (t *Target) Capabilities() target.Capabilities {
	return target.Capabilities{
		Describer:     t,
		Recoverer:     t,
		Finder:        t,
		Reaper:        t,
		Tallier:       t,
		Clocked:       t,
		PendingLister: t,
		Caller:        t,
		Namer:         t,
		Watcher:       t,
		ModuleLoader:  t,

		FuncDenied: t.FuncDenied,
		Alive:      t.Alive,
		Ended:      func() bool { return t.ended.Load() != nil },
		InHandler:  t.InHandler,
		Task:       t.Task,
		EndPool:    t.EndPool,
		Idle:       t.Idle,
		CPUs:       t.CPUs,
	}
}
