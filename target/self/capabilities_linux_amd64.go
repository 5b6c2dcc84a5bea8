package self

import "kprobes.dev/kprobes/internal/target"

var _ target.Target = (*Target)(nil)

// Capabilities implements target.Target.
func (t *Target) Capabilities() target.Capabilities {
	return target.Capabilities{
		Own:     true,
		Finder:  t,
		Reaper:  t,
		Tallier: t,
		Exposed: t,
		Caller:  t.caller,
		Watcher: t,

		ModuleLoader: t.modules,

		Unwinder: t,
		Sharing:  t,

		FuncDenied:   t.FuncDenied,
		FaultsCaught: t.FaultsCaught,
		InHandler:    t.InHandler,
		Guards:       t.Guards,
		CallGo:       callGo,
		EndPool:      t.EndPool,
		Idle:         t.Idle,
		CodeUsed:     t.CodeUsed,
	}
}
