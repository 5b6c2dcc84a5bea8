package instances

import (
	"errors"
	"slices"
	"time"

	"kprobes.dev/kprobes/internal/target"
)

// Reclaimer reclaims the instances of calls that never return: an instance is taken until its call returns. Two kinds of
// calls give theirs back in no other way:
//
//   - calls that were in progress when the probe's code was taken out, whose returns nobody sees. Their instances are
//     reclaimed in the same stop, or later if a thread is in that code;
//   - calls that were left by unwinding, or by the end of their thread. For them the target is looked at when so many
//     instances are taken that such calls may be the reason, and now and then, so that they are counted.
//
// Precondition of all methods: one goroutine at a time.
type Reclaimer struct {
	t          Target
	can        target.Capabilities
	numbers    *Numbers
	registered func() []*Probe

	ended []*Probe // whose code is out, and that may have instances
	taken tally
	turn  int       // of missing
	last  time.Time // when Reclaim last looked
	again time.Time // Reclaim does nothing before
	// Pauses between two looks: after looks that have found nothing, and for the sake of counting.
	pause, countPause time.Duration
}

// NewReclaimer makes a Reclaimer. registered lists the probes that may be armed, in the order of their numbers; the list holds until the
// next one. Numbers
// learns which numbers no instance has any more.
func NewReclaimer(t Target, n *Numbers, registered func() []*Probe) *Reclaimer {
	can := t.Capabilities()
	return &Reclaimer{t: t, can: can, numbers: n, registered: registered, taken: tally{by: can.Tallier}}
}

// reason is why the target is to be looked at.
type reason uint8

const (
	none     reason = iota
	shortage        // entries have found no instance, or soon may: those of calls that were left are wanted
	counting        // nobody needs instances, but calls that were left are to be counted
	ending          // probes that have ended may have instances
)

// Pauses between two looks that have found nothing: each is twice the one before. Instances of probes that have ended are
// in nobody's way for a while.
const (
	pauseFirst = 100 * time.Millisecond
	pauseLast  = 10 * time.Second
	countFirst = time.Second
	countLast  = time.Minute
	endedPause = time.Second
)

// Reclaim is called ten times a second. It stops the target only where there may be something to reclaim.
func (r *Reclaimer) Reclaim() {
	if r.can.Reaper == nil || time.Now().Before(r.again) {
		return
	}
	why := r.reason(r.registered())
	if why == none {
		if len(r.ended) == 0 {
			r.pause = 0
		}
		return
	}
	r.last = time.Now()
	got, err := r.reap(r.ended, why != ending)
	took := err == nil && got.Took()
	switch {
	case took:
		r.countPause = countFirst
	case why == counting:
		r.countPause = longer(r.countPause, countFirst, countLast)
	}
	if took || why == counting {
		r.pause = 0
		return
	}
	r.pause = longer(r.pause, pauseFirst, pauseLast)
	r.again = time.Now().Add(r.pause)
}

// longer is twice a pause, within bounds.
func longer(d, first, last time.Duration) time.Duration { return min(max(2*d, first), last) }

// reason says why the target is to be looked at now.
func (r *Reclaimer) reason(live []*Probe) reason {
	switch {
	case len(live) > 0 && (r.missing(live) || r.can.Reaper.Crowded()):
		return shortage
	case len(live) > 0 && time.Since(r.last) >= r.countPause && r.anyTaken(live):
		return counting
	case len(r.ended) > 0 && time.Since(r.last) >= endedPause:
		return ending
	}
	return none
}

// anyTaken says whether one of the probes has an instance.
func (r *Reclaimer) anyTaken(ps []*Probe) bool {
	n := r.taken.count()
	return slices.ContainsFunc(ps, func(p *Probe) bool { return n[p.ID] > 0 })
}

// Waiting says whether probes that have ended may have instances.
func (r *Reclaimer) Waiting() bool { return len(r.ended) > 0 }

// missingEvery is the number of probes that missing looks at in each turn.
const missingEvery = 256

// missing says whether entries have found no instance since it last looked: it looks at some of the probes, each time at
// others.
func (r *Reclaimer) missing(live []*Probe) bool {
	ring := r.t.Ring()
	if ring == nil {
		return false
	}
	turns := (len(live) + missingEvery - 1) / missingEvery
	r.turn = (r.turn + 1) % turns
	lo := r.turn * missingEvery
	grown := false
	for _, p := range live[lo:min(lo+missingEvery, len(live))] {
		if n := ring.Sum(p.ID).Missed; n != p.missed {
			p.missed, grown = n, true
		}
	}
	return grown
}

// Taken is how many calls of a probe have an instance: those in progress, and those that were left and have not been
// found.
func (r *Reclaimer) Taken(p *Probe) uint64 {
	if p == nil {
		return 0
	}
	return uint64(r.taken.count()[p.ID])
}

// reap reclaims instances in one stop: all of probes that have ended, and with others those of calls of registered probes
// that were left.
func (r *Reclaimer) reap(ended []*Probe, others bool) (*target.Reap, error) {
	live := r.registered()
	got := &target.Reap{Left: others, Ended: map[int]bool{}}
	for _, p := range live {
		got.Live = append(got.Live, p.ID)
	}
	for _, p := range ended {
		got.Ended[p.ID] = true
	}
	t := r.can.Reaper
	if t == nil {
		return got, errors.ErrUnsupported
	}
	r.taken.forget()
	err := t.Reap(got)
	for _, p := range live { // also what was reclaimed before an error
		if !got.Ended[p.ID] {
			p.reclaimed.unwound += uint64(got.Unwound[p.ID])
		}
	}
	for _, p := range ended {
		p.reclaimed.unwound += uint64(got.Unwound[p.ID])
		p.reclaimed.active += uint64(got.Active[p.ID])
		p.clear = got.Whole && err == nil
		if p.Changed != nil {
			p.Changed()
		}
	}
	if err == nil && got.Whole {
		r.forgetClear()
	}
	return got, err
}

// forgetClear forgets the probes that have ended and have no instances any more.
func (r *Reclaimer) forgetClear() {
	var ids []int
	r.ended = slices.DeleteFunc(r.ended, func(p *Probe) bool {
		if !p.clear {
			return false
		}
		r.endPool(p)
		ids = append(ids, p.ID)
		return true
	})
	r.numbers.Vacate(ids...)
}

// endPool gives a pool back that no probe's code uses any more.
func (r *Reclaimer) endPool(p *Probe) {
	if r.can.EndPool != nil {
		r.can.EndPool(p.Pool)
	}
}

// InStop gives what is to be done in the stop that takes the code of probes out (target.Change.Then): it reclaims the
// instances of their calls in progress. What can not be reclaimed then comes later. Nil: nothing is to be done.
func (r *Reclaimer) InStop(ps []*Probe) func() error {
	ps = slices.DeleteFunc(slices.Clone(ps), (*Probe).Clear)
	if r.can.Reaper == nil || r.can.Own || len(ps) == 0 {
		return nil // the own process would be stopped once more for it
	}
	return func() error {
		_, _ = r.reap(ps, false) // what is not clear then is left to Reclaim
		return nil
	}
}

// End takes a probe whose code is out. Reclaim reclaims what instances it may have, and gives its pool back.
func (r *Reclaimer) End(p *Probe) {
	if p == nil {
		return
	}
	if r.can.Reaper == nil || p.clear {
		r.endPool(p)
		return
	}
	r.ended = append(r.ended, p)
}

// Vacate asks the target, if no number is free, which numbers that are held no instance has any more.
func (r *Reclaimer) Vacate() {
	if !r.numbers.short() {
		return
	}
	active, unwound, err := r.t.Instances()
	if err != nil {
		return
	}
	vacant := slices.DeleteFunc(slices.Clone(r.numbers.held), func(id int) bool { return active[id]+unwound[id] > 0 })
	r.numbers.Vacate(vacant...)
	r.ended = slices.DeleteFunc(r.ended, func(p *Probe) bool {
		gone := slices.Contains(vacant, p.ID)
		if gone {
			r.endPool(p)
		}
		return gone
	})
}

// Rearm is called before probes are armed again whose code was taken out. It reclaims the instances of calls that were
// in progress then: new code does not see their returns (arch.ProbeOp.Epoch). All of them count as in progress. What a
// thread in the old code keeps from being reclaimed counts as left, some time later.
func (r *Reclaimer) Rearm(ps []*Probe) {
	end := time.Now().Add(rearmWait)
	for try := 1; !r.forget(ps) && (try < rearmTries || time.Now().Before(end)); try++ {
		time.Sleep(time.Millisecond)
	}
}

// Bounds of the waiting for threads that are in the code of probes that were disarmed. On a busy machine even a stop may
// fail.
const (
	rearmWait  = time.Second
	rearmTries = 10
)

// forget reclaims the instances of probes that have no code, in one stop. False: a thread may still take one.
func (r *Reclaimer) forget(ps []*Probe) bool {
	var old []*Probe
	for _, p := range ps {
		if !p.clear || p.NoEntryHandler {
			old = append(old, p)
		}
		p.clear = false
	}
	if len(old) == 0 {
		return true
	}
	got, err := r.reap(old, false)
	for _, p := range old {
		p.clear = false
		n := uint64(got.Unwound[p.ID])
		p.reclaimed.unwound -= n
		p.reclaimed.active += n
	}
	return got.Whole && err == nil || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, target.ErrGone)
}

// Classify is called at the end. It notes which of the instances that are taken then are of calls in progress, and which of
// calls that were left.
func (r *Reclaimer) Classify(ps []*Probe) error {
	active, unwound, err := r.t.Instances()
	for _, p := range ps {
		p.final = calls{uint64(active[p.ID]), uint64(unwound[p.ID])}
	}
	return err
}

// Close forgets the probes that have ended: their pools go with the target.
func (r *Reclaimer) Close() { r.ended = nil }
