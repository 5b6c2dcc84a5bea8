// Package target says what an address space supplies to the engine, so that one engine
// serves another process, the process itself and a guest's kernel.
package target

import (
	"errors"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/symbol"
)

// ErrGone is in the chain when the address space is not there any more: its process has
// ended, or has executed another program. Nothing of the engine's is left in it then.
var ErrGone = errors.New("the target is gone")

// Target is one address space that can be probed. Its methods may be called by one
// goroutine at a time, but for Space.
type Target interface {
	// Capabilities are what it can do beyond the methods below. They are always the same.
	Capabilities() Capabilities
	// Arch is the instruction set of its code.
	Arch() arch.Arch
	// Space finds names and places in it. It is brought up to date by Refresh.
	Space() *symbol.Space
	// Refresh looks anew at what is mapped, and says whether that has changed.
	Refresh() (changed bool, err error)
	// Read reads its memory.
	Read(addr uint64, buf []byte) error
	// Prepare puts what generated code needs into the address space. It must have
	// succeeded before the methods below are called.
	Prepare() error
	// CodegenEnv describes the address space to generated code.
	CodegenEnv() *arch.CodegenEnv
	// Ring is what generated code writes its records to.
	Ring() *ring.Ring
	// Code gives room for size bytes of code that reaches every address from lo
	// to hi. It stays the caller's until FreeCode.
	Code(lo, hi uint64, size int) (uint64, error)
	// FreeCode takes back room that no thread is in or can return to.
	FreeCode(addr uint64, size int)
	// Pool gives a table for a return probe's instances, with n saved values; max
	// is the most instances at once, 0 for the pool that the events share.
	Pool(n int, max int) (*arch.Pool, error)
	// Traps says why no breakpoint may stand in the address space, though it is asked for by
	// name, nil if one may. Known after Prepare.
	Traps() error
	// TrapsAt says why none may stand in the function that starts at an address, nil if one may.
	// One that is asked for by name (asked) may stand where nothing that is known now is against
	// it, any other only where SIGTRAP is known never to be blocked. Known after Prepare.
	TrapsAt(fn uint64, asked bool) error
	// Loads says why no argument may read memory, nil if arguments may; then a bad pointer harms
	// nobody. Known after Prepare.
	Loads() error
	// Forget drops sites whose code is not mapped any more.
	Forget(sites []*Site) error
	// Loader is the function that the program's loader calls when it has mapped or
	// unmapped an object, and the words for a probe of RoleWait on it. ok is false if
	// there is none.
	Loader() (place symbol.Resolved, words uint64, ok bool)
	// Answer lets a thread go on that waits there. late: one has waited in vain.
	Answer() (late bool, err error)
	// Commit makes a change in one stop of the world. What of it is no Group is made as a
	// whole; it is tried again for some seconds while a thread blocks it (ErrBlocked), and an
	// error says that nothing was changed. A Group that a thread blocks in the stop that
	// makes the rest is left out, with the reason in it.
	Commit(c *Change) error
	// Instances classifies the instances in the pools: per event those whose call
	// is still in progress and those left by unwinding.
	Instances() (active, unwound map[int]int, err error)
	// Uprobe arms a probe that the kernel holds: with its own breakpoint, which needs no
	// handler in the address space. No site may cover its instruction. The error says
	// why the kernel can not, or may not.
	Uprobe(u *Uprobe) (ExternalProbe, error)
	// Uprobes reads the records that are there of the probes that the kernel holds, watchpoints among them, and
	// returns how many.
	Uprobes(f func(*UprobeRecord)) int
	// Close takes out all that Prepare put in. Precondition: no site is armed and no
	// Uprobe is held.
	Close() error
}

// Uprobe is a probe at an instruction that the kernel is to hold.
type Uprobe struct {
	Addr  uint64
	Event int            // number in the records
	Prog  *fetch.Program // nil: its runs are counted, not recorded
	Args  int            // offset of the arguments in the record, in bytes
	Asked bool           // this tactic was asked for, and not what is left when no other fits
}

// Watch is a watchpoint.
type Watch struct {
	Addr   uint64
	Len    int // bytes: 1, 2, 4 or 8; of Execute nothing
	Access event.Access
	Event  int            // number in the records
	Prog   *fetch.Program // nil: accesses are counted, not recorded
	Args   int            // offset of the arguments in the record, in bytes
}

// ExternalProbe is a Uprobe or a Watch that is armed. It ends with the tracer, however that ends.
type ExternalProbe interface {
	// Tactic is how the probe is held.
	Tactic() arch.Tactic
	// Counts tells the runs that were only counted, and the records that found no room.
	// They stay readable after Close.
	Counts() (hits, lost uint64)
	// Close disarms the probe. Records that it has written can still be read.
	Close() error
}

// UprobeRecord is a record of a Uprobe or a Watch.
type UprobeRecord struct {
	Event int
	TID   int
	CPU   int
	Nanos uint64 // CLOCK_MONOTONIC
	// IP is the instruction that accessed the memory of a watchpoint; Before: that one is not known, and ran before IP.
	IP     uint64
	Before bool
	Bytes  []byte // a record as the ring has them, but for its time stamp; valid during the call
}

// Inside says whether the instruction at an address of the site's region must not be run in the
// program's own code while the site is armed: it lies within the patch, or behind it with work of a
// probe to do at it or later in the region, which would be passed.
func (s *Site) Inside(addr uint64) bool {
	return addr > s.Addr && (addr < s.Addr+uint64(len(s.Patch)) || addr <= s.last())
}

// Holds says whether the instruction at an address is one of the site's region: pairs of its detour
// tell of others too, where a call that is emulated goes.
func (s *Site) Holds(addr uint64) bool {
	return addr == s.Addr || s.Inside(addr) || s.Region.Contains(addr)
}

// last is the last instruction at which there is work to do.
func (s *Site) last() uint64 {
	last := s.Addr
	for _, b := range s.Detour.Points {
		last = max(last, b.Point)
	}
	return last
}

// Reasons. Their values stand in targets' memory, and never change.
const (
	ReasonNone     Reason = iota // it is not told
	ReasonPost                   // a post handler
	ReasonStraight               // kprobes-optimization is off
	ReasonQueued                 // a thread is in the way of a jump
	ReasonAsked                  // the tactic was asked for
	ReasonGone                   // its object was unmapped; it is armed when that comes again
	// ReasonRule and what comes behind: no jump fits, for a rule with the rest as its number
	// (native.RuleOf).
	ReasonRule Reason = 64
)
