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

	ended []*Probe  // whose code is out, and that may have instances
	again time.Time // Reclaim does nothing before
	last  time.Time // when Reclaim last looked
	pause time.Duration
	// linger is the pause between two looks for calls that were left though nobody needs their instances.
	linger time.Duration
	turn   int // of missing
	taken  tally
}

// tally is how many instances each event has, and until when that is taken for true.
type tally struct {
	of    map[int]int
	until time.Time
}

// NewReclaimer makes a Reclaimer. registered lists the probes that may be armed, in the order of their numbers. Numbers
// learns which numbers no instance has any more.
func NewReclaimer(t Target, n *Numbers, registered func() []*Probe) *Reclaimer {
	return &Reclaimer{t: t, can: t.Capabilities(), numbers: n, registered: registered}
}

// Pauses between two looks that have found nothing: each is twice the one before. Instances of probes that have ended are
// in nobody's way for a while.
const (
	pauseFirst  = 100 * time.Millisecond
	pauseLast   = 10 * time.Second
	endedPause  = time.Second
	lingerFirst = time.Second
	lingerLast  = time.Minute
)

// Reclaim is called ten times a second. It stops the target only where there may be something to reclaim.
func (r *Reclaimer) Reclaim() {
	t := r.can.Reaper
	if t == nil || time.Now().Before(r.again) {
		return
	}
	live := r.registered()
	scarce := len(live) > 0 && (r.missing(live) || t.Crowded())
	lingers := !scarce && r.lingers(live)
	if !scarce && !lingers {
		switch {
		case len(r.ended) == 0:
			r.pause = 0
			return
		case time.Since(r.last) < endedPause:
			return
		}
	}
	r.last = time.Now()
	got, err := r.reap(r.ended, scarce || lingers)
	took := err == nil && got.Took()
	switch {
	case took:
		r.linger = lingerFirst
	case lingers:
		r.linger = min(max(2*r.linger, lingerFirst), lingerLast)
	}
	if took || lingers {
		r.pause = 0
		return
	}
	r.pause = min(max(2*r.pause, pauseFirst), pauseLast)
	r.again = time.Now().Add(r.pause)
}

// Waiting says whether probes that have ended may have instances.
func (r *Reclaimer) Waiting() bool { return len(r.ended) > 0 }

// lingers says whether it is time to look for calls that were left though nobody needs their instances: so that they are
// counted. Such looks stop the target, and become rarer.
func (r *Reclaimer) lingers(live []*Probe) bool {
	if len(live) == 0 || time.Since(r.last) < r.linger {
		return false
	}
	n := r.tally()
	return slices.ContainsFunc(live, func(p *Probe) bool { return n[p.ID] > 0 })
}

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
	return uint64(r.tally()[p.ID])
}

// tally counts the instances of each event, as they were a few milliseconds ago: counting takes a tenth of the time at most.
func (r *Reclaimer) tally() map[int]int {
	t := r.can.Tallier
	if t == nil || time.Now().Before(r.taken.until) {
		return r.taken.of
	}
	start := time.Now()
	n, err := t.Tally()
	if err != nil {
		n = nil
	}
	r.taken = tally{n, time.Now().Add(9 * time.Since(start))}
	return n
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
	r.taken = tally{}
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
