package native

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
)

// Gates, and what passes through them.
type (
	GateEnv = amd64.GateEnv
	Post    = amd64.Post
)

// NewGate generates the gate of a process, for an address.
func NewGate(addr uint64, env GateEnv) ([]byte, error) { return amd64.NewGate(addr, env) }

// GateLeaves says whether a thread at pc, in a gate that ends at end, is about to go where a word on its stack says.
func GateLeaves(pc, end uint64) bool { return amd64.GateLeaves(pc, end) }

// ReadPost reads a post out of a copy of its slot.
func ReadPost(slot []byte) Post { return amd64.ReadPost(slot) }

// LeaveBlock is what the gate writes to below a stack pointer for arch.ActionLeave.
func LeaveBlock(sp uint64, goFunction bool) (addr uint64, size int) {
	return amd64.LeaveBlock(sp, goFunction)
}

// Around is the code that JumpsOver asks for, of a thread at ip.
func Around(ip uint64) (lo uint64, n int) { return amd64.Around(ip) }

// JumpsOver says whether ip lies behind the first byte of a jump into our code.
func JumpsOver(code []byte, ip uint64, ours func(to uint64) bool) bool {
	return amd64.JumpsOver(code, ip, ours)
}

// LandingHead is the size of the beginning of a table of landings, which tells how large the table is.
const LandingHead = amd64.LandingHead

// LandingWord is where the address of a detour's landings stands, by the place to which the gate goes back.
func LandingWord(resume uint64) uint64 { return amd64.LandingWord(resume) }

// LandingSize is the size of a table.
func LandingSize(head []byte) (n int, ok bool) { return amd64.LandingSize(head) }

// Land gives where in its detour a thread goes on that is sent to ip; ip itself if that is not in the region.
func Land(table []byte, ip uint64) (to uint64, inside bool) { return amd64.Land(table, ip) }

// RseqSignature stands before the abort addresses of restartable sequences.
const RseqSignature = amd64.RseqSignature

// The resident handler, and its tables.
type (
	Handler    = amd64.Handler
	HandlerEnv = amd64.HandlerEnv
	FaultEntry = amd64.FaultEntry
)

// Sizes of the handler's tables' entries, and where a context has its signal mask, from the stack pointer at the
// handler's end.
const (
	FaultEntrySize = amd64.FaultEntrySize
	TrapEntrySize  = amd64.TrapEntrySize
	ContextMask    = amd64.ContextMask
)

// NewHandler generates the resident handler, for an address.
func NewHandler(addr uint64, env HandlerEnv) (*Handler, error) { return amd64.NewHandler(addr, env) }

// AppendFaultEntries appends what the handler must know of a detour.
func AppendFaultEntries(out []FaultEntry, d *arch.Detour) []FaultEntry {
	return amd64.AppendFaultEntries(out, d)
}

// ReadFaultEntry reads an entry back.
func ReadFaultEntry(b []byte) FaultEntry { return amd64.ReadFaultEntry(b) }
