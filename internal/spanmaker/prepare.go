package spanmaker

import (
	"errors"
	"slices"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/spans"
)

// functionKey tells functions apart that a definition stands for.
type functionKey struct {
	call *Call
	addr uint64 // of one of a pattern
}

// keyOf is the function of a probe.
func keyOf(c *Call, e *engine.Event) functionKey {
	if c.Def.Place.Glob {
		return functionKey{c, e.Place.Addr}
	}
	return functionKey{call: c}
}

// bothEnds is a function with its probes.
type bothEnds struct {
	fn   *spans.Func
	have [roleReturn + 1]*engine.Event
}

// Prepare notes which event is which, and which functions have both. evs are those of the definitions that Define has made. An *AskedError
// says that what is asked for is wrong.
func (m *Maker) Prepare(evs []*engine.Event) error {
	if m.sampling != nil {
		if why := m.core.Samples(m.sampling); why != nil {
			if m.o.Sample > 1 {
				m.detail("which traces are kept is decided when their records have come: %v", why)
			}
			m.sampling = nil
		}
	}
	of := map[*event.Def]*spanProbe{}
	for _, c := range m.calls {
		if c.Entry != nil {
			of[c.Entry] = &spanProbe{role: roleEntry, call: c}
		}
		of[c.Return] = &spanProbe{role: roleReturn, call: c}
	}
	for d, r := range m.runtime {
		of[d] = &spanProbe{role: r}
	}
	m.probes, m.known = map[string]*spanProbe{}, map[*hit.Event]*spanProbe{}
	owners, functions := ownersOf(evs, of), map[functionKey]*bothEnds{}
	for _, e := range evs {
		pr := of[e.Given]
		if pr == nil {
			continue
		}
		one := *pr
		if c := pr.call; c != nil {
			key := keyOf(c, e)
			if owner, ok := owners[e.Place.Addr]; ok && owner != key {
				m.detail("%s makes no spans: another probe does for its function", e.Name)
				continue
			}
			if functions[key] == nil {
				functions[key] = &bothEnds{fn: functionOf(c, e)}
			}
			one.fn = functions[key].fn
			m.note(functions[key], &one, e)
		}
		m.probes[e.Group+"/"+e.Name] = &one
	}
	for key, f := range functions {
		if key.call.Entry != nil && (f.have[roleEntry] == nil || f.have[roleReturn] == nil) {
			m.alone(f.have[:]...)
		}
	}
	return errors.Join(m.failures(evs), m.conditions(evs))
}

// ownersOf says which definition makes the spans of a function that several name: the first that names it alone, else the first pattern.
func ownersOf(evs []*engine.Event, of map[*event.Def]*spanProbe) map[uint64]functionKey {
	owners := map[uint64]functionKey{}
	for _, e := range evs {
		pr := of[e.Given]
		if pr == nil || pr.call == nil || e.Place.Func == nil {
			continue
		}
		owner, ok := owners[e.Place.Addr]
		if !ok || owner.call.Def.Place.Glob && !pr.call.Def.Place.Glob {
			owners[e.Place.Addr] = keyOf(pr.call, e)
		}
	}
	return owners
}

// note notes a probe of a function.
func (m *Maker) note(f *bothEnds, pr *spanProbe, e *engine.Event) {
	f.have[pr.role] = e
	if pr.role != roleReturn {
		return
	}
	how, _ := e.Returns()
	f.fn.Trampoline, f.fn.Lost = how == engine.ReturnsTrampoline, m.core.Losing(e)
}

// conditions refuses a condition of calls that have failed that the arguments do not fit.
func (m *Maker) conditions(evs []*engine.Event) error {
	for _, e := range evs {
		pr := m.probes[e.Group+"/"+e.Name]
		if pr == nil || pr.role != roleReturn || pr.call.Failing == "" || e.Prog == nil {
			continue
		}
		if _, err := failingOf(pr.call, e.Prog); err != nil {
			return wrongf("%s %q: %w", m.o.Words.Error, pr.call.Failing, err)
		}
	}
	return nil
}

// failingOf compiles the condition of calls that have failed for a function.
func failingOf(c *Call, prog *fetch.Program) (*fetch.Filter, error) {
	return prog.Filter(c.Failing, fetch.FilterEnv{Comm: true})
}

// functionOf describes a function.
func functionOf(c *Call, e *engine.Event) *spans.Func {
	f := &spans.Func{Symbol: c.Def.Place.Symbol, Kind: c.Kind}
	if e.Place.Func != nil {
		f.Symbol = e.Place.Func.Pretty()
	} else if f.Symbol == "" {
		f.Symbol = e.Name
	}
	if f.Name = f.Symbol; c.Def.Name != "" && !c.Def.Place.Glob {
		f.Name = c.Def.Name
	}
	return f
}

// alone leaves out a function of a pattern that has one probe of the two.
func (m *Maker) alone(have ...*engine.Event) {
	for _, e := range have {
		if e == nil {
			continue
		}
		delete(m.probes, e.Group+"/"+e.Name)
		m.tell(Remark, "%s makes no spans: its function takes no probe at its entry, or none at its return", e.Name)
	}
}

// failures refuses Options.Errors for a function of which nothing tells whether it has failed.
func (m *Maker) failures(evs []*engine.Event) error {
	known := 0
	for _, e := range evs {
		pr := m.probes[e.Group+"/"+e.Name]
		if pr != nil && pr.call == nil { // on the runtime
			continue
		}
		if !m.o.Errors || pr == nil || pr.call.Failing != "" || e.Prog == nil {
			known++
			continue
		}
		i := slices.IndexFunc(e.Prog.Args, func(a fetch.Arg) bool { return a.Name == argFailed })
		if e.Prog.Args[i].Base.Kind != fetch.BaseImm {
			known++
			continue
		}
		why := "its last result is no error of Go, or debug information does not tell: " + m.o.Words.condition()
		if !pr.call.Def.Place.Glob && pr.call.Set == "" {
			return wrongf("%s: it is not known when a call of %s has failed: %s", m.o.Words.Errors, pr.fn.Symbol, why)
		}
		m.detail("%s has no spans: %s", pr.fn.Symbol, why)
	}
	if known == 0 {
		return wrongf("%s: of none of the functions it is known when a call has failed: %s", m.o.Words.Errors, m.o.Words.condition())
	}
	return nil
}
