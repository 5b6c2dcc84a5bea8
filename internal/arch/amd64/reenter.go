package amd64

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/ring"
)

// A function with a trampoline may be left by a jump, and a function that it has jumped to may
// jump to its entry again. All these calls have one place on the stack and one return, and Linux
// tells a return probe of each of them there, the newest first.
//
// At an entry that finds its key taken, the word at the stack pointer tells which case it is:
//
//	the word                     the call with that key   so
//	an address of the program    was left by unwinding    it and all above it count as unwound; its slot
//	                             (a call has written      serves the new call
//	                             the word since)
//	a stub of this function,     is in progress           the new call gets a slot of its own, with the
//	or one that leads to such                             depth in its key
//
// The first of these calls has the key itself, and counts in slotDepth those above it that have an
// instance, 0 to maxDepth. The n-th above it has the key with n in the bits from depthShift on, which
// no stack pointer of a process has. An entry that finds no slot, or maxDepth calls, is missed, and
// changes nothing: the word at the stack pointer is the stub that it was.
//
// At the return the events' work runs as long as one of them has found that there are more calls,
// each time with the newest call of each event. Only the thread that runs on the stack touches the
// slots of its calls. A slot that is not there, since it was taken back in a stop, is passed over.
//
// A second event of the function finds the stub that the first one's work has just put there. So
// all look at the word as it was when the thread came.

const (
	depthShift = 56
	// maxDepth is how many calls above the first one have instances. Linux keeps as many for a
	// return by uprobe, the first one included (MAX_URETPROBE_DEPTH).
	maxDepth = 63
)

// withoutDepth takes the depth from the key of a call, without the event's salt. An address of a
// kernel has none.
func withoutDepth(key uint64) uint64 {
	if key>>63 != 0 {
		return key
	}
	return key & (1<<depthShift - 1)
}

// keepReturn emits the keeping of the return address that the thread has come with, where several
// events look at it one after another.
func (f *frame) keepReturn(ws []arch.ProbeOp) {
	n := 0
	for i := range ws {
		if ws[i].Role == arch.RoleEntry && ws[i].Trampoline != nil {
			n++
		}
	}
	if n < 2 {
		f.came = At(RSP, f.drop)
		return
	}
	f.MovRM(8, RAX, At(RSP, f.drop))
	f.MovMR(8, f.came, RAX)
}

// inProgress emits the choice whether the call whose key was found taken is in progress. It keeps
// S1, and clobbers RAX, RDX and S2.
func (f *frame) inProgress(t *arch.Trampoline, yes, no Label) {
	f.MovRM(8, RAX, f.came)
	f.walk(t, yes)
	f.Jmp(no)
}

// reenter emits the claim of an instance above the one in S1, if that call is in progress; else
// control goes on, with S1.
func (f *frame) reenter(c *claiming) {
	above, over := f.Label(), f.Label()
	f.inProgress(c.w.Trampoline, above, over)
	f.Bind(above)
	f.MovMR(8, At(RSP, f.head), f.s1())
	f.MovZXM(2, RAX, At(f.s1(), slotDepth))
	f.OpRI(OpCmp, 4, RAX, maxDepth)
	f.Jcc(CondAE, c.full)
	f.IncR(4, RAX)
	f.deeper()
	f.place(c.w.Pool)
	n := &claiming{w: c.w, got: f.Label(), taken: f.Label(), crowded: c.full}
	f.searchAll(n)
	f.Bind(n.taken) // what was left when the calls below it were taken back
	f.giveOne(c.w.Pool)
	f.bump(c.w.Event, ring.CtrUnwound)
	f.Bind(n.got)
	f.MovRM(8, RDX, At(RSP, f.head))
	f.IncM(2, At(RDX, slotDepth))
	f.Jmp(c.got)
	f.Bind(over)
}

// deeper emits RAX = the key of the instance as many above the one in S1 as RAX says.
func (f *frame) deeper() {
	f.ShiftRI(Shl, 8, RAX, depthShift)
	f.OpRM(OpXor, 8, RAX, At(f.s1(), slotKey))
}

// forgetAbove emits the end of the instances above the one in S1, whose calls were left with it.
func (f *frame) forgetAbove(w *arch.ProbeOp) {
	none := f.Label()
	f.OpMI(OpCmp, 2, At(f.s1(), slotDepth), 0)
	f.Jcc(CondE, none)
	f.MovMR(8, At(RSP, f.head), f.s1())
	last := f.Label()
	next := f.Here()
	f.above(w.Pool, next, last)
	f.giveBack(w.Pool)
	f.bump(w.Event, ring.CtrUnwound)
	f.Jmp(next)
	f.Bind(last)
	f.Bind(none)
}

// above emits S1 = the newest instance above the one that the head names, which forgets it. none is
// where control goes if there is none: S1 is that one then. gone is where control goes if the newest
// is not there.
func (f *frame) above(p *arch.Pool, gone, none Label) {
	f.MovRM(8, f.s1(), At(RSP, f.head))
	f.MovZXM(2, RAX, At(f.s1(), slotDepth))
	f.TestRR(4, RAX, RAX)
	f.Jcc(CondE, none)
	f.DecM(2, At(f.s1(), slotDepth))
	f.deeper()
	f.seek(p, gone)
}

// dropAbove emits, for an instance that is to be given back at its entry, that the one below it does
// not count it any more. S1 is kept.
func (f *frame) dropAbove(w *arch.ProbeOp) {
	first := f.Label()
	f.MovRM(8, RAX, At(f.s1(), slotKey))
	f.MovRI(RDX, EventSalt(w.Event))
	f.OpRR(OpXor, 8, RAX, RDX)
	f.ShiftRI(Shr, 8, RAX, depthShift)
	f.Jcc(CondE, first)
	f.MovRM(8, RDX, At(RSP, f.head))
	f.DecM(2, At(RDX, slotDepth))
	f.Bind(first)
}

// newest emits S1 = the newest instance of the call that returns. A return whose entry was not seen
// goes to none.
func (f *frame) newest(w *arch.ProbeOp, none Label) {
	f.salted(w.Instance, none)
	f.seek(w.Pool, none)
	if w.Trampoline == nil {
		return
	}
	more := f.Label()
	f.OpMI(OpCmp, 2, At(f.s1(), slotDepth), 0)
	f.Jcc(CondNE, more)
	found := f.Here()
	f.after(func() {
		f.Bind(more)
		f.MovMR(8, At(RSP, f.head), f.s1())
		f.MovMI(4, At(RSP, f.mark+4), 1)
		next := f.Here()
		f.above(w.Pool, next, found)
		f.Jmp(found)
	})
}

// below emits the work of the return once more, if one of the events has found that there are more calls.
func (f *frame) below(again Label) {
	more := f.Label()
	f.OpMI(OpCmp, 4, At(RSP, f.mark+4), 0)
	f.Jcc(CondNE, more)
	f.after(func() {
		f.Bind(more)
		f.MovMI(4, At(RSP, f.mark+4), 0)
		f.Jmp(again)
	})
}
