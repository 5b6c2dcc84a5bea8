package engine

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine/plan"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// Options are the choices of Open; nil means the defaults.
type Options struct {
	// MaxEvents bounds the events and probes that exist at a time, enabled or not: what would
	// exceed it is refused with ENOSPC, as a whole. 0: what the target's ring has room for, which
	// is the most in any case.
	MaxEvents int
}

// Core is the registry of one target's probes.
type Core struct {
	mu          sync.Mutex
	t           target.Target
	can         target.Capabilities // of t
	events      []*Event            // by number; nil where one was removed
	registered  int                 // of the events, those that are registered, but for the engine's own
	fns         map[uint64]*function
	room        sync.Mutex // held while the target's room for code is taken or given back
	textMu      sync.Mutex
	texts       map[*symbol.Image]*text
	space       atomic.Pointer[symbol.Space] // the target's, for Symbol
	around      arch.Func                    // what the analysis may ask of the target; the rest of it is not set
	records     records
	most        int      // see Options.MaxEvents
	batch       []*Event // what the Add in progress has defined so far
	skipped     map[*event.Def]*skips
	loaderProbe *Event // the probe on the loader; nil: none is needed yet
	atMain      *Event // the probe where the program has its signal handlers (target.Beginner); nil: likewise
	stale       bool   // objects came or went, and Sync has not followed yet
	namer       event.Namer
	stubbed     trampolines
	own         ownProbes
	yielded     bool   // all patches are taken out, for a debugger
	told        string // the last error of yield
	// filters: the functions by which seccomp filters come have their probes.
	filters  bool
	sharing  []*Event // the engine's own probes on what makes threads share blocks, or brings filters: they go last
	watched  bool     // they were armed, or can not be
	watching watching
	optimizing
	handlers
}

// Of gives what is behind a *kprobes.Core, for programs of this module that need what the API does not have. Package
// kprobes sets it.
var Of func(core any) *Core

// Event is one probe event.
type Event struct {
	ID          int // number in the ring
	Group, Name string
	Def         *event.Def
	Prog        *fetch.Program // nil: runs are only counted
	Place       symbol.Resolved
	Tactic      Tactic // how it got control when it was armed; see Form
	Why         error  // why not by a faster tactic; nil if there is none

	form          armedAs // how it gets control now
	core          *Core
	fn            *function
	h             *Probe               // what its handlers belong to; nil: it records or counts
	held          target.ExternalProbe // the kernel's probe; nil: it holds none for this event
	seq           int                  // order of registration
	epoch         atomic.Uint32        // how often its code was taken out, see arch.ProbeOp.Epoch
	work          arch.ProbeOp
	tail          int // number of the records of exits whose value is unknown; -1: none
	points        []uint64
	point         [1]uint64 // room for points where it is one
	force         arch.Tactic
	gone          bool
	internalProbe bool // a probe of the engine's own
	// pattern is the definition that made it for one of the functions that match; nil: it has its own.
	pattern *event.Def
	ended   bool // removed: what it counted is kept
	// registered: it is one of Core.registered.
	registered bool
	empty      bool // no call has an instance: its code has been taken out, or was never in
	// byStub: it sees returns by trampoline, and whyStub not at the exits. wantStub: that is
	// asked for. deferred: objects that come later are looked at.
	byStub, wantStub, deferred bool
	whyStub                    error
	// withdrawn is why the event does nothing any more: it may not replace return addresses, or somebody else has
	// written into its patch.
	withdrawn         error
	strays, straySlot uint64 // see Counts
	// Of instances that the final look classified.
	active, unwound int
	// Of instances that were taken back while it was armed, or when it was taken out.
	reaped, cut uint64
	missed      uint64 // entries without an instance, when that was last asked
	read        atomic.Uint64
	past        Counts  // of kernel's probes that ended
	kept        *Counts // what it had counted when its number was given to another
}

// function is one function of the target that has probes, or had.
type function struct {
	core   *Core
	name   string
	start  uint64
	image  *symbol.Image
	a      arch.Function // nil once all its probes were taken out
	body   []byte        // its code, and a few bytes of what follows
	parts  []arch.Part
	keep   []arch.Range // bytes that must stay where they are
	events []*Event
	posts  int // of the events, those with a post handler
	sites  []*target.Site
	// serving are the events that the sites do the work of, with their handlers.
	serving []served
	wish    constraints
	planned *plan.Plan // see plan
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

// Open makes a registry for a target. The target is not touched before the first Add.
func Open(t target.Target, o *Options) (*Core, error) {
	can := t.Capabilities()
	c := &Core{t: t, can: can, fns: map[uint64]*function{}, records: records{t: t, can: can}}
	if o != nil {
		c.most = o.MaxEvents
	}
	if c.most < 0 {
		return nil, errno.Errorf(unix.EINVAL, "MaxEvents %d: a number of events is not negative", c.most)
	}
	c.space.Store(t.Space())
	c.around = arch.Func{Mem: c.constants, NoReturn: c.noReturn, Inside: c.inside, Morestack: c.morestack}
	return c, nil
}

// Gone says whether the event's object is not mapped at present: [GONE] in the listing.
func (e *Event) Gone() bool {
	e.core.mu.Lock()
	defer e.core.mu.Unlock()
	return e.gone
}

// Target is what the Core probes.
func (c *Core) Target() target.Target { return c.t }

// Events lists the events in the order of their numbers, removed ones too.
func (c *Core) Events() []*Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*Event
	for _, e := range c.events {
		if e != nil && !e.internalProbe && e.h == nil {
			out = append(out, e)
		}
	}
	return out
}

// AddOptions are the choices of Add; nil means the defaults.
type AddOptions struct {
	// Count makes events that only count their runs.
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
	// leave leaves out those probes of a batch with handlers that can not be armed (probe.left).
	leave bool
	// Trampoline has return probes see returns by trampoline, also if all exits are known, and
	// if the process has code of which it is not known who reads return addresses. Such code may
	// then misbehave, or end the program. What is known to read them is refused all the same.
	Trampoline bool
}

// skips says whether an event may be left out: one of a pattern, or a probe of a batch, where the
// options say so.
func (o *AddOptions) skips(e *Event) bool {
	return o.Skip != nil && e.pattern != nil || o.leave && e.h != nil && e.h.mayLeave
}

// ErrRegister wraps the reason why an event could not be registered; the errno that
// the kernel would give is in its chain.
var ErrRegister = errors.New("probe not registered")

// Add registers and arms events: all of them in one stop of the target, or none.
func (c *Core) Add(defs []*event.Def, o *AddOptions) ([]*Event, error) {
	c.mu.Lock()
	defer c.unlock()
	if o == nil {
		o = &AddOptions{}
	}
	if c.can.Alive != nil {
		if err := c.can.Alive(); err != nil {
			return nil, err
		}
	}
	if err := c.recoverTarget(); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		evs, armed, err := c.add(defs, o)
		c.settleOwn(err)
		if err == nil || !armed || try == addTries || !c.moved(err) {
			return evs, err
		}
		c.watchLoader(o) // from now on whoever loads or unloads waits for a moment
		c.remapped()
	}
}

// addTries bounds the attempts at an addition in a program that loads and unloads objects meanwhile.
const addTries = 5

// remapped says whether the target has objects come or gone since that was last looked at, and follows.
func (c *Core) remapped() bool {
	changed, err := c.t.Refresh()
	if err != nil || !changed {
		return false
	}
	c.space.Store(c.t.Space())
	return c.dropGone() == nil
}

// moved says whether err may come of an object that was away: some have come or gone, or memory was not
// mapped, which may be so again. Precondition: err is not nil.
func (c *Core) moved(err error) bool { return c.remapped() || errors.Is(err, unix.EFAULT) }

// add is Add, once. armed: it was about to arm the events when it failed.
func (c *Core) add(defs []*event.Def, o *AddOptions) (_ []*Event, armed bool, _ error) {
	var evs []*Event
	var errs []error
	defer func() { c.batch, c.skipped = nil, nil }()
	for _, d := range defs {
		es, err := c.define(d, o)
		errs = append(errs, err)
		evs = append(evs, es...)
		c.batch = evs
	}
	if err := errors.Join(errs...); err != nil {
		return nil, false, err
	}
	if len(evs) == 0 {
		return nil, false, errno.Errorf(unix.ENOENT, "no function was found to probe")
	}
	c.reserve(evs)
	if err := c.prepare(); err != nil {
		return nil, false, err
	}
	c.watchFilters(evs)
	evs = c.addHooks(evs, o)
	if err := c.number(evs); err != nil {
		for _, e := range evs {
			c.namer.Release(e.Name)
		}
		return nil, false, err
	}
	evs, err := c.arm(evs, o)
	if err != nil {
		c.forget(evs)
		return nil, true, err
	}
	if err := c.noneLeft(defs, evs); err != nil {
		return nil, false, errors.Join(err, c.remove(evs, stopping{}))
	}
	if slices.ContainsFunc(defs, func(d *event.Def) bool { return d.Kind == event.Return }) {
		c.startReaper()
	}
	c.admit(evs)
	for n := len(evs); n > 0 && evs[n-1].internalProbe; n-- { // addHooks's
		evs = evs[:n-1]
	}
	return evs, false, nil
}

// recoverTarget has the target take out what a killed tracer has left in code that is about to be
// analysed.
func (c *Core) recoverTarget() error {
	if r := c.can.Recoverer; r != nil {
		return r.Recover()
	}
	return nil
}

// forget drops events that were not armed, and gives their numbers back.
func (c *Core) forget(evs []*Event) { c.cool(c.erase(evs)...) }

// erase drops events that were not armed. Their numbers, which it gives, may serve again once no
// thread can count for them.
func (c *Core) erase(evs []*Event) (ids []int) {
	for _, e := range evs {
		if e == c.loaderProbe {
			c.loaderProbe = nil
		}
		if e == c.atMain {
			c.atMain = nil
		}
		if slices.Contains(c.guards, e) { // they come together, and go together
			c.guards = nil
		}
		e.ended = true
		e.release()
		c.namer.Release(e.Name)
		if f := e.fn; f != nil {
			f.drop(e)
			if e.serves() { // its code is in, and another's could not be put in
				if c.pendingRemoval == nil {
					c.pendingRemoval = map[*function]bool{}
				}
				c.pendingRemoval[f] = true
				continue
			}
		}
		e.empty = true
		ids = append(ids, c.retire(e)...)
		if e.tail > 0 {
			ids, e.tail = append(ids, e.tail), -1 // once: an addition that fails later drops all again
		}
	}
	return ids
}

// serves says whether code is in that does the event's work.
func (e *Event) serves() bool {
	return e.fn != nil && slices.ContainsFunc(e.fn.serving, func(s served) bool { return s.e == e })
}

// take adds an event.
func (f *function) take(e *Event) {
	if len(f.events) == 0 {
		f.events = f.one.events[:0]
	}
	f.events = append(f.events, e)
	f.posts += e.posts()
}

func (f *function) drop(e *Event) {
	if i := slices.Index(f.events, e); i >= 0 {
		f.events = slices.Delete(f.events, i, i+1)
		f.posts -= e.posts()
	}
}

// posts is the number of the event's post handlers.
func (e *Event) posts() int {
	if e.h != nil && e.h.h.Post != nil {
		return 1
	}
	return 0
}

// Remove disarms events and forgets them. What they counted stays readable. The number of one
// that only counted may serve another event, once no thread can be in its code.
func (c *Core) Remove(evs []*Event) error {
	c.mu.Lock()
	defer c.unlock()
	return c.remove(evs, stopping{then: c.leaves(evs)})
}

// remove disarms events, in one stop. Where that has an end the engine's own probes come last.
func (c *Core) remove(evs []*Event, also stopping) error {
	fns := c.owing()
	left, idle := c.pendingInFlight, c.pendingIdle
	c.pendingInFlight, c.pendingIdle = nil, nil
	for _, e := range evs {
		if e.ended {
			continue
		}
		c.discharge(e)
		if e.h == nil && !e.internalProbe && e.Prog == nil && e.Def.Kind == event.Probe {
			idle = append(idle, e)
		}
		if e.h == nil && e.work.Pool != nil {
			left = append(left, e)
		}
		e.release()
		c.namer.Release(e.Name)
		if e.fn != nil {
			e.fn.drop(e)
			fns[e.fn] = true
		}
	}
	if len(fns) == 0 {
		c.freeCounters = append(c.freeCounters, idle...)
		c.leftovers(left)
		if also.then != nil {
			return also.then()
		}
		return nil
	}
	now := sortedFunctions(fns)
	if also.end != nil {
		now, also.last = c.ownLast(now)
	}
	if err := c.update(now, also); err != nil {
		c.pendingRemoval, c.pendingInFlight, c.pendingIdle = fns, left, idle
		return err
	}
	for _, e := range idle { // they are kept for their counts
		if !e.serves() {
			e.fn = nil
		}
	}
	c.freeCounters = append(c.freeCounters, idle...)
	c.leftovers(left)
	return nil
}

// ownLast sorts functions into those without probes of the engine's own that other code relies on, and those with them.
func (c *Core) ownLast(fns []*function) (others, own []*function) {
	for _, f := range fns {
		if slices.ContainsFunc(c.sharing, func(e *Event) bool { return e.fn == f }) {
			own = append(own, f)
		} else {
			others = append(others, f)
		}
	}
	return others, own
}

// owing are the functions whose code does the work of events that are gone: it could not be taken
// out with them.
func (c *Core) owing() map[*function]bool {
	fns := map[*function]bool{}
	for f := range c.pendingRemoval {
		if f.mustChange() {
			fns[f] = true
		}
	}
	c.pendingRemoval = nil
	return fns
}

func sortedFunctions(m map[*function]bool) []*function {
	out := make([]*function, 0, len(m))
	for f := range m {
		out = append(out, f)
	}
	slices.SortFunc(out, byStart)
	return out
}

func byStart(a, b *function) int { return cmp.Compare(a.start, b.start) }
