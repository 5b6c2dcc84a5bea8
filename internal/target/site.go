package target

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/interval"
)

// Site is a place in the program's code that a patch stands in.
type Site struct {
	Addr   uint64
	Orig   []byte // what the program has there
	Patch  []byte // what stands there while the site is armed
	Detour *arch.Detour
	Room   int  // bytes that the detour's room takes
	Trap   bool // the patch is a breakpoint
	// Region is where the instructions lie whose place the detour takes, if not at the patch: a
	// trampoline's, which is patched in its table.
	Region interval.Range
	// Points and Reason tell a listing what stands here.
	Points []Point
	Reason Reason
	Name   string // ReasonGone: the place, whose symbol can not be looked up any more
}

// Point is an instruction of a site at which events stand: how many probes, how many
// return probes (at their entry).
type Point struct {
	Addr    uint64
	Probes  int
	Returns int
}

// Reason is why a site is a breakpoint and no jump, or why a path that a handler changes is taken at a
// jump, as the target's own memory keeps it.
type Reason uint8
