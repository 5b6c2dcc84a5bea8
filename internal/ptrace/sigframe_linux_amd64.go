package ptrace

import (
	"slices"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
)

// InFrame says whether the word at at is a signal frame's saved instruction pointer or its
// return address: the saved code segment tells.
func (p *Process) InFrame(at uint64) bool {
	for _, cs := range []uint64{at + scCS - scRIP, at + 8 + scOffset + scCS} {
		var b [2]byte
		if p.ReadMem(cs, b[:]) == nil && le.Uint16(b[:]) == userCS {
			return true
		}
	}
	return false
}

// Offsets in struct sigcontext (asm/sigcontext.h).
const (
	scRSP = 120
	scRIP = 128
	scCS  = 144
)

// SavedIP says whether a word of a signal frame that InFrame knows is the instruction pointer, not the return address.
func (p *Process) SavedIP(at uint64) bool {
	var cs [2]byte
	return p.ReadMem(at-scRIP+scCS, cs[:]) == nil && le.Uint16(cs[:]) == userCS
}

// SavedSP gives the stack pointer of the signal frame whose instruction pointer stands at at.
func (p *Process) SavedSP(at uint64) (uint64, error) {
	var b [8]byte
	err := p.ReadMem(at-scRIP+scRSP, b[:])
	return le.Uint64(b[:]), err
}

// SavedRegs gives the general registers, RIP and the flags of the signal frame whose instruction pointer stands at at.
func (p *Process) SavedRegs(at uint64) (r Regs, err error) {
	var b [scCS]byte
	if err := p.ReadMem(at-scRIP, b[:]); err != nil {
		return r, err
	}
	for i, to := range []*uint64{
		&r.R8, &r.R9, &r.R10, &r.R11, &r.R12, &r.R13, &r.R14, &r.R15,
		&r.RDI, &r.RSI, &r.RBP, &r.RBX, &r.RDX, &r.RAX, &r.RCX, &r.RSP, &r.RIP, &r.Flags,
	} {
		*to = le.Uint64(b[8*i:])
	}
	return r, nil
}

// altStack looks for the signal frame of an alternate stack that the stack pointer is in.
// Such a stack may lie within another one, as a local array. The frame holds its bounds.
func (s *Stopped) altStack(m procfs.Map, sp uint64) (interval.Range, bool) {
	b := make([]byte, min(m.End-sp, stackScan))
	n, err := s.p.ReadMemSome(sp, b)
	if err != nil {
		return interval.Range{}, false
	}
	g := s.p.findGadgets()
	at := -sp & 7
	for ; at+8+ucSize <= uint64(n); at += 8 {
		if !slices.Contains(g.stubs, le.Uint64(b[at:])) {
			continue
		}
		stack := b[at+8+16:] // uc_stack: pointer, flags, size
		alt := interval.Range{Start: le.Uint64(stack), End: le.Uint64(stack) + le.Uint64(stack[16:])}
		if alt.Start <= sp && sp < alt.End && sp+at < alt.End {
			return alt, true
		}
	}
	return interval.Range{}, false
}
