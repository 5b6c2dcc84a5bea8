package amd64

import (
	"slices"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
)

// find emits a return probe's exit: the instance of the call that returns is looked
// up, what it saved goes to temporaries, and it is given back. A return whose entry
// was not seen goes to none.
func (f *frame) find(w *arch.ProbeOp, none Label) {
	f.readClock(w)
	f.own(w, none)
	f.takeSaved(w)
}

// takeSaved emits that the values in the instance of S1 go to temporaries, and that it is given back. It clobbers RAX and RDX.
func (f *frame) takeSaved(w *arch.ProbeOp) {
	if !w.Count {
		for i, b := range w.Prog.EntryBases() {
			f.MovRM(8, RAX, At(f.s1(), int32(slotValues+8*i)))
			if b.Kind == fetch.BaseDuration {
				f.duration(w.Tick, f.tempAt(fixedTemps+i))
			}
			f.MovMR(8, f.tempAt(fixedTemps+i), RAX)
		}
	}
	f.giveBack(w.Pool)
}

// readClock emits the storing of the clock where the value of a duration goes: the exit's work before it does not count.
func (f *frame) readClock(w *arch.ProbeOp) {
	if w.Count {
		return
	}
	if i := slices.Index(w.Prog.EntryBases(), fetch.Base{Kind: fetch.BaseDuration}); i >= 0 {
		f.tsc()
		f.MovMR(8, f.tempAt(fixedTemps+i), RAX)
	}
}

// duration emits RAX = the nanoseconds from the clock in RAX to the one in now; 0 if that is earlier, as another CPU's may be.
func (f *frame) duration(tick uint64, now Mem) {
	f.MovRR(8, RDX, RAX)
	f.MovRM(8, RAX, now)
	f.OpRR(OpSub, 8, RAX, RDX)
	ok := f.Label()
	f.JccShort(CondAE, ok)
	f.MovRI(RAX, 0)
	f.Bind(ok)
	f.MovRI(RDX, tick)
	f.extR(8, 0xf7, 4, RDX)    // mul
	f.ShiftRI(Shr, 8, RAX, 32) // shrd does the same, and takes longer
	f.ShiftRI(Shl, 8, RDX, 32)
	f.OpRR(OpOr, 8, RAX, RDX)
}

// own emits S1 = the newest instance of the call that returns, if it is one of the exit's code. One that is
// not is left to the next entry with its key, or to a Reap. It clobbers RAX.
func (f *frame) own(w *arch.ProbeOp, none Label) {
	f.newest(w, none)
	f.matched(w)
	f.MovZXM(2, RAX, At(f.s1(), slotEpoch))
	f.OpRI(OpCmp, 4, RAX, int32(w.Epoch))
	f.Jcc(CondNE, none)
}

// seek emits S1 = the slot that the key in RAX has taken. It clobbers RDX and S2.
func (f *frame) seek(p *arch.Pool, none Label) {
	found := f.Label()
	f.place(p)
	if f.w.Kernel != nil {
		f.seekFirst(p, none)
		return
	}
	f.seekAll(p, none, found)
	f.Bind(found)
}

// seekFirst emits the look at the key's own slot; the others follow behind the code.
func (f *frame) seekFirst(p *arch.Pool, none Label) {
	other := f.Label()
	f.OpMR(OpCmp, 8, At(f.s1(), slotKey), RAX)
	f.Jcc(CondNE, other)
	found := f.Here()
	f.after(func() {
		f.Bind(other)
		f.seekAll(p, none, found)
	})
}

// seekAll emits the search from S1 on.
func (f *frame) seekAll(p *arch.Pool, none, found Label) {
	f.MovRI(f.s2(), bucketLen)
	loop := f.Here()
	f.OpMR(OpCmp, 8, At(f.s1(), slotKey), RAX)
	f.Jcc(CondE, found)
	f.OpRI(OpAdd, 8, f.s1(), 1<<p.Stride)
	f.OpRI(OpSub, 4, f.s2(), 1)
	f.JccShort(CondNE, loop)
	f.Jmp(none)
}
