package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/target"
)

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
	n *calls // nil: it has none
}

// become notes how the event gets control now. The fields that its owner reads change only
// while the owner calls, and not when the optimiser or the reaper does its work meanwhile.
func (e *Event) become(f armedAs) {
	e.form = f
	if e.core == nil || !e.core.background && !e.core.tidying {
		e.Tactic, e.Why = f.tactic, f.why
	}
	e.updateOptimized()
}

// Form tells how the event gets control now, and why not by a faster tactic; nil for the
// fastest. "": it does not, for it is disabled, has no place yet, or waits to be armed.
func (e *Event) Form() (Tactic, error) {
	e.core.mu.Lock()
	defer e.core.mu.Unlock()
	if e.held == nil && e.idle() {
		return "", e.withdrawn
	}
	return e.form.tactic, e.form.why
}

// change is what an update does to one function.
type change struct {
	f          *function
	sites      []*target.Site
	now        []eventForm   // how the function's events get control by the sites
	err        error         // why there are no sites
	was        []eventForm   // before it
	blockedErr error         // f.blockedErr before it
	group      *target.Group // nil: it must be made with the rest
	made       bool          // its sites are the function's now, whatever else of the commit has failed
	room       struct {      // of the group, and of was where the function has one event
		group target.Group
		was   [1]eventForm
	}
}

// stopping is what else is done in the stop in which changes are made. Changes of the engine's own probes come
// before all others if they put them in, and after them if they take them out, so that a tracer that dies in between
// leaves no code that relies on them without them.
type stopping struct {
	then func() error // once the changes are made; nil: nothing
	last []*function  // whose changes come after the others, for a target.Sequencer
	end  func()       // once these are made
}

// update brings the sites of functions to what their events want, in one stop.
func (c *Core) update(fns []*function, also stopping) error {
	return c.updateOr(fns, func(_ *function, err error) error { return err }, also)
}

// updateOr is update; mend may change the events of a function whose code can not be
// generated: nil says that it is to be tried again.
//
// A function that a thread blocks does not hold up the others: its new code is put in later,
// unless something that its old code does must end.
func (c *Core) updateOr(fns []*function, mend func(*function, error) error, also stopping) error {
	cs := c.begin(fns)
	for _, ch := range c.make(cs) {
		for ch.err != nil {
			if err := mend(ch.f, ch.err); err != nil {
				c.drop(cs)
				return err
			}
			_ = c.remake(ch) // ch.err
		}
	}
	soft := slices.DeleteFunc(slices.Clone(cs), func(ch *change) bool { return ch.group != nil || !ch.mayTrap() })
	err := c.commit(cs, also, len(soft) > 0)
	if len(soft) > 0 && errors.Is(err, target.ErrBlocked) {
		for _, ch := range soft {
			if !ch.made {
				c.trap(ch, err)
			}
		}
		if err = c.commit(cs, also, false); err == nil {
			c.tried(soft)
		}
	}
	if errors.Is(err, target.ErrBlocked) {
		cs, err = c.disarmBlocked(cs, also)
	}
	if err != nil {
		c.drop(cs)
		return err
	}
	c.postpone(left(cs))
	c.note()
	return nil
}

// begin begins changes of functions.
func (c *Core) begin(fns []*function) []*change {
	cs, room := make([]*change, len(fns)), make([]change, len(fns))
	for i, f := range fns {
		cs[i] = &room[i]
		cs[i].begin(f)
	}
	return cs
}

// disarmBlocked makes changes that end something, and in whose way a thread is: the old code is taken out,
// which nothing is in the way of, and what the function's other events want comes later. It gives
// the changes, or with an error those that were not made.
func (c *Core) disarmBlocked(cs []*change, also stopping) ([]*change, error) {
	var hard []*change
	for _, ch := range cs {
		if ch.group == nil && !ch.made {
			ch.group = &target.Group{}
			hard = append(hard, ch)
		}
	}
	if err := c.commit(cs, stopping{}, false); err != nil {
		return cs, err
	}
	rest := left(hard)
	why := map[*change]error{}
	for _, ch := range rest { // what other probes need must not be away for a moment
		if slices.ContainsFunc(ch.f.events, func(e *Event) bool { return e.internalProbe && !e.idle() }) {
			return left(cs), ch.blocked()
		}
	}
	for _, ch := range rest {
		why[ch] = ch.blocked()
		c.release(ch.sites)
		ch.sites, ch.now, ch.group = nil, nil, nil
	}
	err := c.commit(rest, also, false)
	for _, ch := range rest {
		if ch.made { // also where what is done besides has failed
			c.unarm(ch.f, why[ch])
		}
	}
	c.tried(rest)
	if err != nil {
		return append(left(cs), rest...), err
	}
	return cs, nil
}

// unarm queues a function whose code was taken out.
func (c *Core) unarm(f *function, why error) {
	for _, e := range f.events {
		if !e.idle() {
			e.become(armedAs{why: &postponedError{why}})
		}
	}
	if len(f.events) > 0 {
		c.enqueue(f, why)
	}
}

// requeueDisarmed queues functions whose code was taken out though their events want it: what was to
// come in its place could not be put in.
func (c *Core) requeueDisarmed(fns []*function, err error) {
	var cs []*change
	for _, f := range fns {
		n := 0
		for _, e := range f.events {
			if !e.idle() && !e.serves() {
				e.become(armedAs{why: &postponedError{err}})
				n++
			}
		}
		if n > 0 {
			c.enqueue(f, err)
			cs = append(cs, &change{f: f})
		}
	}
	c.tried(cs)
}

// mayTrap says whether breakpoints may stand where the change has jumps.
func (ch *change) mayTrap() bool {
	return ch.f.mayTrap() && slices.ContainsFunc(ch.sites, func(s *target.Site) bool { return !s.Trap })
}

// begin begins a change of a function. One that waits already, and whose old code does what
// must end, goes on waiting: what it waits for would hold up the end.
func (ch *change) begin(f *function) {
	ch.f, ch.blockedErr, ch.was = f, f.blockedErr, ch.room.was[:0]
	for _, e := range f.events {
		ch.was = append(ch.was, eventForm{e, e.form})
	}
	if !f.mustChange() {
		ch.group, f.blockedErr = &ch.room.group, nil
	}
}

// mustChange says whether the function's sites do something that its events do not want any
// more.
func (f *function) mustChange() bool {
	for _, s := range f.serving {
		if e := s.e; e.idle() || !slices.Contains(f.events, e) || e.h != nil && e.h.calls != *s.n {
			return true
		}
	}
	return false
}

// left picks the changes that were left out.
func left(cs []*change) []*change {
	return slices.DeleteFunc(slices.Clone(cs), func(ch *change) bool { return ch.blocked() == nil })
}

// blocked is why the change was left out; nil: it was made.
func (ch *change) blocked() error {
	if ch.group == nil {
		return nil
	}
	return ch.group.Blocked
}

// remake makes the code of a change anew.
func (c *Core) remake(ch *change) error {
	c.make([]*change{ch})
	return ch.err
}

// commit makes changes, but for those that a thread blocks and that can come later. once: what
// must be made is not tried again.
func (c *Core) commit(cs []*change, also stopping, once bool) error {
	all, work := changeOf(cs, also.then, once)
	var last []*change
	if also.end != nil {
		last, work = c.begin(also.last), true
		for _, ch := range last {
			ch.group = nil
		}
		all.Next, _ = changeOf(last, func() error { also.end(); return nil }, once)
	}
	if !work {
		c.made(cs)
		return nil
	}
	err := c.commitAll(all)
	if err == nil || all.Made {
		c.made(cs)
	}
	if err == nil || all.Next != nil && all.Next.Made {
		c.made(last)
	}
	return err
}

// commitAll makes a change, and before it what is in c.own. If a thread is in the way of that, it is armed by itself first.
func (c *Core) commitAll(all *target.Change) error {
	first, err := c.ownFirst()
	if err != nil {
		return err
	}
	if len(first) == 0 {
		return c.t.Commit(all)
	}
	head, _ := changeOf(first, c.checkOwn, true)
	head.Next = all
	err = c.t.Commit(head)
	if head.Made {
		c.ownMade()
		return err
	}
	if errors.Is(err, target.ErrGone) {
		return err
	}
	c.takeBackOwn()
	if err := c.armOwnNow(); err != nil {
		return err
	}
	return c.t.Commit(all)
}

// made notes that changes were made, but for those that were left out.
func (c *Core) made(cs []*change) {
	for _, ch := range cs {
		if ch.blocked() == nil && !ch.made {
			c.done(ch)
			ch.made = true
		}
	}
}

// changeOf is what changes are for the target, and whether there is something to do.
func changeOf(cs []*change, then func() error, once bool) (*target.Change, bool) {
	all := &target.Change{Then: then, Once: once, Groups: make([]*target.Group, 0, len(cs))}
	work := then != nil
	for _, ch := range cs {
		if ch.made {
			continue
		}
		work = work || len(ch.sites)+len(ch.f.sites) > 0
		for _, n := range ch.now {
			n.e.become(n.armedAs)
		}
		if ch.group == nil {
			all.Add, all.Remove = append(all.Add, ch.sites...), append(all.Remove, ch.f.sites...)
			continue
		}
		*ch.group = target.Group{Add: ch.sites, Remove: ch.f.sites}
		if len(ch.sites)+len(ch.f.sites) > 0 {
			all.Groups = append(all.Groups, ch.group)
		}
	}
	return all, work
}

// done notes that a change was made.
func (c *Core) done(ch *change) {
	f := ch.f
	c.leaveStubs(f)
	for _, s := range f.serving {
		if len(ch.sites) == 0 || s.e.idle() || !slices.Contains(f.events, s.e) {
			s.e.lapse()
		}
	}
	clear(f.one.serving[:])
	f.sites, f.serving = ch.sites, f.one.serving[:0]
	if len(f.sites) == 0 {
		f.blockedErr = nil
	} else {
		c.watchWritten()
	}
	for _, e := range f.events {
		s, in := served{e: e}, len(f.sites) > 0 && !e.idle()
		if e.h != nil {
			n := e.h.calls
			s.n = &n
		}
		if in {
			f.serving = append(f.serving, s)
		}
	}
	if f.blockedErr == nil && len(c.queue) > 0 {
		delete(c.queue, f)
	}
	if len(f.events) == 0 {
		if c.fns[f.start] == f { // it may have been taken out before, and another be there
			delete(c.fns, f.start)
		}
		f.a, f.body, f.parts = nil, nil, nil // events that were removed are kept for their counts
	}
}

// drop gives back what changes were to put in that were not made, and leaves everything as it was before them.
func (c *Core) drop(cs []*change) {
	for _, ch := range cs {
		if ch.made {
			continue
		}
		c.release(ch.sites)
		ch.sites, ch.f.blockedErr = nil, ch.blockedErr
		for _, w := range ch.was {
			if w.e.held == nil {
				w.e.become(w.armedAs)
			}
		}
	}
}

// Attempts at what a thread is in the way of, before it is left to the optimiser.
const (
	postponeTries = 10
	postponeWait  = time.Millisecond // times the number of the attempt
)

// postpone does what can be done at once for functions that a thread is in the way of: most do
// not stand there for long. Breakpoints take no byte that a thread could stand in: where they
// may stand they serve meanwhile. What is left is queued.
func (c *Core) postpone(cs []*change) {
	wait := cs
	for _, ch := range cs {
		why := ch.blocked()
		if ch.mayTrap() {
			c.trap(ch, why)
		}
		c.enqueue(ch.f, why)
	}
	tries := postponeTries
	if c.background {
		tries = 1
	}
	for i := 0; len(cs) > 0 && i < tries; i++ {
		time.Sleep(time.Duration(i) * postponeWait)
		if err := c.commit(cs, stopping{}, false); err != nil {
			for _, ch := range cs {
				ch.group.Blocked = err
			}
			break
		}
		cs = left(cs)
	}
	for _, ch := range cs {
		c.leave(ch)
	}
	c.tried(wait)
}

// trap has the code of a change made anew, with breakpoints in place of jumps, and the function
// queued. If it can not be made the change stays as it is.
func (c *Core) trap(ch *change, why error) {
	f, late, sites, now := ch.f, ch.f.blockedErr, ch.sites, ch.now
	f.blockedErr = why
	if err := c.remake(ch); err != nil {
		f.blockedErr, ch.sites, ch.now, ch.err = late, sites, now, nil
		return
	}
	c.release(sites)
	c.enqueue(f, why)
}

// mayTrap says whether breakpoints may stand in the function in place of jumps.
func (f *function) mayTrap() bool {
	return f.noTraps() == nil && f.wish.force == "" && !f.jumpOnly
}

// leave gives a change up that is still blocked: what the old sites serve goes on as it was,
// the rest is not armed.
func (c *Core) leave(ch *change) {
	c.drop([]*change{ch})
	why := &postponedError{ch.blocked()}
	for _, e := range ch.f.events {
		switch {
		case e.idle():
		case !e.serves():
			e.become(armedAs{why: why})
		case e.form.why != nil: // a breakpoint that stood before
			e.become(armedAs{e.form.tactic, why})
		}
	}
}

// postponedError is why an event is not armed, or not yet in its final form.
type postponedError struct{ why error }

func (e *postponedError) Error() string { return "queued: " + e.why.Error() }

func (e *postponedError) Unwrap() error { return e.why }

// Reasons why a probe is not optimised where a jump would fit, or stands.
var (
	errStraight = errors.New("kprobes-optimization is off")
	errPost     = errors.New("has a post handler")
	errBesides  = errors.New("a probe at the same instruction has a post handler")
	errAsked    = errors.New("this tactic was asked for")
)

// whyTrap is why an event's points have breakpoints: what was asked for, else what the region
// says.
func (f *function) whyTrap(e *Event, why error) error {
	switch {
	case f.wish.force != "":
		return errAsked
	case f.blockedErr != nil:
		return &postponedError{f.blockedErr}
	case f.core.optimizationOff && !f.jumpOnly:
		return errStraight
	}
	return why
}

// reason is why a region's breakpoint is no jump, in short.
func (f *function) reason(r arch.Region) target.Reason {
	why := r.Why()
	for _, e := range f.events {
		if !e.idle() && slices.ContainsFunc(e.points, r.Holds) {
			why = f.whyTrap(e, why)
			break
		}
	}
	var p *postponedError
	var rule *amd64.Refusal
	switch {
	case errors.As(why, &p):
		return target.ReasonQueued
	case errors.As(why, &rule):
		return target.ReasonRule + target.Reason(rule.Rule.Code())
	}
	return reasonOf(why)
}

// reasonOf gives the number of a reason that has one.
func reasonOf(why error) target.Reason {
	switch why {
	case errPost, errBesides:
		return target.ReasonPost
	case errStraight:
		return target.ReasonStraight
	case errAsked:
		return target.ReasonAsked
	}
	return target.ReasonNone
}

// plainReason is why the events at a jump are not optimised, in short.
func (f *function) plainReason(r arch.Region) target.Reason {
	for _, e := range f.events {
		if !e.idle() && slices.ContainsFunc(e.points, r.Holds) {
			if why := e.plain(); why != nil {
				return reasonOf(why)
			}
		}
	}
	return target.ReasonNone
}

// plainly is a reason on one line, without where in the code it applies.
func plainly(why error) string {
	if why == nil {
		return ""
	}
	return printable(fmt.Sprint(why))
}
