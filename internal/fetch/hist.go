package fetch

import (
	"slices"

	"kprobes.dev/kprobes/event"
)

// Hist is a histogram whose keys and values generated code can take.
type Hist struct {
	Keys []HistNumber
	Vals []HistNumber
	Size int // most entries
	// Sets are the variables that other histograms read: what each hit sets them to in its entry, the clock or numbers of 4 bytes at most.
	Sets []HistNumber
	// Since is the variable of another histogram that HistSince begins at; a hit counts where it is set in the entry with the same keys.
	Since *HistVar
}

// HistVar is a variable that a hit reads, and what it is subtracted from. It is not set any more when it has been read.
type HistVar struct {
	Word  int        // its number among the Sets
	From  HistNumber // HistClock: HistSince is in nanoseconds, at least 0
	Usecs bool       // HistClock: in microseconds, rounded down
}

// HistNumber is a number of a hit.
type HistNumber struct {
	From    HistSource
	Arg     int // HistArg: its index
	Signed  bool
	Size    int // bytes of an argument
	Log2    bool
	Buckets uint64 // 0: none
	Text    bool   // a key that is a string: its length, and HistText bytes, behind its own zeroes
	Frames  int    // HistCallers, a key: most callers; their number, and their addresses as in a record, behind them zeroes
}

// HistText is the most bytes of a string that is a key in generated code: who makes a hit with a longer one makes a record, and whoever
// reads that counts it.
const HistText = 64

// Words is the number of words of 8 bytes that a key takes.
func (n *HistNumber) Words() int {
	switch {
	case n.Text:
		return 1 + HistText/8
	case n.From == HistCallers:
		return 1 + n.Frames
	}
	return 1
}

// HistSource says where a number comes from.
type HistSource uint8

// The sources.
const (
	HistArg     HistSource = iota
	HistPID                // the thread
	HistCPU                // the CPU
	HistCallers            // the callers
	HistClock              // the clock, in ticks
	HistSince              // what has passed since the variable of Hist.Since was set
)

// Hist compiles a histogram; nil: whoever reads the records has to make it, for a key is no number, a number is not at hand where the
// code runs, or there is more to do than to count. A key that is a stack has so many callers at most.
func (p *Program) Hist(h *event.Hist, callers int) *Hist {
	if !h.Plain() {
		return nil
	}
	out := &Hist{Size: h.Size}
	for _, f := range h.Keys {
		n, ok := histKey(f, p.histNumber)
		if f.Mod == event.HistStack && p.Stack > 0 && !p.Kernel && out.Callers() == 0 { // a frame has room for one
			n, ok = HistNumber{From: HistCallers, Frames: min(p.Stack, callers)}, true
		}
		if !ok {
			return nil
		}
		out.Keys = append(out.Keys, n)
	}
	for _, f := range h.Vals {
		n, ok := p.histNumber(f)
		if !ok || n.Text {
			return nil
		}
		out.Vals = append(out.Vals, n)
	}
	if n := out.texts(); n > 1 || n > 0 && p.Stack > 0 { // a frame has room for one string
		return nil
	}
	return out
}

// histKey is a key that is a number, or a string.
func histKey(f event.HistField, number func(event.HistField) (HistNumber, bool)) (HistNumber, bool) {
	n, ok := number(f)
	n.Log2, n.Buckets = f.Mod == event.HistLog2, f.Buckets
	return n, ok && f.Expr == nil && f.Mod != event.HistExecname
}

func (h *Hist) texts() (n int) {
	for i := range h.Keys {
		if h.Keys[i].Text {
			n++
		}
	}
	return n
}

// Text says whether a key is a string: a hit may make a record then.
func (h *Hist) Text() bool { return h.texts() > 0 }

// Callers is the most callers of the key that is a stack; 0: none is.
func (h *Hist) Callers() int {
	for i := range h.Keys {
		if h.Keys[i].From == HistCallers {
			return h.Keys[i].Frames
		}
	}
	return 0
}

// KeyWords is the number of words of 8 bytes that an entry's keys take.
func (h *Hist) KeyWords() (n int) {
	for i := range h.Keys {
		n += h.Keys[i].Words()
	}
	return n
}

func (p *Program) histNumber(f event.HistField) (HistNumber, bool) {
	if f.Mod == event.HistStacktrace {
		return HistNumber{}, false
	}
	switch f.Name {
	case "common_pid":
		return HistNumber{From: HistPID}, true
	case "common_cpu", "cpu":
		return HistNumber{From: HistCPU}, true
	}
	for i := range p.Args {
		a := &p.Args[i]
		if a.Name == f.Name {
			if a.Store == StoreString || a.Store == StoreCounted {
				return HistNumber{Arg: i, Text: true}, a.Count == 0 && a.Type.Kind != event.SymStr
			}
			ok := a.Store == StoreValue && a.Type.Width == 0 && a.Type.Kind != event.SymStr
			return HistNumber{Arg: i, Signed: a.Type.Kind == event.Signed, Size: a.Size}, ok
		}
	}
	return HistNumber{}, false
}

// TID says whether the thread's id is among the numbers.
func (h *Hist) TID() bool {
	is := func(n HistNumber) bool { return n.From == HistPID }
	return slices.ContainsFunc(h.Keys, is) || slices.ContainsFunc(h.Vals, is) || slices.ContainsFunc(h.Sets, is) || h.Since != nil && is(h.Since.From)
}

// HistEntry is an entry of a histogram that generated code has made.
type HistEntry struct {
	Keys    []uint64
	Texts   []string     // of keys that are strings, by their numbers; nil: no key is one
	Callers []StackFrame // of the key that is a stack
	Hits    uint64
	Sums    []uint64
}
