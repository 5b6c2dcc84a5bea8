package trace

import (
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// Why a stack has no more callers.
const (
	StackWhole   = fetch.StackWhole   // these are all
	StackFull    = fetch.StackFull    // so many were asked for
	StackUnknown = fetch.StackUnknown // no unwind table tells of the last one's frame
	StackBad     = fetch.StackBad     // the last one's frame is not where its unwind table says
	StackUnread  = fetch.StackUnread  // the last one's frame can not be read
)

// What Core.Poll gives, and what makes text of it.
type (
	// Hit is one record of an event, as Core.Poll gives it: kprobes.Hit. Event says which; Nanos is when it was written, on
	// CLOCK_MONOTONIC; CPU, TID and, in Go code, GoID say where; Caller is where a return probe's function returns to.
	// AppendArgs makes text of its arguments.
	Hit = hit.Hit
	// Event is the event of a Hit: Group and Name, whether it is a return probe's (Return), and its Addr.
	Event = hit.Event
	// Printer makes lines of hits: Text as ftrace prints them, JSON an object for each. Names finds the names for that.
	Printer = hit.Printer
	// Frame is a call in progress at a hit, as Hit.Callers gives them: PC is where it goes on, and At an address in its call.
	Frame = fetch.StackFrame
	// StackEnd says why a stack has no more callers: StackWhole if those are all.
	StackEnd = fetch.StackEnd
	// Namer finds the symbol at an address (Symbol, as Core.Symbol does) and the name of a thread (Comm).
	Namer = hit.Namer
)
