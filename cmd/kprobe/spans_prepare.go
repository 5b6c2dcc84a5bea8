package main

import (
	"errors"
	"fmt"
	"slices"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/spans"
)

// functionKey tells functions apart that a definition stands for.
type functionKey struct {
	call *spanned
	addr uint64 // of one of a pattern
}

// prepare notes which probe is which, and which functions have both.
func (g *spanning) prepare(s tracee) error {
	p := s.(probedCore)
	of := map[*event.Def]*spanProbe{}
	for _, c := range g.calls {
		if c.entry != nil {
			of[c.entry] = &spanProbe{role: roleEntry, call: c}
		}
		of[c.ret] = &spanProbe{role: roleReturn, call: c}
	}
	for d, r := range g.runtime {
		of[d] = &spanProbe{role: r}
	}
	g.probes, g.known = map[string]*spanProbe{}, map[*hit.Event]*spanProbe{}
	functions, has := map[functionKey]*spans.Func{}, map[functionKey][roleReturn + 1]*engine.Event{}
	for _, ev := range p.Events() {
		e := engine.OfEvent(ev)
		pr := of[e.Given]
		if pr == nil {
			continue
		}
		one := *pr
		if c := pr.call; c != nil {
			key := functionKey{call: c}
			if c.given.Place.Glob {
				key.addr = e.Place.Addr
			}
			if functions[key] == nil {
				functions[key] = functionOf(c, ev, e)
			}
			one.fn = functions[key]
			if how, _ := ev.Returns(); how == kprobes.ReturnsTrampoline {
				one.fn.Trampoline = true
			}
			if pr.role == roleReturn {
				one.fn.Lost = g.core.Losing(e)
			}
			both := has[key]
			both[pr.role] = e
			has[key] = both
		}
		g.probes[e.Group+"/"+e.Name] = &one
	}
	for key, both := range has {
		if key.call.entry != nil && (both[roleEntry] == nil || both[roleReturn] == nil) {
			g.alone(both[roleEntry], both[roleReturn])
		}
	}
	if err := errors.Join(g.failures(p.Events()), g.conditions(p.Events())); err != nil {
		return err
	}
	return g.open(p.Core())
}

// conditions refuses a condition of --error that the arguments do not fit.
func (g *spanning) conditions(evs []*kprobes.Event) error {
	for _, ev := range evs {
		e := engine.OfEvent(ev)
		pr := g.probes[e.Group+"/"+e.Name]
		if pr == nil || pr.role != roleReturn || pr.call.failing == "" || e.Prog == nil {
			continue
		}
		if _, err := failingOf(pr.call, e.Prog); err != nil {
			return usageError{fmt.Errorf("--error %q: %w", pr.call.failing, err)}
		}
	}
	return nil
}

// failingOf compiles --error for a function.
func failingOf(c *spanned, prog *fetch.Program) (*fetch.Filter, error) {
	return prog.Filter(c.failing, fetch.FilterEnv{Comm: true})
}

// functionOf describes a function.
func functionOf(c *spanned, ev *kprobes.Event, e *engine.Event) *spans.Func {
	f := &spans.Func{Symbol: c.given.Place.Symbol}
	if e.Place.Func != nil {
		f.Symbol = e.Place.Func.Pretty()
	} else if f.Symbol == "" {
		f.Symbol = ev.Name
	}
	if f.Name = f.Symbol; c.given.Name != "" && !c.given.Place.Glob {
		f.Name = c.given.Name
	}
	return f
}

// alone leaves out a function of a pattern that has one probe of the two.
func (g *spanning) alone(have ...*engine.Event) {
	for _, e := range have {
		if e == nil {
			continue
		}
		delete(g.probes, e.Group+"/"+e.Name)
		if !g.f.quiet {
			fmt.Fprintf(g.f.con.stderr, "kprobe: %s makes no spans: its function takes no probe at its entry, or none at its return\n", e.Name)
		}
	}
}

// failures refuses --errors for a function of which nothing tells whether it has failed.
func (g *spanning) failures(evs []*kprobes.Event) error {
	known := 0
	for _, ev := range evs {
		e := engine.OfEvent(ev)
		pr := g.probes[e.Group+"/"+e.Name]
		if !g.errors || pr == nil || pr.call.failing != "" || e.Prog == nil {
			known++
			continue
		}
		i := slices.IndexFunc(e.Prog.Args, func(a fetch.Arg) bool { return a.Name == argFailed })
		if e.Prog.Args[i].Base.Kind != fetch.BaseImm {
			known++
			continue
		}
		const why = "its last result is no error of Go, or debug information does not tell: give a condition, such as --error 'ret < 0', behind the probe"
		if !pr.call.given.Place.Glob && pr.call.set == "" {
			return usagef("--errors: it is not known when a call of %s has failed: %s", pr.fn.Symbol, why)
		}
		g.tell("%s has no spans: %s", pr.fn.Symbol, why)
	}
	if known == 0 {
		return usagef("--errors: of none of the functions it is known when a call has failed: give a condition, such as --error 'ret < 0', behind the probe")
	}
	return nil
}
