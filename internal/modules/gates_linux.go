package modules

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// gateProbe makes a probe of the engine's own at a function's entry, each hit of which is a gate's.
func gateProbe(function string, gate uint64) *engine.Probe {
	h := engine.Handlers{InLine: []*target.InLine{{Kind: target.InLinePre, Gate: gate}}, Changed: func(uint64, bool) {}}
	return engine.NewProbe(event.Place{Kind: event.PlaceSymbol, Symbol: function}, h, engine.ProbeOptions{Internal: true})
}

// stand arms the probes that lead to gates, at those of their functions that there are and where one can stand. The error says why there is none at one of the others.
func (tb *Table) stand(gates ...*target.ModuleGate) (ps []*engine.Probe, why error) {
	var all []*engine.Probe
	var names []string
	for _, g := range gates {
		for _, name := range g.At {
			all, names = append(all, gateProbe(name, g.Gate)), append(names, name)
		}
	}
	if err := tb.core.Register(all, true); err != nil {
		return nil, err
	}
	for i, p := range all {
		var missing *symbol.NotFoundError
		switch err := p.Refused(); {
		case err == nil:
			ps = append(ps, p)
		case !errors.As(err, &missing):
			why = fmt.Errorf("%s: %w", names[i], err)
		}
	}
	if len(ps) == 0 && why == nil {
		why = errno.Errorf(unix.ENOENT, "the target has none of the functions %q", names)
	}
	return ps, why
}

// fall takes probes out that lead to a gate.
func (tb *Table) fall(ps []*engine.Probe) {
	if len(ps) == 0 {
		return
	}
	tb.core.Unregister(func(end func(*engine.Probe)) {
		for _, p := range ps {
			end(p)
		}
	})
}

// catchFaults has faults in handlers come to the gates that end these, where the target does not see them by itself.
func (tb *Table) catchFaults() {
	if len(tb.runtime.Faulted) == 0 || len(tb.faulted) > 0 {
		return
	}
	ps, err := tb.stand(tb.runtime.Faulted...)
	tb.faulted = ps
	if err != nil {
		tb.log.say(4, fmt.Sprintf("a fault in a handler may not be contained: %v\n", err))
	}
}

// uncatchFaults ends that, where there is no module any more.
func (tb *Table) uncatchFaults() {
	if tb.Empty() {
		tb.fall(tb.faulted)
		tb.faulted = nil
	}
}

// call runs the start or the end of a module.
func (tb *Table) call(m *Module, fn uint64) (int64, error) {
	if g := tb.runtime.Starter; g != nil {
		ps, err := tb.stand(g)
		if len(ps) == 0 {
			return 0, errors.Join(errno.Errorf(unix.EOPNOTSUPP, "nothing can run the start of a module here"), err)
		}
		defer tb.fall(ps)
	}
	return m.m.Call(fn, tb.serving(m))
}
