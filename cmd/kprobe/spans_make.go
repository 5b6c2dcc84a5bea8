package main

import (
	"fmt"
	"slices"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spanmaker"
)

// spanWords are what the command line calls the parts of what is asked for.
var spanWords = spanmaker.Words{Set: "--set", Error: "--error", Errors: "--errors"}

// probedCore is a tracee that the engine probes.
type probedCore interface {
	Events() []*kprobes.Event
	Core() *kprobes.Core
}

// define makes the definitions that are added.
func (g *spanning) define(s tracee, _ []*event.Def) ([]*event.Def, error) {
	p, ok := s.(probedCore)
	if !ok {
		return nil, usagef("there are no spans of this target")
	}
	o := g.o
	o.Begun, o.Emit, o.Tell = g.out.unix, g.emit, g.say
	g.maker = g.newMaker(p.Core(), g.calls, s.Names(), &o)
	return g.maker.Define()
}

// newMaker makes what makes the spans of a target.
func (g *spanning) newMaker(core *kprobes.Core, calls []*spanmaker.Call, names hit.Namer, o *spanmaker.Options) *spanmaker.Maker {
	o.Words, o.Names = spanWords, names
	o.Add = &engine.AddOptions{Late: true, Found: true, Tactic: arch.Tactic(g.f.tactic), Trampoline: g.f.stubs, Inlines: engine.InlinesNone}
	return spanmaker.New(engine.Of(core), calls, o)
}

// prepare takes the events that have been added, and opens the output.
func (g *spanning) prepare(s tracee) error {
	p := s.(probedCore)
	if err := g.maker.Prepare(engineEvents(p.Events())); err != nil {
		return err
	}
	return g.open(g.resource(p.Core(), g.f.of.pid))
}

// engineEvents are the engine's of events.
func engineEvents(evs []*kprobes.Event) []*engine.Event {
	out := make([]*engine.Event, len(evs))
	for i, ev := range evs {
		out[i] = engine.OfEvent(ev)
	}
	return out
}

// resource describes what is probed.
func (g *spanning) resource(core *kprobes.Core, pid int) *otlp.Resource {
	if of := g.f.con.of; pid == 0 && of != nil {
		pid = of.Program
	}
	return spanmaker.Resource(engine.Of(core), g.service, plainVersion(), pid)
}

// say tells something about the probes.
func (g *spanning) say(what spanmaker.Notice, text string) {
	switch {
	case what == spanmaker.Detail && !g.f.verbose:
	case what == spanmaker.Remark && g.f.quiet:
	case g.all != nil:
		g.all.said.once(text, func() { fmt.Fprintf(g.f.con.stderr, "kprobe: %s\n", text) })
	default:
		fmt.Fprintf(g.f.con.stderr, "kprobe: %s\n", text)
	}
}

// given are the definitions that were asked for by themselves: a set may have functions that the program has not.
func (g *spanning) given() (out []*event.Def) {
	for _, c := range g.calls {
		if c.Set == "" {
			out = append(out, c.Def)
		}
	}
	return slices.Clip(out)
}
