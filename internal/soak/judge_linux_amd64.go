package soak

import (
	"errors"
	"fmt"
	"slices"
)

// judge compares what probes counted with what others count.
type judge struct {
	*Round
	plan  *plan
	first *result
}

// Most places that the kernel is asked about in a round: each costs it a while.
const (
	askedKernel  = 24 // of those that callgrind says nothing of
	askedDispute = 150
)

// again is how often a place is counted anew that the kernel does not count as we do.
const again = 3

// all compares all probes.
func (j *judge) all() error {
	var disputed, open []*probe
	for _, b := range j.plan.probes {
		got, armed := j.first.got[b]
		why := j.leftOut(b)
		want, known := j.callgrind(b)
		switch {
		case !armed:
		case why != "":
			j.Left[why]++
		case !known:
			open = append(open, b)
		case got == want:
			j.ByCall++
		default:
			disputed = append(disputed, b)
		}
	}
	if len(disputed) > askedDispute {
		j.Bad = append(j.Bad, fmt.Sprintf("callgrind counts otherwise at %d places, such as %s", len(disputed), j.tell(disputed[0])))
		return nil
	}
	n := askedKernel
	if j.Stage.Referee == Kernel {
		n *= 2
	}
	if len(open) > n {
		j.Left["not asked"] += len(open) - n
		open = open[:n]
	}
	if err := j.ask(append(disputed, open...)); !errors.Is(err, errUprobes) || len(disputed) > 0 && len(open) == 0 {
		return err
	}
	j.Left["the program fails under the kernel's uprobes"] += len(open)
	return j.ask(disputed)
}

// Why a probe is not compared, where the number of such probes is bounded: it was not armed for a while;
// nobody else counts there; the program, which nothing holds up in its middle, had ended.
const (
	parked   = "a thread was in the way"
	noUprobe = "the kernel takes no uprobe"
	tooLate  = "the program had ended"
)

// leftOut says why nobody's count is to be that of a probe.
func (j *judge) leftOut(b *probe) string {
	s := j.Stage
	fn, _, _ := s.object(b.obj).Image.At(b.addr)
	if j.first.parked[b] != "" {
		return parked
	}
	switch {
	case s.Referee == Nobody:
		return "only the output"
	case s.Input == nil && (j.plan.late || b.toggle):
		return "armed while it ran"
	case s.Go && (b.ret || fn.Addr == b.addr):
		return "stands behind the stack check"
	}
	return ""
}

// callgrind is what it counts for a probe; ok is false where it can not tell.
func (j *judge) callgrind(b *probe) (n uint64, ok bool) {
	s := j.Stage
	if s.Referee != Callgrind || s.object(b.obj).dispatches() {
		return 0, false
	}
	return j.share(b, s.refs[0][b.place], s.refs[0][b.place]-s.refs[1][b.place]), true
}

// share is what a probe sees of an instruction's runs: of all, and of those from the middle on.
func (j *judge) share(b *probe, all, late uint64) uint64 {
	switch {
	case j.plan.late:
		return late
	case b.half:
		return all - late
	}
	return all
}

// disagree says whether callgrind and the kernel count otherwise, in a program whose counts hang
// on where its memory lies: then neither tells what ours is to be.
func (j *judge) disagree(b *probe, kernel uint64) bool {
	want, ok := j.callgrind(b)
	return ok && want != kernel && j.Stage.Work.Unsteady > 0
}

// tell names a probe and what was counted.
func (j *judge) tell(b *probe) string {
	want, _ := j.callgrind(b)
	return fmt.Sprintf("%s %q: %d, callgrind says %d", b.place, b.text, j.first.got[b], want)
}

// asked is what the kernel counts, once.
type asked struct{ all, late counts }

// errUprobes says that the program does not do under the kernel's uprobes what it does without.
var errUprobes = errors.New("under uprobes the program differs")

func (j *judge) kernel(ps []*probe, layout int) (a asked, err error) {
	var all, late []place
	for _, b := range ps {
		if !j.plan.late {
			all = append(all, b.place)
		}
		if j.plan.late || b.half {
			late = append(late, b.place)
		}
	}
	run := func(ps []place, isLate bool) (counts, error) {
		if len(ps) == 0 {
			return nil, nil
		}
		slices.SortFunc(ps, comparePlaces)
		n, o, err := j.Stage.kernel(slices.Compact(ps), isLate, layout, "")
		if err != nil {
			return nil, fmt.Errorf("under uprobes: %w", err)
		}
		if d := o.differs(j.Stage.plain); d != "" {
			return nil, fmt.Errorf("%w: %s", errUprobes, d)
		}
		return n, nil
	}
	a.all, err = run(all, false)
	if err == nil {
		a.late, err = run(late, true)
	}
	return a, err
}

// of is what the kernel counts for a probe; ok is false where it takes none.
func (j *judge) of(a asked, b *probe) (n uint64, ok bool) {
	all, okAll := a.all[b.place]
	late, okLate := a.late[b.place]
	if !okAll && !okLate || b.half && !(okAll && okLate) {
		return 0, false
	}
	return j.share(b, all, late), true
}

// ask has the kernel count at places.
func (j *judge) ask(ps []*probe) error {
	if len(ps) == 0 {
		return nil
	}
	k, err := j.kernel(ps, 0)
	if err != nil {
		return err
	}
	var differ []*probe
	for _, b := range ps {
		n, ok := j.of(k, b)
		switch {
		case !ok:
			j.Left[noUprobe]++
		case n == j.first.got[b]:
			j.ByKernel++
		default:
			differ = append(differ, b)
		}
	}
	return j.steady(differ, k)
}

// steady counts again where the kernel's count was not ours, with memory in other places each
// time. If the kernel counts the same each time, ours is wrong; in a Go program if ours is
// never the kernel's.
func (j *judge) steady(ps []*probe, first asked) error {
	if len(ps) == 0 {
		return nil
	}
	ks, gs := []asked{first}, []*result{j.first}
	for i := range again {
		k, err := j.kernel(ps, i+1)
		g, err2 := j.Stage.probed(j.plan)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		j.output(g.out)
		ks, gs = append(ks, k), append(gs, g)
	}
	for _, b := range ps {
		var theirs, ours []uint64
		for i := range ks {
			n, _ := j.of(ks[i], b)
			theirs, ours = append(theirs, n), append(ours, gs[i].got[b])
		}
		steady := len(slices.Compact(slices.Clone(theirs))) == 1 && !j.disagree(b, theirs[0])
		if !steady || j.Stage.Go && slices.Contains(ours, theirs[0]) {
			j.Unsteady++
			continue
		}
		seen, err := j.seen(b, ours)
		if err != nil {
			return err
		}
		if seen {
			j.Seen++
			continue
		}
		j.Bad = append(j.Bad, fmt.Sprintf("%s; again %d, the kernel says %d", j.tell(b), ours[1:], theirs))
	}
	return nil
}

// beside is an event in the dynamic linker, at what no good program calls: no uprobe is on that file.
// It reads memory, for which our signal handlers come.
const beside = "p ld-linux-x86-64.so.2:_dl_signal_error a=+0(%sp)"

// seen says whether the kernel counts at a place what we do once our signal handlers are in the
// program, though nothing of the tracer's is in the place's file: then the program has asked who handles a
// signal, and gone another way.
func (j *judge) seen(b *probe, ours []uint64) (bool, error) {
	if j.Seen > seenAny || j.plan.late || b.half || j.Stage.Go || len(slices.Compact(slices.Clone(ours))) > 1 {
		return false, nil
	}
	n, o, err := j.Stage.kernel([]place{b.place}, false, 0, beside)
	if err != nil {
		return false, fmt.Errorf("under a uprobe beside an event: %w", err)
	}
	theirs, ok := n[b.place]
	return ok && theirs == ours[0] && o.differs(j.Stage.plain) == "", nil
}
