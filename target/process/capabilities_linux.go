package process

import "kprobes.dev/kprobes/internal/target"

var _ target.Target = (*Target)(nil)

// Capabilities implements target.Target.
func (t *Target) Capabilities() target.Capabilities {
	return target.Capabilities{
		Finder:         t,
		ReturnReplacer: t,
		Reaper:         t,
		Tallier:        t,
		Filterer:       t,
		Exposed:        t,
		Sharer:         t,
		Beginner:       t,
		Sequencer:      t,
		Yielder:        t,
		PendingLister:  t,
		Reserver:       t,
		Caller:         t,
		Unwinder:       t,
		Sharing:        t,
		Watcher:        t,
		ModuleLoader:   t,

		Ended:        t.Ended,
		Stands:       t.Stands,
		FaultsCaught: t.FaultsCaught,
		RecordsComm:  t.RecordsComm,
		InHandler:    t.InHandler,
		Task:         t.Task,
		EndPool:      t.EndPool,
		Idle:         t.Idle,
		CodeUsed:     t.CodeUsed,
	}
}
