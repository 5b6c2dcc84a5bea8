package engine

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/codescan"
	"kprobes.dev/kprobes/internal/debuginfo"
	"kprobes.dev/kprobes/internal/engine/instances"
	"kprobes.dev/kprobes/internal/engine/records"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// Options are the choices of Open; nil means the defaults.
type Options struct {
	MaxEvents int // see kprobes.Options, also for Comm
	Comm      func(tid int) string
	// Show is called with events that have been added, and sets what the user has of them (Event.Shown).
	Show func([]*Event)
}

// Core is the registry of one target's probes. Who uses what is embedded in it holds mu, but for what has a lock of its own
// or is atomic.
type Core struct {
	mu sync.Mutex
	knobs
	editor // changes the sites of functions

	events    []*Event                // by number; nil where one was removed
	fns       map[uint64]*function    // by address: those that have events, and those that were looked at for one
	numbers   *instances.Numbers      // of events that are gone
	reclaimer *instances.Reclaimer    // of calls' instances
	listed    []*instances.Probe      // see returnProbes
	namers    map[uint32]*event.Namer // by user: event.Def.User
	seq       int                     // of the next event that is registered
	most      int                     // see Options.MaxEvents
	shown     func([]*Event)          // see Options.Show

	scan    *codescan.Scanner
	lines   lines
	space   atomic.Pointer[symbol.Space] // the target's, for Symbol
	records *records.Reader
	unwind  *unwindTables                   // nil: no stack has been recorded
	traced  map[*event.Synthetic]*histogram // that generated code makes
	// takeHist is compileHist, once an addition has come: a program that adds none is linked without it.
	takeHist func(*Event)

	addition
	own ownProbes // those that do not stand yet
	standing
	stubbed  trampolines
	watching watching
	objects
	yielding
	handlers
	reaper
	budgets budgets
	// chains tells how contexts of Go carry spans (TraceContexts); nil: nobody asks for that.
	chains ChainFinder
	// giveSamples has new events choose traces, and samplings is what it keeps. Who samples sets them: a program that does not is linked
	// without.
	giveSamples func([]*Event) error
	samplings   any
	// leavings are those of the target, and markLeft is its method, once there is one: likewise.
	leavings any
	markLeft func([]*Event)
	told
	extension
	unread unread // what a loop over hits is to be given
}

// addition is what the Add in progress has done so far.
type addition struct {
	batch   []*Event // what it has defined
	skipped map[*event.Def]*skips
}

// standing are the engine's own probes that stand in the target.
type standing struct {
	loaderProbe *Event   // on the loader; nil: none is needed yet
	atMain      *Event   // where the program has its signal handlers (target.Beginner); nil: likewise
	sharing     []*Event // on what makes threads share blocks, or brings filters: they go last
	watched     bool     // those on what makes threads share blocks were armed, or can not be
	filters     bool     // the functions by which seccomp filters come have their probes
	guards      []*Event // on what handlers must not do; none: there was no handler yet
}

// objects is what is known of objects that come and go.
type objects struct {
	stale    bool          // some came or went, and Sync has not followed yet
	unmapped bool          // events stood in objects that are not mapped any more
	noted    bool          // the target's memory tells of events that wait
	late     atomic.Uint64 // threads that have loaded some, and waited in vain
	// When Sync last looked at what may be to be done though no object came or went.
	looked time.Time
}

// yielding is how probes are taken out for a debugger.
type yielding struct {
	yielded bool   // they are
	why     string // the last error
}

// reaper is the goroutine that does later what could not be done at once.
type reaper struct {
	keeping    bool               // it runs
	reap       func() (more bool) // what it does each time: see reaper.go
	seenFaults uint64             // of handlers.faults, those that were seen to
	shut       bool               // the Core is closed
}

// extension is what package modules keeps for a Core.
type extension struct {
	_           [0]func() // nobody compares it: the linker leaves out how
	extensionMu sync.Mutex
	extends     any
}

// Extension gives what another package keeps for the Core. The first call makes it; if that fails the next one tries again.
func (c *Core) Extension(make func() (any, error)) (any, error) {
	c.extensionMu.Lock()
	defer c.extensionMu.Unlock()
	if c.extends != nil {
		return c.extends, nil
	}
	var err error
	c.extends, err = make()
	return c.extends, err
}

// told is what Stats tells.
type told struct {
	registered int                      // of the events, those that are registered, but for the engine's own
	closing    bool                     // Close takes everything out, or has done so
	published  atomic.Pointer[snapshot] // of probes
}

// Of and OfEvent give what is behind a *kprobes.Core and a *kprobes.Event, for programs of this module that need what the
// API does not have. Package kprobes sets them.
var (
	Of      func(core any) *Core
	OfEvent func(ev any) *Event
)

// handlers is the part of a Core that serves probes with handlers, and what could not be taken out yet.
type handlers struct {
	forced          arch.Tactic // ForceTactic
	barred          map[uint64]symbol.Resolved
	stuck           []*Probe           // unregistered, but their code could not be taken out yet
	pendingRemoval  map[*function]bool // see owing
	pendingCounters []*Event           // events that only counted, of these
	pendingInFlight []*Event           // those that may have instances
	faults          atomic.Uint64      // of handlers, since Open
	ending          atomic.Int32       // goroutines that wait for handlers to end
}

// trampolines is what the Core knows of the target's.
type trampolines struct {
	// readers tells who may read return addresses; nil: that was not asked since the last events were armed.
	readers *codescan.ReturnReaders
	late    bool              // it was asked for events that look at objects which come later (Event.deferred)
	never   error             // why no return address may be replaced
	unknown error             // why not unless it is asked for
	syncErr error             // of the last Sync that nobody has called
	gone    []*target.Site    // those of functions that are gone, which lead to their detours still
	left    bool              // return addresses are to be put back: see withdraw
	walkers map[uint64]*Event // the engine's own probes on _Unwind_Find_FDE, by its address
	unsure  map[uint64]bool   // functions by address: see replacing
}

// watching is the look at the bytes of patches.
type watching struct {
	sites []watched      // patches in text, in the order of their addresses
	next  int            // the first of them that the next look looks at
	asked []*target.Site // those of the last look
	stale bool           // probes came or went since sites were listed
	until time.Time      // they are not listed anew before
	told  string         // the last error
	// exposed: others can write into some of the sites without asking (target.Exposed). Else a look each keepEvery does.
	exposed bool
	last    time.Time // the last look
}

// watched is a site with its function.
type watched struct {
	f *function
	s *target.Site
}

// skips are the functions of a pattern that were left out of an addition.
type skips struct {
	n   int
	why []string // of the first ones
}

// ownProbes are the engine's own probes that have to stand before code runs that relies on them, and do not stand yet.
// They are armed in the stop that arms the first such code, before it.
type ownProbes struct {
	sharing []*Event          // on what makes threads share blocks
	filters []*Event          // on what brings seccomp filters
	changes []*functionChange // that put them in; nil: not made yet
}

func (o *ownProbes) events() []*Event { return slices.Concat(o.sharing, o.filters) }

// AddOptions are the choices of Add: see kprobes.AddOptions. nil means the defaults.
type AddOptions struct {
	Count      bool
	Skip       func(name string, why error)
	Late       bool
	Found      bool
	Tactic     Tactic
	Trampoline bool
	Inlines    Inlines
	Budget     Budget
	// leave leaves out those probes of a batch with handlers that can not be armed (probe.left).
	leave bool
}

// skips says whether an event may be left out: one of a pattern, or a probe of a batch, where the
// options say so.
func (o *AddOptions) skips(e *Event) bool {
	return o.Skip != nil && e.oneOf || o.leave && e.h != nil && e.h.mayLeave
}

// ErrRegister wraps the reason why an event could not be registered; the errno that
// the kernel would give is in its chain.
var ErrRegister = errors.New("probe not registered")

// inHandler says whether a handler of this target's probes calls.
func (c *Core) inHandler() bool {
	return c.can.InHandler != nil && c.can.InHandler()
}

// Place is where an event stands: see kprobes.Place.
type Place struct {
	Addr   uint64
	Symbol string
	Offset uint64
	Module string
}

// isGo says whether a function takes its arguments as Go does.
func isGo(fn *symbol.Func) bool { return fn.Lang == symbol.LangGo }

func eventsOf(ps []*Probe) []*Event {
	out := make([]*Event, len(ps))
	for i, p := range ps {
		out[i] = p.ev
	}
	return out
}

// functionsOf lists the functions that events stand in.
func functionsOf(evs []*Event) []*function {
	fns := map[*function]bool{}
	for _, e := range evs {
		if e.fn != nil {
			fns[e.fn] = true
		}
	}
	return sortedFunctions(fns)
}

// byStub says whether an event replaces return addresses.
func byStub(e *Event) bool { return e != nil && e.byStub && !e.ended }

// ofStubs says whether a site is that of a trampoline (stubSite).
func ofStubs(s *target.Site) bool { return s.Region.End != 0 }

func resolvedAt(m *symbol.Module, fn *symbol.Func) symbol.Resolved {
	return symbol.Resolved{Module: m, Func: fn, Vaddr: fn.Addr, Addr: m.Runtime(fn.Addr)}
}

// keepEvery is how often the reaper looks whether there is something to be done.
const keepEvery = 100 * time.Millisecond

// recoverTarget has the target take out what a killed tracer has left in code that is about to be
// analysed.
func (c *Core) recoverTarget() error {
	if r := c.can.Recoverer; r != nil {
		return r.Recover()
	}
	return nil
}

// snapshot is what Stats tells of probes. It does not change once it is published.
type snapshot struct {
	probes, queued, unarmed int
	postponed               uint64
	functions               int             // those that are queued
	since                   time.Time       // since when the first of them waits
	until                   time.Time       // when the Core was closed; zero: it was not
	why                     func() []string // what they wait for
}

// Exclusive calls a function while nobody else changes the target or its probes. It must not call the Core.
func (c *Core) Exclusive(f func() error) error {
	c.mu.Lock()
	defer c.unlock()
	return f()
}

// budgets are those of a Core. The functions are set by an addition that gives one: a program that gives none is linked without them.
type budgets struct {
	given      []*budget
	ofFunction map[*event.Def]*budget
	give       func([]*Event) error // giveBudgets
	refill     func()               // refillBudgets
	again      func() error         // armExceeded
	changes    atomic.Uint64        // how often events were disabled, or armed again
}

// Inlines says whether a probe on a function stands at its inlined calls too.
type Inlines uint8

// The choices: never; where the debug information is not so large that looking for them takes long; always.
const (
	InlinesNone Inlines = iota
	InlinesAuto
	InlinesAll
)

// ChainFinder gives the way from the contexts of a mapped Go program to the spans that these carry (fetch.Arg.Chain), or why there is none.
type ChainFinder func(*symbol.Module, *debuginfo.File) (any, error)

// lines remembers where in the source addresses come from.
type lines struct {
	mu   sync.Mutex
	in   *symbol.Space // that they were found in
	at   map[uint64][]fetch.Line
	none map[*symbol.Image]bool // those without debug information
}

// unread are hits that have been read for a loop over kprobes.Core.Hits, and that no loop has been given yet. What was given out is never written
// to again.
type unread struct {
	mu   sync.Mutex
	hits []hit.Hit
	recs []byte // room for records
}
