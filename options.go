package kprobes

import "kprobes.dev/kprobes/internal/engine"

// Options are the choices of Open; nil means the defaults.
type Options struct {
	// MaxEvents bounds the events and probes that exist at a time, enabled or not: what would
	// exceed it is refused with ENOSPC, as a whole. 0: what the target's ring has room for, which
	// is the most in any case.
	MaxEvents int
	// Comm gives the name of a thread of the target by its id, "" if it is not known. Poll and Close ask it for filters that test COMM,
	// one call at a time; it must not call the Core. Nil: filters know no COMM, but those of a guest.
	Comm func(tid int) string
}

func (o *Options) engine() *engine.Options {
	if o == nil {
		o = &Options{}
	}
	return &engine.Options{MaxEvents: o.MaxEvents, Comm: o.Comm, Show: show}
}

// AddOptions are the choices of Add; nil means the defaults.
type AddOptions struct {
	// Count makes events that only count their runs. A filter (event.Def.Filter) is run at the hit; one that can not be run there is refused.
	Count bool
	// Skip leaves out functions of a pattern that can not be probed; each is told
	// to it with the reason. Nil: the first such function is an error.
	Skip func(name string, why error)
	// Late accepts definitions in objects that are not mapped yet: they are armed by
	// Sync once they are. Threads wait for Sync, a bounded time, where it has something to do.
	Late bool
	// Found refuses, of those, objects of which the target knows that they can not come: there is
	// no such file. A mistyped name would never be armed.
	Found bool
	// Tactic takes this tactic or none; "" means the best that is safe.
	Tactic Tactic
	// Trampoline has return probes see returns by trampoline, also if all exits are known, and
	// if the process has code of which it is not known who reads return addresses. Such code may
	// then misbehave, or end the program. What is known to read them is refused all the same.
	Trampoline bool
	// Inlines has a probe on a function stand at its inlined calls too, where debug information tells of them: as events of their own,
	// whose names end in a number. Those that can not be probed are told to Skip. In them names of variables are those of the inlined
	// function first; $argN, which belongs to a call, is not known. A pattern's functions have them with InlinesAll only. A return probe has
	// none; Skip is told how many there are.
	Inlines Inlines
	// Budget is the most that each event may take. One that exceeds it is disabled: its code is taken out, Event.Form and Core.List tell why,
	// and that is an EDQUOT. SetEnabled(true) arms it again, with a full budget. The zero Budget sets no bounds.
	Budget Budget
}

// Budget is the most that an event may take. A second's hits, or work, may come at once; time brings more evenly. Hits beyond that are counted
// (Counts.Over), and nothing else is done, even before the event is disabled, which takes a tenth of a second or so. This holds where the
// event's work is done by generated code, in a process. Of an event that only counts (AddOptions.Count, without a filter), of one that a
// kernel or QEMU holds, and in guests each hit counts until it is disabled. If the tracer is killed the budget is not filled again: what
// stands in the process does no more than count.
//
// What a hit costs is measured: generated code times each 64th hit from the taking of its number to the end of its work. To the mean of these, of some
// thousand recent ones, comes what is known of the rest: 5 ns for a jump, 25 ns for the entry of a return event, 2 us for a breakpoint. A hit that takes
// more than 32,768 ticks of the processor's counter, since its thread has lost its CPU, counts as so many. Before the first look a hit is taken to cost 100 ns.
// Of what generated code does not time all is known so: 10 ns for a count, 3 us for a uprobe, 10 us for a watchpoint.
type Budget struct {
	Hits uint64 // a second, to 1e12; 0: any number. Returns, of a return event. The events that f makes one have one budget together.
	// Nanos are nanoseconds of work a second, on all CPUs together, to 1e12; 0: any number. In guests it is refused (EOPNOTSUPP).
	Nanos uint64
}

// Inlines says whether inlined calls are looked for.
type Inlines = engine.Inlines

// The choices of AddOptions.Inlines.
const (
	InlinesNone = engine.InlinesNone // no
	InlinesAuto = engine.InlinesAuto // where that takes no long time: in up to 64 MiB of debug information; else Skip is told
	InlinesAll  = engine.InlinesAll  // always
)

func (o *AddOptions) engine() *engine.AddOptions {
	if o == nil {
		return nil
	}
	return &engine.AddOptions{Count: o.Count, Skip: o.Skip, Late: o.Late, Found: o.Found, Tactic: o.Tactic, Trampoline: o.Trampoline, Inlines: o.Inlines, Budget: engine.Budget(o.Budget)}
}
