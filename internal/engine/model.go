package engine

import (
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/codescan"
	"kprobes.dev/kprobes/internal/engine/handler"
	"kprobes.dev/kprobes/internal/engine/instances"
	"kprobes.dev/kprobes/internal/engine/plan"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// knobs are the choices that hold for all events of a registry.
type knobs struct {
	mu              sync.Locker // the registry's, for who asks an event
	lock            sync.Locker // likewise, for who changes something
	off             bool        // SetEnabled(false)
	optimizationOff bool        // SetOptimization(false)
	background      bool        // the optimiser makes an attempt
}

// Event is one probe event.
type Event struct {
	ID          int // number in the ring
	Group, Name string
	Def         *event.Def
	Prog        *fetch.Program // nil: runs are only counted
	Place       symbol.Resolved
	Shown       any // what the user has of it; nil: nothing yet

	form          armedAs // how it gets control now
	knobs         *knobs
	fn            *function
	h             *Probe               // what its handlers belong to; nil: it records or counts
	held          target.ExternalProbe // the kernel's probe; nil: it holds none for this event
	watched       *target.Watch        // of a watchpoint that has its place; nil: it is none
	seq           int                  // order of registration
	epoch         atomic.Uint32        // how often its code was taken out, see arch.ProbeOp.Epoch
	work          arch.ProbeOp
	tail          int          // number of the records of exits whose value is unknown; -1: none
	left          int          // number of the records of calls that were left; 0: none
	leaving       leavingProbe // of the probe that tells of these; nil: it is none
	points        []uint64
	point         [1]uint64 // room for points where it is one
	force         arch.Tactic
	gone          bool
	internalProbe bool // a probe of the engine's own
	// Given is the definition that Add was given, of which Def may be a copy for a place. oneOf: it stands for several, and this
	// is one of them.
	Given   *event.Def
	oneOf   bool
	inlined string // the function whose call was inlined where it stands; "": none
	ended   bool   // removed: what it counted is kept
	// registered: it is one of Core.registered.
	registered bool
	// byStub: it sees returns by trampoline, and whyStub not at the exits. wantStub: that is
	// asked for. deferred: objects that come later are looked at.
	byStub, wantStub, deferred bool
	whyStub                    error
	// withdrawn is why the event does nothing any more: it may not replace return addresses, or somebody else has
	// written into its patch.
	withdrawn         error
	most              Budget           // none: it has no budget
	budget            *budget          // nil: none, or its object has not come yet
	over              error            // why its budget has disabled it; nil: it is not disabled
	strays, straySlot uint64           // see Counts
	calls             *instances.Probe // of a return probe that has instances; nil: it has none
	hist              *histogram       // where generated code counts; nil: nowhere
	linked            *histLink        // of a histogram that generated code makes with others; nil: it makes it alone, or does not
	remake            bool             // code that counts in its histogram has been made and is to be made anew, see unlink
	filter            *fetch.Filter    // what a run must pass to be recorded; nil: all are
	read              atomic.Uint64    // records that were read, and passed
	failed            atomic.Uint64    // records that were read, and did not
	past              Counts           // of kernel's probes that ended
	kept              *Counts          // what it had counted when its number was given to another
	unsampled         uint64           // of that, calls whose traces are not kept
}

// function is one function of the target that has probes, or had.
type function struct {
	knobs *knobs
	// What it is, and its code, which is dropped once all its probes were taken out.
	codescan.Function
	events []*Event
	posts  int // of the events, those with a post handler
	sites  []*target.Site
	// serving are the events that the sites do the work of, with their handlers.
	serving     []served
	constraints constraints
	planned     *plan.Plan // see plan
	// blockedErr is why breakpoints stand where jumps are to stand; nil: they do not.
	blockedErr error
	lost       lostPatches
	// jumpOnly: no breakpoint can stand where handlers want one.
	jumpOnly bool
	one      struct { // room for events and serving where there is one event
		events  [1]*Event
		serving [1]served
	}
}

// constraints is what is asked of a function's regions, beside what its events need (arch.Policy).
type constraints struct {
	force arch.Tactic
	// Why no breakpoint may stand there though it is asked for by name, and why none that is not.
	named, unasked error
}

// armedAs is how an event gets control, and why not by a faster tactic.
type armedAs struct {
	tactic arch.Tactic
	why    error
}

// eventForm is how an event gets control.
type eventForm struct {
	e *Event
	armedAs
}

// served is an event that code does the work of, with its handlers.
type served struct {
	e *Event
	n *handler.Calls // nil: it has none
}

// Probe is a probe with handlers.
type Probe struct {
	knobs *knobs // of the registry that it is in, or was
	def   *event.Def
	ev    *Event
	h     *handler.Runner
	// mayLeave: what keeps the probe from being registered leaves it out of its batch, and is left.
	mayLeave bool
	left     error

	at           uint64 // the instruction
	stack, spill int    // of the arguments of Jump
	disabled     bool   // guarded by core.mu
	internal     bool   // ProbeOptions.Internal
	ended        atomic.Bool
	last         atomic.Pointer[State] // see State
}

// idle says whether no generated code is to stand at the event's points.
func (e *Event) idle() bool {
	return e.held != nil || e.whyOut() != nil || e.h != nil && e.h.disabled || e.knobs != nil && e.knobs.off && !e.internalProbe
}

// whyOut is why the event does nothing; nil: it does something, or was disabled as a whole.
func (e *Event) whyOut() error {
	if e.withdrawn != nil {
		return e.withdrawn
	}
	return e.over
}

// posts is the number of the event's post handlers.
func (e *Event) posts() int {
	if e.h != nil && e.h.h.HasPost() {
		return 1
	}
	return 0
}

// plain says why an event is not optimised as Linux says it, though a jump leads to its handlers: a
// changed path is taken; nil: it is optimised.
func (e *Event) plain() error {
	switch {
	case e.knobs == nil || e.fn == nil:
		return nil
	case e.knobs.optimizationOff:
		return plan.ErrOff
	case e.posts() > 0:
		return plan.ErrPost
	case e.fn.posts == 0:
		return nil
	}
	for _, o := range e.fn.events {
		if o.posts() > 0 && !o.idle() && slices.ContainsFunc(o.points, func(p uint64) bool { return slices.Contains(e.points, p) }) {
			return plan.ErrBesides
		}
	}
	return nil
}

// serves says whether code is in that does the event's work.
func (e *Event) serves() bool {
	return e.fn != nil && slices.ContainsFunc(e.fn.serving, func(s served) bool { return s.e == e })
}

// setPoint makes an instruction the event's only point.
func (e *Event) setPoint(at uint64) {
	e.point[0] = at
	e.points = e.point[:]
}

// atEntry says whether the place is one that a return probe may name: the first byte of a function, be it
// reached by an offset from another one, or the entry behind what is not the function's own. By a symbol Linux
// takes the latter only behind ENDBR64 (arch_adjust_kprobe_addr in arch/x86/kernel/kprobes/core.c).
func (e *Event) atEntry() bool {
	off := e.Place.Offset
	return off == 0 || e.Place.Addr == e.fn.Code.EntryPoint() && (off == native.LandingLen || e.Def.Place.Kind != event.PlaceSymbol)
}

// exits are the instructions at which the event sees returns.
func (e *Event) exits() ([]arch.Exit, error) {
	if e.byStub {
		return nil, nil
	}
	return e.fn.Code.Exits()
}

// release ends the event's probe if the kernel holds it, and keeps what it counted.
func (e *Event) release() {
	if e.held == nil {
		return
	}
	_ = e.held.Close() // the descriptor is closed in any case
	hits, lost := e.held.Counts()
	e.past.Hits += hits
	e.past.Lost += lost
	e.held = nil
}

// heldCounts is what the event's uprobes have counted, those that ended too.
func (e *Event) heldCounts() (hits, lost uint64) {
	if e.held != nil {
		hits, lost = e.held.Counts()
	}
	return hits + e.past.Hits, lost + e.past.Lost
}

// lapse notes that the event's code was taken out: what is put in next does not know the calls that were in
// progress.
func (e *Event) lapse() { e.epoch.Add(1) }

// queued is why what is blocked by why waits; nil if why is nil.
func queued(why error) error {
	if why == nil {
		return nil
	}
	return &plan.QueuedError{Why: why}
}

// become notes how the event gets control now.
func (e *Event) become(f armedAs) {
	e.form = f
	e.updateOptimized()
}

// updateOptimized tells the event's handlers what they may do now.
func (e *Event) updateOptimized() {
	if e.h != nil {
		e.h.h.Optimised.Store(e.form.tactic == arch.TacticJump && e.plain() == nil)
	}
}

// Counts is what an event has counted: see kprobes.Counts.
type Counts struct {
	Hits, Read, Filtered, Lost, Over, Missed, Unwound, Active, Strays, StraySlot uint64
}

// State tells of a probe how it is armed and what it has counted: see kprobes.State.
type State struct {
	Registered, Disabled, Optimized, Gone bool
	Tactic                                Tactic
	Why                                   error
	Hits                                  uint64
	Misses                                Misses
	Unwound, Active                       uint64
	Returns                               Returns
	WhyReturns                            error
	Strays                                uint64
}

// Returns is how a return probe sees its function return.
type Returns string

// The ways to see returns.
const (
	ReturnsExits      Returns = "exits"
	ReturnsTrampoline Returns = "trampoline"
)

// lostPatches counts how often a function's patches have gone.
type lostPatches struct {
	n    int
	last time.Time
}

// What a probe has called, and a call of a function as handlers are told of it.
type (
	Handlers = handler.Handlers
	Call     = handler.Call
	Misses   = handler.Misses
)

// regionTactic is what is asked of regions beside events of a tactic.
func regionTactic(t arch.Tactic) arch.Tactic {
	if t.Held() {
		return ""
	}
	return t
}

// Budget is the most that an event may take: see kprobes.Budget.
type Budget struct {
	Hits, Nanos uint64
}

// given says whether there is a budget at all.
func (b Budget) given() bool { return b != Budget{} }

// budget is that of an event, or of all events that one definition has made one (event.Def.Function).
type budget struct {
	most       Budget
	events     []budgeted
	hits, work bucket              // of those that most has
	words      target.SharedMemory // those that generated code counts in; nil: there are none
	off        uint64              // where they are in that memory
	code       *arch.Budget        // what generated code knows; nil: likewise
	down       uint64              // hits that generated code has counted down when somebody looked last
	others     uint64              // those that it does not count there
	cost       cost                // of those that it does
	spent      float64             // nanoseconds that all hits have taken, or would have
	over       error               // why the events are disabled; nil: they are not
}

// budgeted is an event of a budget.
type budgeted struct {
	*Event
	seen    uint64 // what it had counted when somebody looked last
	outside bool   // seen tells: generated code does not count its hits in the words
}

// histogram is the memory in which generated code counts hits.
type histogram struct {
	hist *fetch.Hist
	addr uint64
	r    io.ReaderAt
	cpus int
}

// histLink is what the histograms of an Add that refer to each other have in common. Generated code makes all of them, or none: what an
// event sets is read at another's hit, and records tell nobody of that.
type histLink struct {
	events []*Event // in the order of their definitions
	tables map[*Event]*arch.HistTable
	traced []*tracedHist
	stands bool // the code has been put in
}

// tracedHist is the histogram of a synthetic event.
type tracedHist struct {
	of *event.Synthetic
	*histogram
	tables []*arch.HistTable // as the events that make it count in it
}

// leavingProbe is a Leaving, as its probe's event knows it: a program that has none is linked without it.
type leavingProbe interface {
	// work makes the work of the probe one that tells of calls that are left.
	work(w *arch.ProbeOp)
	// outdated says whether the code that was generated last tells of other events than it is to.
	outdated() bool
	// owes says whether the code that is in tells of an event that it is not to.
	owes() bool
	// stands notes that the code that was generated last is in.
	stands()
}
