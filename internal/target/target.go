// Package target says what an address space supplies to the engine, so that one engine
// serves another process, the process itself and a guest's kernel.
package target

import (
	"errors"

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
	// Answer lets a thread go on that waits there.
	Answer() error
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
	// Uprobes reads the records that are there of the probes that the kernel holds, and
	// returns how many.
	Uprobes(f func(*UprobeRecord)) int
	// Close takes out all that Prepare put in. Precondition: no site is armed and no
	// Uprobe is held.
	Close() error
}

// Describer is a Target that knows more of a function than its symbol tells, and whose code
// is not what a file has: it is looked at anew each time.
type Describer interface {
	// Describe completes what the analysis of a function is given: Code and Parts have
	// been read from memory. The error says why nothing may stand in the function.
	Describe(r symbol.Resolved, f *arch.Func) error
	// Notrace says why no event may stand in a function, though a probe with handlers may;
	// nil if one may.
	Notrace(r symbol.Resolved) error
	// InsnDenied says why no probe may stand at an instruction, nil if one may.
	InsnDenied(addr uint64) error
}

// Recoverer is a Target whose code is read as it stands: the patches of a tracer that was killed
// are in it.
type Recoverer interface {
	// Recover takes out what a tracer has left that is proven to be gone. It comes before any code
	// is analysed. EBUSY: one that lives holds the address space.
	Recover() error
}

// Finder is a Target that knows which objects can come to be mapped.
type Finder interface {
	// Find says why no object of a name that is not mapped can come, nil if one can.
	Find(name string) error
}

// ReturnReplacer is a Target in which return addresses can be replaced (arch.Trampoline).
type ReturnReplacer interface {
	// Replaceable says why no return address may be replaced in the address space; nil: they
	// may, as far as it knows.
	Replaceable() error
	// Trampoline gives the trampoline of the function at an address, always the same one.
	// Precondition: Prepare has succeeded.
	Trampoline(fn uint64) (*arch.Trampoline, error)
	// Strays tells how many returns came through the trampoline of the function at an address
	// that belonged to no call that an event knew, and where on the stack the last of them
	// had its return address.
	Strays(fn uint64) (n, slot uint64, err error)
	// Caller gives the return address that the address of a stub stands for; any other
	// address as it is.
	Caller(addr uint64) uint64
	// Quiesce waits, for a bounded time, until no thread can replace a return address any
	// more. Precondition: no site that does so is armed.
	Quiesce() error
	// PutBack puts the return addresses back of the calls that are in progress. It is to be
	// called by Change.Then. Precondition: that of Quiesce.
	PutBack() error
}

// Sharer is a Target whose threads may come to share the memory at their FS base, or to have another base
// (arch.CodegenEnv.Shared).
type Sharer interface {
	// Sharers lists the functions by which they do: each must be probed, by arch.RoleShare, before any other
	// event is armed. Precondition: Prepare has succeeded.
	Sharers() []Sharing
	// CheckOwn looks, once they are probed, whether a thread was faster.
	CheckOwn() error
	// SetShared says that it may be so from now on, in place of the probes.
	SetShared() error
}

// Sharing is a function by which threads may come to share a block.
type Sharing struct {
	Place   symbol.Resolved
	Share   arch.Share
	Library arch.Range // see arch.ProbeOp
}

// Yielder is a Target that others may trace, whose breakpoints may fall into patches.
type Yielder interface {
	// Tracer names who traces it; "": nobody else.
	Tracer() string
	// Yield puts the program's own bytes back at sites, if all threads are stopped by the tracer at this
	// moment; ok is false if they are not. The sites count as armed all the same: what is changed of them
	// later finds the bytes put back.
	Yield(sites []*Site) (ok bool, err error)
}

// Exposed is a Target in whose code others may write while probes stand.
type Exposed interface {
	// Reachable says whether others can come to write into a site without asking, as the kernel does for a
	// uprobe on the file.
	Reachable(s *Site) bool
	// Written gives those of sites whose bytes are not their patches any more. Sites are in the order of
	// their addresses.
	Written(sites []*Site) ([]*Site, error)
}

// Reserver is a Target that maps room for code in the stop of Prepare.
type Reserver interface {
	// Reserve says, before Prepare, what will be asked of Code. It is a guess.
	Reserve([]Room)
}

// Room is room for code.
type Room struct {
	Lo, Hi uint64 // what it is to reach
	Size   int    // bytes
	Sites  int    // whose detours are to stand there; a guess, as Size
}

// Sequencer is a Target that makes several changes in one stop (Change.Next).
type Sequencer interface {
	// CloseStopped does what Close does in a stop, where nothing is in the way. It is for Change.Then of the
	// last change, with no site left. Close must be called all the same.
	CloseStopped()
}

// Filterer is a Target whose threads may come to be forbidden system calls that generated code makes
// (arch.CodegenEnv.Quiet).
type Filterer interface {
	// FilterCalls are the functions by which that happens: each is to have a probe of RoleQuiet.
	FilterCalls() []FilterCall
	// CheckFilters sees whether it has happened, and what is forbidden. first: the probes on
	// FilterCalls have just been armed. The error says what is not done any more, once.
	CheckFilters(first bool) error
}

// Beginner is a Target whose program may have been probed before it had signal handlers.
type Beginner interface {
	// Begins is the entry of a function that the program passes once it has them, and before any code of its own, and
	// the words for a probe of RoleWait there. ok is false if it has them, or no thread may be made to wait.
	Begins() (place symbol.Resolved, words uint64, ok bool)
	// Begin sees whether it has them now, and puts those of the engine in front of them: from then on records
	// ask nothing where arch.CodegenEnv.Asks says so. What can not be done now is tried again by a later Begin.
	// done is false if it has them, and that failed.
	Begin() (done bool)
}

// FilterCall is a function that may forbid the calling thread, or all, to make system calls: it does
// if the registers at its entry are as one of Ways says.
type FilterCall struct {
	Place symbol.Resolved
	Ways  [][]arch.Value
}

// PendingLister is a Target whose memory can tell a listing of probes that are not armed: they wait for a
// thread, or for their object.
type PendingLister interface {
	// Note replaces what was noted before. The sites have no patch.
	Note(waiting []*Site) error
}

// Clocked is a Target whose records carry the ticks of a clock of its own, and not those of
// this machine's counter.
type Clocked interface {
	// Nanos is the time at a tick on a CPU, in nanoseconds, as the target itself tells it.
	Nanos(tick uint64, cpu int) uint64
}

// Uprobe is a probe at an instruction that the kernel is to hold.
type Uprobe struct {
	Addr  uint64
	Event int            // number in the records
	Prog  *fetch.Program // nil: its runs are counted, not recorded
	Args  int            // offset of the arguments in the record, in bytes
	Asked bool           // this tactic was asked for, and not what is left when no other fits
}

// ExternalProbe is a Uprobe that is armed. It ends with the tracer, however that ends.
type ExternalProbe interface {
	// Tactic is how the probe is held.
	Tactic() arch.Tactic
	// Counts tells the runs that were only counted, and the records that found no room.
	// They stay readable after Close.
	Counts() (hits, lost uint64)
	// Close disarms the probe. Records that it has written can still be read.
	Close() error
}

// UprobeRecord is a record of a Uprobe.
type UprobeRecord struct {
	Event int
	TID   int
	CPU   int
	Nanos uint64 // CLOCK_MONOTONIC
	Bytes []byte // a record as the ring has them, but for its time stamp; valid during the call
}

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
	Region arch.Range
	// Points and Reason tell a listing what stands here.
	Points []Point
	Reason Reason
	Name   string // ReasonGone: the place, whose symbol can not be looked up any more
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
	return addr == s.Addr || s.Inside(addr) || s.Region.Holds(addr)
}

// last is the last instruction at which there is work to do.
func (s *Site) last() uint64 {
	last := s.Addr
	for _, b := range s.Detour.Points {
		last = max(last, b.Point)
	}
	return last
}

// Reason is why a site is a breakpoint and no jump, or why a path that a handler changes is taken at a
// jump, as the target's own memory keeps it.
type Reason uint8

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

// Point is an instruction of a site at which events stand: how many probes, how many
// return probes (at their entry).
type Point struct {
	Addr    uint64
	Probes  int
	Returns int
}
