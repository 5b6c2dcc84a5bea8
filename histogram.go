package kprobes

import (
	"io"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// Histogram is what hits of an event have been counted in, by its definition's Hist (event.ParseHist). It belongs to one goroutine.
type Histogram struct {
	core *Core
	hist *hit.Histogram
	// Recorded says that the event makes records, and does not count at the hit: the caller counts them with Add.
	Recorded bool
}

// HistEntry is an entry of a histogram: see Histogram.Entries.
type HistEntry = hit.HistEntry

// Histogram gives what the code at the hits of an event has counted so far. It reads while others count: when hits go on, sums may be
// a few hits behind one another. It may be called after Remove and Close.
//
// The code at the hit counts where keys are numbers, and at most one is a string or common_stacktrace (which needs the definition's
// Stack). A hit with a string of more than 64 bytes makes a record. So does every hit where a key is .execname, where one is a string
// and the event has a stack, in a guest's kernel, and where the kernel holds the probe: then the histogram is empty and Recorded is set. Add counts records:
//
//	hist, err := core.Histogram(ev)
//	for h := range core.Hits(ctx) {
//		hist.Add(h)
//	}
//
// A histogram that reads a variable of another's, with the same keys, is counted there too if both events were added by the same call, and what
// is taken of the variable is a difference (kprobe hist, Details: "Where hits are counted"). Synthetic gives what its actions trace.
//
// Errors: EINVAL if the event has no Hist, or one that refers to other events and that needs records; ENOENT if its object has not come yet.
func (c *Core) Histogram(e *Event) (*Histogram, error) {
	if e.Def.Hist == nil {
		return nil, errno.Errorf(unix.EINVAL, "%s has no histogram: set its definition's Hist before it is added", e.Name)
	}
	if c.e.Program(e.e) == nil {
		return nil, errno.Errorf(unix.ENOENT, "%s: its object is not there: a histogram needs it", e.Name)
	}
	h, err := c.e.NewHistogram(e.e)
	if err != nil {
		return nil, errno.Errorf(unix.EINVAL, "%s: %w", e.Name, err)
	}
	entries, dropped, ok, err := c.e.Histogram(e.e)
	if err != nil {
		return nil, err
	}
	h.Load(entries, dropped)
	return &Histogram{core: c, hist: h, Recorded: !ok}, nil
}

// Synthetic gives what the code at the hit has counted of a synthetic event with a Hist: the actions that trace it have it as Traced
// (event.HistAction). It may be called after Remove and Close.
//
// Errors: ENOENT if none of the events that were added traces it there: their hits make records.
func (c *Core) Synthetic(s *event.Synthetic) (*Histogram, error) {
	entries, dropped, ok, err := c.e.Traced(s)
	if err == nil && !ok {
		err = errno.Errorf(unix.ENOENT, "synthetic event %s: the code at the hit counts none: see Histogram", s.Name)
	}
	if err != nil {
		return nil, err
	}
	set := hit.NewHistograms()
	set.Synthetic(s)
	h, err := set.Add(event.SyntheticGroup, s.Name, s.Hist)
	if err != nil {
		return nil, errno.Errorf(unix.EINVAL, "%s: %w", s.Name, err)
	}
	h.Load(entries, dropped)
	return &Histogram{core: c, hist: h}, nil
}

// Add counts a hit, which must be one of the histogram's event. A record that is damaged, or whose result is not known, has no keys: it
// is not counted, or as dropped.
func (h *Histogram) Add(of *Hit) {
	vs, err := of.Event.Prog.Decode(of.Rec, of.Event.ArgsOff, of.Comm)
	if err != nil {
		return
	}
	if of.Unknown {
		fetch.HideResults(vs)
	}
	comm := of.Comm
	if comm == "" {
		comm = "<...>" // what the kernel shows for a thread that it does not know
	}
	h.hist.Add(of, vs, comm)
}

// Entries gives the entries, as HistEntry describes them, in the order that the definition's sort= asks for: by hits if it has none.
// They are copies.
func (h *Histogram) Entries() []HistEntry { return h.hist.Entries() }

// Hits is the number of hits in the entries.
func (h *Histogram) Hits() uint64 { return h.hist.Hits() }

// Dropped is the number of hits that are in no entry: there was no room for one more (size=), or no key.
func (h *Histogram) Dropped() uint64 { return h.hist.Dropped() }

// String gives the histogram as the hist file of the kernel's event shows it, with names of the target for addresses.
func (h *Histogram) String() string { return string(h.hist.AppendText(nil, h.core.Symbol)) }

// WriteTo writes what String gives.
func (h *Histogram) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(h.hist.AppendText(nil, h.core.Symbol))
	return int64(n), err
}
