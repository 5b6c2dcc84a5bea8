package kprobes

import (
	"time"

	"kprobes.dev/kprobes/internal/engine"
)

// Counts is what an event has counted. Hits are all, also those that did not pass a filter. Where it records, Hits = Read + Filtered + Lost + Over, once all records have been read. For
// a return probe Hits are returns, and entries are Hits + Unwound + Active + Missed.
type Counts struct {
	Hits     uint64
	Read     uint64 // records read
	Filtered uint64 // hits that did not pass the event's filter (event.Def.Filter)
	Lost     uint64 // records that found the ring full
	// Over are hits beyond the event's budget (AddOptions.Budget), of which nothing was done. The first of several events that one
	// definition has made one (f) tells of all of them.
	Over    uint64
	Missed  uint64 // entries without a free instance, or without stack to work on
	Unwound uint64 // calls left by an exception, a panic, longjmp or the end of their thread
	Active  uint64 // calls in progress when the probe was taken out
	// Strays are returns of the event's function that came to its trampoline and belonged to no call which any of the
	// function's events knew, and StraySlot is where on the stack the last of them had its return address: calls and
	// returns do not match in such a program. Where an event of the function was taken out it is not known, and 0.
	Strays, StraySlot uint64
}

// Unreturned are calls of a return event that are in progress, and those that were left and will never return.
type Unreturned struct{ Active, Unwound uint64 }

// State tells of a probe how it is armed and what it has counted since registration.
type State struct {
	Registered bool
	Disabled   bool   // it does not run before it is enabled
	Optimized  bool   // as Linux says it: by jump, and a changed path is not taken
	Gone       bool   // its object is not mapped any more
	Tactic     Tactic // how it gets control; "" while it is not armed
	Why        error  // why not by a faster tactic, or why it was taken out; nil for the fastest
	Hits       uint64 // runs of its handlers; of a return probe returns
	Misses     Misses
	Unwound    uint64 // calls that will never return, see Kretprobe.Unwound
	// Active are calls of a return probe that have begun and of whose end nothing is known: in
	// progress some milliseconds ago, or when the probe was disabled or unregistered. Calls that
	// were left are among them until they are found, which takes about a minute at most: then
	// they are Unwound. Entries are Hits + Unwound + Active + Misses and the calls that
	// EntryHandler let go.
	Active uint64
	// Returns is how a return probe sees its function return, WhyReturns why not at the exits,
	// and Strays the number of returns that belonged to no call (Counts.Strays).
	Returns    Returns
	WhyReturns error
	Strays     uint64
}

// stateOf is a State of what the engine tells.
func stateOf(s engine.State) State {
	return State{
		s.Registered, s.Disabled, s.Optimized, s.Gone, s.Tactic, s.Why, s.Hits, Misses(s.Misses),
		s.Unwound, s.Active, Returns(s.Returns), s.WhyReturns, s.Strays,
	}
}

// Misses counts hits whose handlers were not run, by cause.
type Misses struct {
	Pool    uint64 // calls without a free instance, or without stack to work on
	Busy    uint64 // a handler was running on the thread already
	System  uint64 // the thread was where no handler can run, or was not served in time
	Stopped uint64 // the probe was being disabled for a fault
}

// Total is the sum of all causes.
func (m Misses) Total() uint64 { return m.Pool + m.Busy + m.System + m.Stopped }

// Returns is how a return probe sees its function return.
type Returns string

// The ways to see returns.
const (
	ReturnsExits      Returns = "exits"      // at each instruction that leaves the function
	ReturnsTrampoline Returns = "trampoline" // by a return address of the engine's in place of the caller's
)

// Stats tells of a Core as a whole.
type Stats struct {
	Probes int // probes and events that are registered, those that are disabled or gone too
	// Queued are those of functions of which one waits for the tactic that it is to have, mostly since a thread stands in, or may
	// come back into, bytes that would change. The Core tries again until the change is made. Unarmed are those of the
	// queued that do not run meanwhile: no breakpoint may stand there.
	Queued, Unarmed int
	Longest         time.Duration // how long the first of them has waited
	Postponed       uint64        // how many ever had to wait
	Why             []string      // what the functions of the queued wait for: a function's name and the reason
	// Dead are records that were given up with a writer that was killed in the middle of one. Corrupt are places where
	// the memory that target and tracer share held what no writer writes.
	Dead, Corrupt uint64
	Pending       bool // threads of the target wait, a bounded time, for Sync
	// Late counts threads that had loaded an object, and have waited in vain for Sync: what ran in it until then, and the callers there, are not
	// known.
	Late uint64
}
