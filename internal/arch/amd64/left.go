package amd64

import (
	"kprobes.dev/kprobes/internal/arch"
)

// A goroutine that has recovered from a panic goes on in the function whose deferred function has recovered. Of all calls between there and the panic none
// returns, and their instances are left behind. The runtime does that on the thread's own stack, while the goroutine's still has what the calls have written: so
// each word of it that leads into the program's code, as a return address does, is looked up in the instances of each event, from the innermost call on.
// An instance is that of a call there if its key is that of the word's place and its return address is the word. A word that is left from an
// earlier call has an instance only if that call was left too, and nobody has told of it; it is told of then.
//
// Nobody else touches what is looked at: the goroutine does not run while the runtime is at this, and its instances are its own. A signal handler of the
// thread finds no instance of the goroutine: it runs on another stack, and has the g of signals.

// The words of who leaves calls, in the frame.
const (
	leftG      = iota // the g
	leftHigh          // the high end of its stack
	leftCursor        // the word of the stack that is looked at
	leftEnd           // how far
	leftReturn        // what the word holds
	leftWords
)

// leftCode is leftWork.
type leftCode func(f *frame, w *arch.ProbeOp) error

// LeftCode is arch.Left.Code.
func LeftCode() any { return leftCode(leftWork) }

// leftAt is the operand of a word.
func (f *frame) leftAt(word int32) Mem { return At(RSP, f.left+8*word) }

// leftUses adds what the records of calls that are left need of the frame.
func (wr writer) leftUses(u *uses, l *arch.Left) {
	u.left = true
	for i := range l.Calls {
		u.timed = u.timed || l.Calls[i].Budget != nil && l.Calls[i].Budget.Timed
		u.temps = max(u.temps, wr.tempsOf(&l.Calls[i]))
	}
}

// leavingCalls is the work of a RoleLeft.
type leavingCalls struct {
	*frame
	*arch.Left
	done Label
}

// leftWork emits it.
func leftWork(f *frame, w *arch.ProbeOp) error {
	l := &leavingCalls{frame: f, Left: w.Left, done: f.Label()}
	f.count(w.Event)
	if err := l.bounds(w); err != nil {
		return err
	}
	next, found, last := f.Label(), f.Label(), f.Label()
	look := f.Here()
	f.plainLoad(8, RAX, At(f.s1(), 0), l.done)
	f.MovRI(RDX, l.Text.Start)
	f.OpRR(OpSub, 8, RAX, RDX)
	f.MovRI(RDX, l.Text.End-l.Text.Start)
	f.OpRR(OpCmp, 8, RAX, RDX)
	f.Jcc(CondB, found)
	f.Bind(next)
	f.OpRI(OpAdd, 8, f.s1(), 8)
	f.OpRR(OpCmp, 8, f.s1(), f.s2())
	f.Jcc(CondB, look)
	f.Jmp(last)
	f.Bind(found)
	f.MovMR(8, f.leftAt(leftCursor), f.s1())
	f.MovRM(8, RAX, At(f.s1(), 0))
	f.MovMR(8, f.leftAt(leftReturn), RAX)
	for i := range l.Calls {
		if err := l.call(&l.Calls[i]); err != nil {
			return err
		}
	}
	f.MovRM(8, f.s1(), f.leftAt(leftCursor))
	f.MovRM(8, f.s2(), f.leftAt(leftEnd))
	f.Jmp(next)
	f.Bind(last)
	f.Bind(l.done)
	return nil
}

// bounds emits S1 = the first word to look at, and S2 = the end, and the words of the frame. What is no part of one stack goes on at done.
func (l *leavingCalls) bounds(w *arch.ProbeOp) error {
	s, err := l.newStoring(w)
	if err != nil {
		return err
	}
	l.ask(w)
	args := w.Prog.Args
	l.argBase(RAX, &args[0], args[0].Base, s, l.done)
	l.TestRR(8, RAX, RAX)
	l.Jcc(CondE, l.done)
	l.MovMR(8, l.leftAt(leftG), RAX)
	for i, word := range []int32{leftCursor, leftEnd, leftHigh} {
		l.value(&args[1+i], s)
		l.MovMR(8, l.leftAt(word), RAX)
	}
	l.MovRM(8, l.s1(), l.leftAt(leftCursor))
	l.MovRM(8, l.s2(), l.leftAt(leftEnd))
	l.MovRM(8, RDX, l.leftAt(leftHigh))
	l.OpRR(OpCmp, 8, RDX, l.s2())
	l.Jcc(CondB, l.done)
	l.OpRR(OpCmp, 8, l.s1(), l.s2())
	l.Jcc(CondAE, l.done)
	l.OpRR(OpSub, 8, RDX, l.s1())
	l.ShiftRI(Shr, 8, RDX, goKeyShift+3) // more than the largest stack
	l.Jcc(CondNE, l.done)
	l.TestRI(1, l.s1(), 7)
	l.Jcc(CondNE, l.done)
	return nil
}

// call emits the look for an instance of one event at the word, and its record.
func (l *leavingCalls) call(w *arch.ProbeOp) error {
	none, found := l.Label(), l.Label()
	l.MovRM(8, RDX, l.leftAt(leftG))
	l.MovRM(8, l.s1(), At(RDX, l.w.Go.GoID))
	l.ShiftRI(Shl, 8, l.s1(), goKeyShift)
	l.MovRM(8, RAX, l.leftAt(leftHigh))
	l.OpRM(OpSub, 8, RAX, l.leftAt(leftCursor))
	l.ShiftRI(Shr, 8, RAX, 3)
	l.OpRR(OpOr, 8, RAX, l.s1())
	l.MovRI(l.s2(), EventSalt(w.Instance))
	l.OpRR(OpXor, 8, RAX, l.s2())
	l.OpRR(OpXor, 8, l.s1(), RAX) // see placed
	l.OpRR(OpAdd, 8, RDX, l.s1())
	l.MovRI(l.s1(), hashFactor)
	l.ImulRR(8, RDX, l.s1())
	l.firstSlot(w.Pool)
	l.seekAll(w.Pool, none, found)
	l.Bind(found)
	l.MovRM(8, RAX, l.leftAt(leftReturn))
	l.OpMR(OpCmp, 8, At(l.s1(), slotReturn), RAX)
	l.Jcc(CondNE, none)
	l.readClock(w)
	l.takeSaved(w)
	err := l.store(w)
	l.Bind(none)
	return err
}
