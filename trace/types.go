package trace

import "kprobes.dev/kprobes/internal/hit"

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
	// Namer finds the symbol at an address (Symbol, as Core.Symbol does) and the name of a thread (Comm).
	Namer = hit.Namer
)
