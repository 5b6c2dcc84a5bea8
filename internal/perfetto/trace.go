package perfetto

import (
	"io"
	"time"
)

// Trace is a trace that is being written. Events are to come in the order of their times. It is not safe for use by several goroutines.
type Trace struct {
	w *writer
	// Unreturned are calls that were left without a return that was recorded: a call around them has returned.
	Unreturned uint64

	returns map[uint64]bool // functions whose returns are events
	open    map[uint64][]call
	calls   int             // in open
	made    map[uint64]bool // goroutines whose creation is known, and of which no event has come yet
}

// call is a call in progress.
type call struct {
	function uint64
	group    string
}

// maxOpen bounds the calls in progress: records come from memory that the probed program can write to. Further entries are instants.
const maxOpen = 1 << 20

// New begins a trace.
func New(out io.Writer, t Target) *Trace {
	return &Trace{w: newWriter(out, t), returns: map[uint64]bool{}, open: map[uint64][]call{}, made: map[uint64]bool{}}
}

// Returns tells of a function whose returns are an event: its entries begin slices from now on.
func (t *Trace) Returns(function uint64) { t.returns[function] = true }

// Hit adds a hit that is neither the entry of a function nor a return.
func (t *Trace) Hit(e *Event) error {
	t.instant(e)
	return t.w.err
}

// Enter adds the entry of a function.
func (t *Trace) Enter(e *Event, function uint64) error {
	if !t.returns[function] || t.calls == maxOpen {
		return t.Hit(e)
	}
	track, f := t.track(e)
	t.open[track] = append(t.open[track], call{function, e.Group})
	t.calls++
	t.w.put(track, e.Nanos, sliceBegin, e.Group, e.Name, f, func(m *message) { t.w.annotate(m, e.Args) })
	t.shadows(e)
	return t.w.err
}

// Return adds a return of a function. took is how long the call took, where the event tells; 0: it does not. The arguments belong to the slice of the call,
// under the event's name if its entry is an event too.
func (t *Trace) Return(e *Event, function uint64, took time.Duration) error {
	t.returns[function] = true
	track, f := t.track(e)
	calls := t.open[track]
	i := len(calls) - 1
	for i >= 0 && calls[i].function != function {
		i--
	}
	switch {
	case i >= 0:
		for n := len(calls) - 1; n > i; n-- { // their returns did not come
			t.Unreturned++
			t.end(track, e.Nanos, nil)
		}
		t.end(track, e.Nanos, func(m *message) { t.w.nest(m, e.Name, e.Args) })
		t.shadows(e)
	case took > 0:
		begun := e.Nanos - min(uint64(took), e.Nanos)
		t.w.put(track, begun, sliceBegin, e.Group, e.Name, f, func(m *message) { t.w.annotate(m, e.Args) })
		t.w.put(track, e.Nanos, sliceEnd, "", "", flows{}, nil)
		t.shadows(e)
	default:
		t.instantAt(e, track, f)
	}
	return t.w.err
}

// end ends the innermost call of a track.
func (t *Trace) end(track, nanos uint64, fill func(*message)) {
	calls := t.open[track]
	t.calls--
	if len(calls) == 1 {
		delete(t.open, track)
	} else {
		t.open[track] = calls[:len(calls)-1]
	}
	t.w.put(track, nanos, sliceEnd, "", "", flows{}, fill)
}

// Made adds a hit that tells of a goroutine's creation: an arrow leads from it to the goroutine's first event.
func (t *Trace) Made(e *Event, goroutine uint64) error {
	track, f := t.track(e)
	if goroutine != 0 && len(t.made) < maxOpen {
		t.made[goroutine] = true
		f.from = goroutine
	}
	t.instantAt(e, track, f)
	return t.w.err
}

// Lost adds that hits of a CPU were lost.
func (t *Trace) Lost(nanos uint64, cpu int, hits uint64) error {
	t.w.put(t.w.cpu(cpu), nanos, instant, "kprobe", "hits lost", flows{}, func(m *message) { t.w.annotate(m, []Arg{{"hits", hits}}) })
	return t.w.err
}

// track is the track of an event, and the arrow that ends at it if it is a goroutine's first.
func (t *Trace) track(e *Event) (uuid uint64, f flows) {
	if e.Goroutine == 0 {
		return t.w.thread(e), f
	}
	if t.made[e.Goroutine] {
		delete(t.made, e.Goroutine)
		f.to = e.Goroutine
	}
	return t.w.goroutine(e), f
}

func (t *Trace) instant(e *Event) {
	track, f := t.track(e)
	t.instantAt(e, track, f)
}

func (t *Trace) instantAt(e *Event, track uint64, f flows) {
	t.w.put(track, e.Nanos, instant, e.Group, e.Name, f, func(m *message) { t.w.annotate(m, e.Args) })
	t.shadows(e)
}

// Categories of the instants that stand on other tracks for a hit.
const (
	onCPU    = "kprobe.cpu"
	onThread = "kprobe.thread"
)

// shadows shows on the tracks of the CPU, and of a goroutine's thread, that there was a hit.
func (t *Trace) shadows(e *Event) {
	t.w.put(t.w.cpu(e.CPU), e.Nanos, instant, onCPU, e.Name, flows{}, nil)
	if e.Goroutine != 0 {
		t.w.put(t.w.thread(e), e.Nanos, instant, onThread, e.Name, flows{}, nil)
	}
}

// Close writes what is left. Calls in progress stay without an end.
func (t *Trace) Close() error {
	if t.w.err == nil {
		t.w.err = t.w.w.Flush()
	}
	return t.w.err
}
