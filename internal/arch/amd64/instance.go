package amd64

import (
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// An instance pairs a call's entry with its return. Its key is the stack pointer at
// entry, which points to the return address and is the same at every return; in a Go
// program, whose stacks move, the goroutine's id and the distance from the high end of
// its stack. A key that is found taken at an entry belongs to a call that was left by
// unwinding, or to one that has ended in a jump and came back to the function's entry by
// another: see reenter.go.
//
// Many events share a pool, so the key is mixed with a number that stands for the
// event (EventSalt). A pool is an open hash table; a key is searched in bucketLen
// slots from its place. With one slot in four taken, the chance that a key finds no
// place is below one in a billion.

// bucketLen is the number of slots that are searched for a key. A pool has that many
// more than its mask tells.
const bucketLen = 32

// hashFactor spreads keys (2^64 divided by the golden ratio, Knuth vol. 3, 6.4).
const hashFactor = 0x9e3779b97f4a7c15

// Offsets in a slot.
const (
	slotKey    = 0
	slotEvent  = 8
	slotDepth  = 12 // 16 bits: how many calls are in progress above this one's, at the same place: see reenter.go; of a goroutine its tag
	slotEpoch  = 14 // 16 bits: arch.ProbeOp.Epoch
	slotReturn = 16 // the return address: tells an instance that unwinding left
	slotValues = 24
)

// SlotStride is log2 of the bytes that a slot with n saved values takes.
func SlotStride(n int) int {
	stride := 4
	for 1<<stride < slotValues+8*n {
		stride++
	}
	return stride
}

// PoolBytes is the size of a pool's table.
func PoolBytes(slots, stride int) uint64 { return (1<<slots + bucketLen) << stride }

// EventSalt is the number that an event's keys are mixed with (the finisher of
// splitmix64).
func EventSalt(event int) uint64 {
	z := (uint64(event) + 1) * hashFactor
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// salted emits RAX = the key of the event's call (see key).
func (f *frame) salted(event int, none Label) {
	f.key(none)
	f.MovRI(RDX, EventSalt(event))
	f.OpRR(OpXor, 8, RAX, RDX)
}

// key emits RAX = the key of the call whose entry or return the point is. It
// clobbers RDX and S1. none is where a thread goes that can have no key.
func (f *frame) key(none Label) {
	if f.w.Go == nil {
		f.Lea(RAX, At(RSP, f.drop))
		return
	}
	system, done := f.Label(), f.Label()
	f.MovRM(8, RAX, AtFS(f.w.Go.TLS))
	f.TestRR(8, RAX, RAX)
	f.Jcc(CondE, none)
	f.MovRM(8, RDX, At(RAX, f.w.Go.GoID))
	f.TestRR(8, RDX, RDX)
	f.Jcc(CondE, system)
	f.MovRM(8, RAX, At(RAX, f.w.Go.StackHi))
	f.Lea(f.s1(), At(RSP, f.drop))
	f.OpRR(OpSub, 8, RAX, f.s1())
	f.ShiftRI(Shr, 8, RAX, 3)
	f.ShiftRI(Shl, 8, RDX, goKeyShift)
	f.OpRR(OpOr, 8, RAX, RDX)
	f.Bind(done)
	f.after(func() { // a system stack: it does not move
		f.Bind(system)
		f.Lea(RAX, At(RSP, f.drop))
		f.MovRI(RDX, 1<<63)
		f.OpRR(OpOr, 8, RAX, RDX)
		f.Jmp(done)
	})
}

// goKeyShift leaves room for the distance in words on a stack of the largest size that
// Go allows (1 GB).
const goKeyShift = 27

// place emits S1 = the first slot for the key in RAX.
func (f *frame) place(p *arch.Pool) {
	if f.w.Go == nil {
		f.MovRI(RDX, hashFactor)
		f.ImulRR(8, RDX, RAX)
	} else {
		f.placed()
		f.MovRI(f.s1(), hashFactor)
		f.ImulRR(8, RDX, f.s1())
	}
	f.firstSlot(p)
}

// firstSlot emits S1 = the first slot by the product in RDX.
func (f *frame) firstSlot(p *arch.Pool) {
	f.ShiftRI(Shr, 8, RDX, uint8(64-p.Slots))
	f.ShiftRI(Shl, 8, RDX, uint8(p.Stride))
	if f.w.Kernel != nil && fitsDisp(p.Base) {
		f.Lea(f.s1(), At(RDX, int32(p.Base)))
		return
	}
	f.MovRI(f.s1(), p.Base)
	f.OpRR(OpAdd, 8, f.s1(), RDX)
}

// placed emits RDX = what a Go program's key in RAX is placed by: itself with the address of the goroutine's g for its id. The runtime gives
// a g that has ended to a new goroutine, and never another one's memory; the id is another one each time. So the slots of a program that makes a
// goroutine for each request are few, and stay in the caches. It clobbers S1.
func (f *frame) placed() {
	system, done := f.Label(), f.Label()
	f.MovRM(8, RDX, AtFS(f.w.Go.TLS))
	f.MovRM(8, f.s1(), At(RDX, f.w.Go.GoID))
	f.ShiftRI(Shl, 8, f.s1(), goKeyShift)
	f.Jcc(CondE, system)
	f.OpRR(OpXor, 8, f.s1(), RAX)
	f.OpRR(OpAdd, 8, RDX, f.s1())
	f.Bind(done)
	f.after(func() {
		f.Bind(system)
		f.MovRR(8, RDX, RAX)
		f.Jmp(done)
	})
}

// tag emits RDX = 16 bits of the address of the goroutine's g, of which the highest is set: no depth is as large. system is where a thread goes
// that runs on a system stack.
func (f *frame) tag(system Label) {
	f.MovRM(8, RDX, AtFS(f.w.Go.TLS))
	f.OpMI(OpCmp, 8, At(RDX, f.w.Go.GoID), 0)
	f.Jcc(CondE, system)
	f.ShiftRI(Shr, 8, RDX, tagShift)
	f.OpRI(OpOr, 4, RDX, 0x8000)
}

// tagShift leaves out what the addresses of all g have in common: they are of a size class of more than 256 bytes.
const tagShift = 5

// tagged says whether instances of the entry have tags: calls that may be above each other at one place have depths there.
func (f *frame) tagged(w *arch.ProbeOp) bool { return f.w.Go != nil && w.Trampoline == nil }

// tagSlot emits the writing down of the goroutine's tag in the slot of S1. It clobbers RDX.
func (f *frame) tagSlot(w *arch.ProbeOp) {
	if !f.tagged(w) {
		return
	}
	done := f.Label()
	f.tag(done)
	f.MovMR(2, At(f.s1(), slotDepth), RDX)
	f.Bind(done)
}

// takeOver emits, where all slots for the key in RAX are taken, that one serves again whose call a goroutine has left that had the same g, and
// has ended. Goroutines that end by a panic, or in runtime.Goexit, leave such instances, all in the same few slots. S1 is behind the slots.
func (f *frame) takeOver(c *claiming) {
	none, next := f.Label(), f.Label()
	f.Bind(c.crowded)
	f.OpRI(OpSub, 8, f.s1(), bucketLen<<c.w.Pool.Stride)
	f.MovRI(f.s2(), bucketLen)
	loop := f.Here()
	f.OpMI(OpCmp, 4, At(f.s1(), slotEvent), int32(c.w.Event))
	f.Jcc(CondNE, next)
	f.tag(none)
	f.OpMR(OpCmp, 2, At(f.s1(), slotDepth), RDX)
	f.Jcc(CondNE, next)
	f.MovRM(8, RDX, At(f.s1(), slotKey))
	f.OpRR(OpXor, 8, RDX, RAX)
	f.ShiftRI(Shl, 8, RDX, 64-goKeyShift) // the same place on the stack, so that the id is another
	f.Jcc(CondNE, next)
	f.MovRR(8, RDX, RAX)
	f.MovRM(8, RAX, At(f.s1(), slotKey))
	f.Lock().Cmpxchg(8, At(f.s1(), slotKey), RDX)
	f.Jcc(CondE, c.taken)
	f.Jmp(none)
	f.Bind(next)
	f.OpRI(OpAdd, 8, f.s1(), 1<<c.w.Pool.Stride)
	f.OpRI(OpSub, 4, f.s2(), 1)
	f.Jcc(CondNE, loop)
	f.Bind(none)
	f.Jmp(c.full)
}

// claim emits a return probe's entry: an instance is taken and the values that the
// return wants are saved in it.
func (f *frame) claim(w *arch.ProbeOp) {
	c := &claiming{w: w, got: f.Label(), taken: f.Label(), left: f.Label(), full: f.Label(), missed: f.Label()}
	c.crowded = c.full
	if f.tagged(w) {
		c.crowded = f.Label()
		f.after(func() { f.takeOver(c) })
	}
	done := f.Label()
	f.ask(w)
	f.salted(w.Event, c.missed)
	if w.Pool.Max > 0 {
		f.takeOne(c)
	}
	f.place(w.Pool)
	f.search(c)
	f.Bind(c.got)
	f.nameSlot(w)
	f.tagSlot(w)
	f.MovRM(8, RAX, At(RSP, f.drop))
	noStub := f.Label()
	if w.Trampoline != nil {
		f.stub(w.Trampoline, noStub)
	}
	f.MovMR(8, At(f.s1(), slotReturn), RAX)
	for i, b := range w.Prog.EntryBases() {
		switch off := int32(slotValues + 8*i); {
		case b.Kind != fetch.BaseSpan:
			f.entryValue(b, off)
		case b.N == 0:
			a := &w.Prog.Args[b.Imm]
			a.Chain.(spanCode).enter(f, a, off)
		}
	}
	if w.Call != nil {
		f.callAtEntry(w, done)
	}
	if w.Trampoline != nil {
		f.replace()
	}
	f.Bind(done)
	f.after(func() {
		if w.Trampoline != nil { // never for a call above another: its word is a stub's
			f.Bind(noStub)
			f.MovMI(8, At(f.s1(), slotKey), 0)
		}
		f.Bind(c.full)
		f.giveOne(w.Pool)
		f.Bind(c.missed)
		f.bump(w.Event, ring.CtrMissed)
		f.Jmp(done)
	})
	f.after(func() { f.found(c) })
}

// claiming is where the code that claims an instance goes on.
type claiming struct {
	w   *arch.ProbeOp
	got Label // S1 is the slot
	// taken: S1 is a slot that has the key already; an instance was counted against the maximum.
	taken Label
	// left: S1 is a slot that has the key already, of a call that is over; no instance was counted.
	left Label
	// crowded: all slots for the key are taken by others; an instance was counted against the maximum.
	crowded Label
	full    Label // there is no slot; likewise
	missed  Label // likewise, and none was counted
}

// nameSlot emits the writing down of whose the slot of S1 is. It clobbers RAX.
func (f *frame) nameSlot(w *arch.ProbeOp) {
	if w.Epoch == 0 {
		f.MovMI(8, At(f.s1(), slotEvent), int32(w.Event))
		return
	}
	f.MovRI(RAX, uint64(uint32(w.Event))|uint64(w.Epoch)<<48)
	f.MovMR(8, At(f.s1(), slotEvent), RAX)
}

// search emits the loop that claims a slot for the key in RAX; S1 is the slot.
func (f *frame) search(c *claiming) {
	if f.w.Kernel != nil {
		f.tryFirst(c)
		return
	}
	f.searchAll(c)
}

// tryFirst emits the claim of the key's own slot, which is free but for rare cases; those
// are put behind the code.
func (f *frame) tryFirst(c *claiming) {
	other := f.Label()
	f.MovRR(8, RDX, RAX)
	f.MovRI(RAX, 0)
	f.Lock().Cmpxchg(8, At(f.s1(), slotKey), RDX)
	f.Jcc(CondNE, other)
	f.after(func() {
		f.Bind(other)
		f.MovRR(8, RAX, RDX)
		f.searchAll(c)
	})
}

// searchAll emits the search itself.
func (f *frame) searchAll(c *claiming) {
	try, next := f.Label(), f.Label()
	f.MovRI(f.s2(), bucketLen)
	loop := f.Here()
	f.MovRM(8, RDX, At(f.s1(), slotKey))
	f.TestRR(8, RDX, RDX)
	f.Jcc(CondE, try)
	f.OpRR(OpCmp, 8, RDX, RAX)
	f.Jcc(CondE, c.taken)
	f.Bind(next)
	f.OpRI(OpAdd, 8, f.s1(), 1<<c.w.Pool.Stride)
	f.OpRI(OpSub, 4, f.s2(), 1)
	f.Jcc(CondNE, loop)
	f.Jmp(c.crowded)
	f.Bind(try)
	f.MovRR(8, RDX, RAX)
	f.MovRI(RAX, 0)
	f.Lock().Cmpxchg(8, At(f.s1(), slotKey), RDX)
	f.Jcc(CondE, c.got)
	f.MovRR(8, RAX, RDX)
	f.Jmp(next)
}

// found emits what is done where the key is found taken. The slot of a call that was left by
// unwinding serves again.
func (f *frame) found(c *claiming) {
	f.Bind(c.taken)
	if c.w.Trampoline != nil {
		f.reenter(c)
	}
	f.giveOne(c.w.Pool)
	f.Bind(c.left)
	if c.w.Trampoline != nil {
		f.forgetAbove(c.w)
	}
	f.bump(c.w.Event, ring.CtrUnwound)
	f.Jmp(c.got)
}

// entryValue emits the saving of one base into the slot of S1.
func (f *frame) entryValue(b fetch.Base, off int32) {
	if b.Kind == fetch.BaseDuration || b.Kind == fetch.BaseEntered {
		f.tsc()
	} else {
		fault, done := f.Label(), f.Label()
		f.base(RAX, b, fault)
		f.Bind(done)
		f.zeroOn(fault, done)
	}
	f.MovMR(8, At(f.s1(), off), RAX)
}

// takeOne emits the counting of an instance against the pool's maximum. Where that is
// reached, the key in RAX may still be that of a call that was left by unwinding.
func (f *frame) takeOne(c *claiming) {
	over := f.Label()
	f.MovRI(RDX, c.w.Pool.Active)
	f.MovRI(f.s2(), 1)
	f.Lock().Xadd(4, At(RDX, 0), f.s2())
	f.OpRI(OpCmp, 4, f.s2(), int32(c.w.Pool.Max))
	f.Jcc(CondAE, over)
	f.after(func() {
		f.Bind(over)
		f.Lock().DecM(4, At(RDX, 0))
		f.seek(c.w.Pool, c.missed)
		if c.w.Trampoline == nil {
			f.Jmp(c.left)
			return
		}
		f.inProgress(c.w.Trampoline, c.missed, c.left)
	})
}

// giveOne emits the opposite of takeOne. It clobbers RDX.
func (f *frame) giveOne(p *arch.Pool) {
	if p.Max == 0 {
		return
	}
	f.MovRI(RDX, p.Active)
	f.Lock().DecM(4, At(RDX, 0))
}

// bump emits a locked increment of one of the event's counters. It clobbers RDX.
func (f *frame) bump(event int, field int32) {
	f.MovRI(RDX, f.w.lockedShard(0)+uint64(counter(event, field)))
	f.Lock().IncM(8, At(RDX, 0))
}
