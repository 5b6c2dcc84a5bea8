package amd64

import "slices"

// nodeEffects is what an instruction does to registers, kept per node.
type nodeEffects struct {
	reads, writes, kills RegSet
	memWrite, known      bool
}

// effects gives what node id does to registers and flags.
func (fl *Flow) effects(id int32) nodeEffects {
	if n := len(fl.effs); int(id) >= n {
		fl.effs = slices.Grow(fl.effs, len(fl.nodes)-n)[:len(fl.nodes)]
		clear(fl.effs[n:])
	}
	if e := &fl.effs[id]; e.known {
		return *e
	}
	e := fl.nodes[id].in.Effects()
	fl.effs[id] = nodeEffects{e.Reads, e.Writes, e.Kills, e.MemWrite, true}
	return fl.effs[id]
}

// alwaysLive are the registers that never count as free: the stack pointer, and rbp,
// which unwinders and profilers follow although the code itself may never read it.
var alwaysLive = Set(RSP, RBP)

// LiveAt gives the registers, and Flags, that may be read before they are written on
// some path from addr on, before the instruction there runs. What is not in the set is
// free: the function's own code writes it before it reads it, whatever way it takes.
//
// Nothing but Func.Scratch is taken from an ABI. At returns, calls, system calls, jumps out, and wherever
// the flow is not known, everything is live: a caller may keep a value in any register
// that it knows the callee not to write (gcc's -fipa-ra). The same goes for code that
// the flow doesn't reach, and for loops that never end. rsp and rbp are always live.
// Registers that are live where the function is entered from outside (Func.Entries) are
// live everywhere, except in Go: an exception may go there from any instruction.
func (fl *Flow) LiveAt(addr uint64) RegSet {
	fl.liveOnce.Do(fl.computeLive)
	id := fl.node(addr)
	if id < 0 {
		return AllRegs
	}
	return fl.live[id] | alwaysLive
}

// computeLive solves live-in = reads | (live-out &^ kills) from the ends backwards.
func (fl *Flow) computeLive() {
	fl.linkOnce.Do(fl.linkLate)
	fl.live = zeroed(fl.live, len(fl.nodes))
	leaves := make([]bool, len(fl.nodes)) // something with everything live can be reached
	var work []int32
	for i := range fl.nodes {
		id := int32(i)
		fl.live[id] = fl.effects(id).reads
		if fl.allLive(id) {
			fl.live[id], leaves[id] = AllRegs&^fl.scratch(id), true
		}
		work = append(work, id)
	}
	for len(work) > 0 {
		id := work[len(work)-1]
		work = work[:len(work)-1]
		for _, p := range fl.preds(id) {
			in := fl.live[p] | fl.live[id]&^fl.effects(p).kills
			if in != fl.live[p] || leaves[id] && !leaves[p] {
				fl.live[p] = in
				leaves[p] = leaves[p] || leaves[id]
				work = append(work, p)
			}
		}
	}
	entered := fl.liveAtEntries()
	for i := range fl.live {
		if fl.live[i] |= entered; !leaves[i] {
			fl.live[i] = AllRegs
		}
	}
}

// allLive says whether everything is live before node id.
func (fl *Flow) allLive(id int32) bool {
	n := &fl.nodes[id]
	switch n.in.Kind {
	case KindPlain:
		return n.swept || n.next < 0 || fl.unsafeHere(n)
	case KindJmp:
		return n.swept || n.jump < 0
	case KindJcc, KindLoop, KindXbegin:
		return n.swept || n.jump < 0 || n.next < 0
	case KindJmpInd:
		j := fl.jumps[fl.jumpAt[id]]
		return n.swept || j.state != jumpTable || len(j.outside) > 0
	}
	return true
}

// scratch gives what carries nothing out of the function at node id.
func (fl *Flow) scratch(id int32) RegSet {
	n := &fl.nodes[id]
	if fl.returns(n) {
		return fl.fn.Scratch
	}
	switch n.in.Kind {
	case KindCall, KindCallInd:
		return fl.fn.Scratch & Flags
	}
	return 0
}

// unsafeHere says whether another instruction starts in n's bytes: what n is depends on
// how it is entered.
func (fl *Flow) unsafeHere(n *flowNode) bool {
	p, off := fl.place(n.addr)
	for d := uint64(1); d < uint64(n.in.Len); d++ {
		if p.at[off+d] != 0 {
			return true
		}
	}
	return false
}

// liveAtEntries joins what is live at the entries other than the function's start.
func (fl *Flow) liveAtEntries() RegSet {
	var s RegSet
	if fl.fn.Go {
		return s
	}
	for _, a := range fl.fn.Entries {
		if id := fl.node(a); id >= 0 && a != fl.fn.Addr {
			s |= fl.live[id]
		}
	}
	return s
}
