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

// keyOf is the function of a probe.
func keyOf(c *spanned, e *engine.Event) functionKey {
	if c.given.Place.Glob {
		return functionKey{c, e.Place.Addr}
	}
	return functionKey{call: c}
}

// bothEnds is a function with its probes.
type bothEnds struct {
	fn   *spans.Func
	have [roleReturn + 1]*engine.Event
}

// prepare notes which probe is which, and which functions have both.
func (g *spanning) prepare(s tracee) error {
	p := s.(probedCore)
	if g.sampling != nil {
		if why := g.core.Samples(g.sampling); why != nil {
			g.tell("which traces are kept is decided when their records have come: %v", why)
			g.sampling = nil
		}
	}
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
	owners, functions := ownersOf(p.Events(), of), map[functionKey]*bothEnds{}
	for _, ev := range p.Events() {
		e := engine.OfEvent(ev)
		pr := of[e.Given]
		if pr == nil {
			continue
		}
		one := *pr
		if c := pr.call; c != nil {
			key := keyOf(c, e)
			if owner, ok := owners[e.Place.Addr]; ok && owner != key {
				g.tell("%s makes no spans: another probe does for its function", e.Name)
				continue
			}
			if functions[key] == nil {
				functions[key] = &bothEnds{fn: functionOf(c, ev, e)}
			}
			one.fn = functions[key].fn
			g.note(functions[key], &one, ev)
		}
		g.probes[e.Group+"/"+e.Name] = &one
	}
	for key, f := range functions {
		if key.call.entry != nil && (f.have[roleEntry] == nil || f.have[roleReturn] == nil) {
			g.alone(f.have[:]...)
		}
	}
	if err := errors.Join(g.failures(p.Events()), g.conditions(p.Events())); err != nil {
		return err
	}
	if g.parent != nil {
		return nil
	}
	return g.open(p.Core())
}

// ownersOf says which definition makes the spans of a function that several name: the first that names it alone, else the first pattern.
func ownersOf(evs []*kprobes.Event, of map[*event.Def]*spanProbe) map[uint64]functionKey {
	owners := map[uint64]functionKey{}
	for _, ev := range evs {
		e := engine.OfEvent(ev)
		pr := of[e.Given]
		if pr == nil || pr.call == nil || e.Place.Func == nil {
			continue
		}
		owner, ok := owners[e.Place.Addr]
		if !ok || owner.call.given.Place.Glob && !pr.call.given.Place.Glob {
			owners[e.Place.Addr] = keyOf(pr.call, e)
		}
	}
	return owners
}

// note notes a probe of a function.
func (g *spanning) note(f *bothEnds, pr *spanProbe, ev *kprobes.Event) {
	e := engine.OfEvent(ev)
	f.have[pr.role] = e
	if pr.role != roleReturn {
		return
	}
	how, _ := ev.Returns()
	f.fn.Trampoline, f.fn.Lost = how == kprobes.ReturnsTrampoline, g.core.Losing(e)
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
	f := &spans.Func{Symbol: c.given.Place.Symbol, Kind: c.kind}
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
			g.say("%s makes no spans: its function takes no probe at its entry, or none at its return", e.Name)
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
