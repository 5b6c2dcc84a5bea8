package amd64

import (
	"math"
	"math/bits"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/ring"
)

// A sample (arch.Sample) decides at the entry of a call that is in no other whether its trace is kept. What is called in it follows. So a hit
// has to know what its goroutine, or thread, is in. A table says so. Each that has entered a function has a slot in it, which is found by
// a key and never given back:
//
//	              in Go program             elsewhere
//	key           the address of the g      the thread pointer, or the thread's id where that may be another's; 0: the slot is free
//	owner         the goroutine's id, or    the thread's id
//	              of a thread's g its id
//	state         what the owner is in; 0: in no call
//
// The runtime never frees a g, and the C library has a thread's block serve again, so there are as many slots as ever ran at a time. One
// whose owner is another says nothing of who has the key now.
//
//	state   63             20 19      3    2      1     0
//	        depth (8 bytes)   function  stub   kept   in a call
//
// Depth and function are those of the outermost call; stub: its returns are seen by trampoline. Depth 0, which no call has, says that the
// goroutine was created in a call.
//
//   - An entry that is deeper than the outermost call is in it. One that is not, on the same stack, shows that the outermost call was left
//     without a return. So does one of equal depth, unless a function that is seen by trampoline has ended in a jump to another one.
//     Then, and where the state is 0, the entry is of an outermost call: a counter decides, and the state is written.
//   - A return of the outermost call makes the state 0. One further out shows that it was left, and is in none.
//   - A goroutine that is created in a call gets a state with depth 0.
//
// Who may be at the same words:
//
//  1. Another goroutine or thread claims a free slot by a locked exchange: one of them gets it. Nobody else writes to a slot that has a
//     key but who has the key, and who creates a goroutine, which does not run yet.
//  2. A signal handler of the thread, which has its key, at any instruction. Before the owner is written the state is made 0, so the
//     handler finds another owner or no call, and leaves the owner and a state of 0 behind, as it found them. A state
//     is one word: the handler finds the old one or the new one, and what it enters is deeper than that.
//  3. A child of fork has a copy of the table, in which it has another thread's id: it is in no call. One that shares the memory has no
//     thread pointer of its own, and is found by its id (CodegenEnv.Shared).
//
// A goroutine's stack moves, and its depth does not. A thread or a goroutine that goes on elsewhere in between takes nothing of the CPU along.

// Offsets in a slot, and its size.
const (
	sampleKey    = 0
	sampleOwner  = 8
	sampleState  = 16
	sampleStride = 5 // log2
)

// Parts of a state.
const (
	sampleIn        = 1 << 0
	sampleKept      = 1 << 1
	sampleStub      = 1 << 2
	sampleFuncShift = 3
	sampleFuncBits  = 17
	sampleFuncMask  = (1<<sampleFuncBits - 1) << sampleFuncShift
	sampleDepth     = sampleFuncShift + sampleFuncBits
)

// The counter of decisions has a cache line in front of the slots.
const (
	sampleCounter = 0
	sampleFirst   = 64
)

// SampleBytes is the size of a table, with the counter.
const SampleBytes = sampleFirst + (1<<arch.SampleSlots+bucketLen)<<sampleStride

// sampleSame is the distance within which two depths are of one stack, in words of 8 bytes: Go's stacks have 1 GiB at most.
const sampleSame = 1 << 27

// sampleCode is (*frame).sample.
type sampleCode func(f *frame, w *arch.ProbeOp, s *storing, done Label)

// SampleCode is arch.Sample.Code.
func SampleCode() any { return sampleCode((*frame).sample) }

// sampling is the work of one decision.
type sampling struct {
	*arch.Sample
	w *arch.ProbeOp
	// pass is where a hit goes that is recorded, and drop one of a trace that is not kept. none is for an owner that there is no room for.
	pass, drop, none Label
}

// function is the number of the function in a state.
func (m *sampling) function() int32 {
	return int32(m.Func*hashFactor>>(64-sampleFuncBits)) << sampleFuncShift
}

// beforeInstance says whether a return is decided about before its call's instance is looked for: a call of a trace that is not kept
// need not have one. A filter needs the instance, and a return address that is replaced too.
func beforeInstance(w *arch.ProbeOp) bool {
	return w.Role == arch.RoleExit && plainLeave(w)
}

func plainLeave(w *arch.ProbeOp) bool {
	return w.Sample != nil && w.Sample.Paired && w.Filter == nil && w.Trampoline == nil && w.Budget == nil
}

// without says whether the calls of a RoleEntry have no instance where one of the works at the same point, before it, drops them.
func without(w *arch.ProbeOp, ws []arch.ProbeOp) bool {
	for i := 0; plainLeave(w) && &ws[i] != w; i++ {
		if o := ws[i].Sample; o != nil && o.Table == w.Sample.Table && o.Role == arch.SampleEnter {
			return true
		}
	}
	return false
}

// unlessDropped emits a jump to over if the call of a RoleEntry has no instance. The decision is made at the point by a work before it.
func (f *frame) unlessDropped(w *arch.ProbeOp, over Label) {
	if f.dropped == 0 || !without(w, f.miss) {
		return
	}
	f.OpMI(OpCmp, 8, At(RSP, f.dropped), 0)
	f.Jcc(CondNE, over)
}

// sampleFirst emits the decision of a return about which is decided before its call's instance is looked for.
func (f *frame) sampleFirst(w *arch.ProbeOp, done Label) {
	if !beforeInstance(w) {
		return
	}
	if f.w.TID == arch.TIDSyscall {
		f.askTID()
		f.MovMR(8, f.tempAt(tempTID), RAX)
	}
	w.Sample.Code.(sampleCode)(f, w, nil, done)
}

// sample emits the decision whether the hit of a work is recorded; one that is not is counted, and goes on at done. s may be nil where no
// argument is looked at.
func (f *frame) sample(w *arch.ProbeOp, s *storing, done Label) {
	m := &sampling{Sample: w.Sample, w: w, pass: f.Label(), drop: f.Label(), none: f.Label()}
	note := m.Role == arch.SampleEnter && f.dropped != 0
	if note {
		f.MovMI(8, At(RSP, f.dropped), 0)
	}
	switch m.Role {
	case arch.SampleEnter:
		f.sampleEnter(m)
	case arch.SampleLeave:
		f.sampleLeave(m)
	case arch.SampleEnded:
		f.sampleEnded(m)
	case arch.SampleCreated:
		f.sampleCreated(m, s)
	case arch.SampleRecovered:
		f.sampleRecovered(m, s)
	}
	f.Bind(m.pass)
	f.after(func() {
		f.Bind(m.drop)
		if note {
			f.MovMI(8, At(RSP, f.dropped), 1)
		}
		if m.Role == arch.SampleEnter {
			f.countIn(m.w.Event, ring.CtrUnsampled)
		} else {
			f.count(m.w.Event)
		}
		f.Jmp(done)
		f.Bind(m.none)
		if note {
			f.MovMI(8, At(RSP, f.dropped), 1)
		}
		f.bump(m.w.Event, ring.CtrMissed)
		f.Jmp(done)
	})
}

// sampleSelf emits RAX = the key and S2 = the owner who hits. A thread that is not known has its hits recorded: whoever reads them
// counts it. It clobbers RDX and S1.
func (f *frame) sampleSelf(m *sampling) {
	switch {
	case f.w.Go != nil:
		f.MovRM(8, RAX, AtFS(f.w.Go.TLS))
		f.TestRR(8, RAX, RAX)
		f.Jcc(CondE, m.pass)
		system := f.Label()
		f.MovRM(8, f.s2(), At(RAX, f.w.Go.GoID))
		f.TestRR(8, f.s2(), f.s2())
		f.Jcc(CondE, system)
		on := f.Here()
		f.after(func() {
			f.Bind(system)
			f.MovRM(8, f.s2(), At(RAX, f.w.Go.M))
			f.MovRM(8, f.s2(), At(f.s2(), f.w.Go.ProcID))
			f.Jmp(on)
		})
	case f.w.TID == arch.TIDThread:
		other := f.Label()
		f.ownBlock(other)
		f.MovRM(8, RAX, AtFS(0)) // a thread's block begins with its own address (System V ABI, x86-64, thread-local storage)
		f.MovRM(4, f.s2(), AtFS(f.w.TIDOff))
		if f.w.Shared == 0 {
			return
		}
		on := f.Here()
		f.after(func() {
			f.Bind(other)
			f.askTID()
			f.sampleThread(m)
			f.Jmp(on)
		})
	default:
		f.MovRM(8, RAX, f.tempAt(tempTID))
		f.sampleThread(m)
	}
}

// sampleThread emits S2 = the owner, where RAX, the key, is the thread's id.
func (f *frame) sampleThread(m *sampling) {
	f.TestRR(8, RAX, RAX)
	f.Jcc(CondE, m.pass)
	f.MovRR(8, f.s2(), RAX)
}

// samplePlace emits S1 = the first slot for the key in RAX, and RDX = how many may have it.
func (f *frame) samplePlace(m *sampling) {
	f.MovRI(RDX, hashFactor)
	f.ImulRR(8, RDX, RAX)
	f.ShiftRI(Shr, 8, RDX, 64-arch.SampleSlots)
	f.ShiftRI(Shl, 8, RDX, sampleStride)
	f.MovRI(f.s1(), m.Table+sampleFirst)
	f.OpRR(OpAdd, 8, f.s1(), RDX)
	f.MovRI(RDX, bucketLen)
}

// sampleSeek emits S1 = the slot of the key in RAX. It clobbers RDX. Where the search comes to a free slot it goes on at free, and where there is
// none at full.
func (f *frame) sampleSeek(m *sampling, free, full Label) {
	found := f.Label()
	f.samplePlace(m)
	loop := f.Here()
	f.OpMR(OpCmp, 8, At(f.s1(), sampleKey), RAX)
	f.JccShort(CondE, found)
	f.OpMI(OpCmp, 8, At(f.s1(), sampleKey), 0)
	f.Jcc(CondE, free)
	f.OpRI(OpAdd, 8, f.s1(), 1<<sampleStride)
	f.OpRI(OpSub, 4, RDX, 1)
	f.JccShort(CondNE, loop)
	f.Jmp(full)
	f.Bind(found)
}

// sampleFind emits S1 = the slot of the key in RAX and the owner in S2, and RDX = its state. One that is in no call goes on at
// m.drop.
func (f *frame) sampleFind(m *sampling) {
	f.sampleSeek(m, m.drop, m.drop)
	f.OpMR(OpCmp, 8, At(f.s1(), sampleOwner), f.s2())
	f.Jcc(CondNE, m.drop)
	f.MovRM(8, RDX, At(f.s1(), sampleState))
	f.TestRR(8, RDX, RDX)
	f.Jcc(CondE, m.drop)
}

// sampleClaim emits S1 = the slot of the key in RAX, which gets one if it has none. It clobbers RDX.
func (f *frame) sampleClaim(m *sampling) {
	again, free := f.Here(), f.Label()
	f.sampleSeek(m, free, m.none)
	on := f.Here()
	f.after(func() {
		f.Bind(free)
		f.MovRR(8, RDX, RAX)
		f.MovRI(RAX, 0)
		f.Lock().Cmpxchg(8, At(f.s1(), sampleKey), RDX)
		f.MovRR(8, RAX, RDX)
		f.Jcc(CondE, on)
		f.Jmp(again)
	})
}

// sampleBelong emits that the slot of S1 belongs to the owner in S2, who is in no call.
func (f *frame) sampleBelong() {
	f.MovMI(8, At(f.s1(), sampleState), 0)
	f.MovMR(8, At(f.s1(), sampleOwner), f.s2())
}

// sampleWords emits RAX = the depth in RAX as a state has it.
func (f *frame) sampleWords() {
	f.ShiftRI(Shl, 8, RAX, sampleDepth-3)
	f.ShiftRI(Shr, 8, RAX, sampleDepth)
}

// sampleKeeps emits a jump to m.drop if the trace of the state in RDX is not kept.
func (f *frame) sampleKeeps(m *sampling) {
	f.TestRI(1, RDX, sampleKept)
	f.Jcc(CondE, m.drop)
}

// sampleEnter emits the decision at an entry.
func (f *frame) sampleEnter(m *sampling) {
	f.sampleSelf(m)
	f.sampleClaim(m)
	another, first, in, same := f.Label(), f.Label(), f.Label(), f.Label()
	f.OpMR(OpCmp, 8, At(f.s1(), sampleOwner), f.s2())
	f.Jcc(CondNE, another)
	mine := f.Here()
	f.depth(RAX)
	f.sampleWords()
	f.MovRM(8, RDX, At(f.s1(), sampleState))
	f.TestRR(8, RDX, RDX)
	f.Jcc(CondE, first)
	f.sampleBeyond(in, same)
	f.Jcc(CondB, first)
	f.Bind(in)
	f.sampleKeeps(m)
	f.after(func() {
		f.Bind(another)
		f.sampleBelong()
		f.Jmp(mine)
		f.Bind(same)
		f.sampleOther(m)
		f.Jcc(CondE, first)
		f.TestRI(1, RDX, sampleStub)
		f.Jcc(CondNE, in)
		f.Bind(first)
		f.sampleDecide(m)
	})
}

// sampleBeyond emits the comparison of the depth in RAX with that of the state in RDX: a deeper one goes on at in, and an equal one at same.
// Else the condition below says whether they are of one stack. It clobbers S2.
func (f *frame) sampleBeyond(in, same Label) {
	f.MovRR(8, f.s2(), RDX)
	f.ShiftRI(Shr, 8, f.s2(), sampleDepth)
	f.OpRR(OpSub, 8, f.s2(), RAX)
	f.Jcc(CondB, in)
	f.Jcc(CondE, same)
	f.OpRI(OpCmp, 8, f.s2(), sampleSame)
}

// sampleOther emits the comparison of the function of the state in RDX with that of the hit. It clobbers S2.
func (f *frame) sampleOther(m *sampling) {
	f.MovRR(4, f.s2(), RDX)
	f.OpRI(OpAnd, 4, f.s2(), sampleFuncMask)
	f.OpRI(OpCmp, 4, f.s2(), m.function())
}

// sampleDecide emits the decision of an outermost call, whose depth is in RAX: of the numbers that the counter gives out those are
// kept that Every divides.
func (f *frame) sampleDecide(m *sampling) {
	state := sampleIn | m.function()
	if replaces(f.miss) {
		state |= sampleStub
	}
	f.ShiftRI(Shl, 8, RAX, sampleDepth)
	f.OpRI(OpOr, 8, RAX, state)
	if !m.Always {
		not := f.Label()
		f.MovRI(f.s2(), m.Table+sampleCounter)
		f.MovRI(RDX, 1)
		f.Lock().Xadd(8, At(f.s2(), 0), RDX)
		f.sampleDivides(m.Every)
		f.Jcc(CondA, not)
		f.after(func() {
			f.Bind(not)
			f.MovMR(8, At(f.s1(), sampleState), RAX)
			f.Jmp(m.drop)
		})
	}
	f.OpRI(OpOr, 8, RAX, sampleKept)
	f.MovMR(8, At(f.s1(), sampleState), RAX)
	f.Jmp(m.pass)
}

// sampleDivides emits a comparison that says "below or equal" if n divides the number in RDX, without a division, which takes long: the
// product with the inverse of n's odd part, turned by the number of its zeros, is the quotient then, and greater else (Hacker's Delight,
// 10-17). It clobbers RDX and S2.
func (f *frame) sampleDivides(n uint64) {
	zeros := bits.TrailingZeros64(n)
	odd := n >> zeros
	inverse := odd // right in 3 bits, and in twice as many after each step
	for range 5 {
		inverse *= 2 - odd*inverse
	}
	f.MovRI(f.s2(), inverse)
	f.ImulRR(8, RDX, f.s2())
	if zeros > 0 {
		f.ShiftRI(Ror, 8, RDX, uint8(zeros))
	}
	f.MovRI(f.s2(), math.MaxUint64/n)
	f.OpRR(OpCmp, 8, RDX, f.s2())
}

// sampleLeave emits the decision at a return.
func (f *frame) sampleLeave(m *sampling) {
	f.sampleSelf(m)
	f.sampleFind(m)
	in, same, left := f.Label(), f.Label(), f.Label()
	f.depth(RAX)
	f.sampleWords()
	f.sampleBeyond(in, same)
	f.Jcc(CondB, left)
	f.Bind(in)
	f.sampleKeeps(m)
	f.after(func() {
		f.Bind(same)
		other := f.Label()
		f.sampleOther(m)
		f.Jcc(CondNE, other)
		f.MovMI(8, At(f.s1(), sampleState), 0)
		f.Jmp(in)
		f.Bind(other)
		f.TestRI(1, RDX, sampleStub)
		f.Jcc(CondNE, in)
		f.Bind(left)
		f.MovMI(8, At(f.s1(), sampleState), 0)
		f.Jmp(m.drop)
	})
}

// sampleEnded emits the decision at the end of a goroutine. Its slot belongs to nobody when its g serves again.
func (f *frame) sampleEnded(m *sampling) {
	f.sampleSelf(m)
	f.sampleFind(m)
	f.sampleKeeps(m)
}

// sampleG emits RAX = the g that argument i of the program begins with, and S2 = its goroutine. What is none goes on at m.drop.
func (f *frame) sampleG(m *sampling, s *storing, i int) {
	a := &s.w.Prog.Args[i]
	f.argBase(RAX, a, a.Base, s, m.drop)
	f.TestRR(8, RAX, RAX)
	f.Jcc(CondE, m.drop)
	f.load(spaceAny, 8, f.s2(), At(RAX, f.w.Go.GoID), m.drop)
	f.TestRR(8, f.s2(), f.s2())
	f.Jcc(CondE, m.drop)
}

// sampleCreated emits that a new goroutine is in what its creator is in.
func (f *frame) sampleCreated(m *sampling, s *storing) {
	f.sampleG(m, s, 0)
	f.sampleFind(m)
	f.OpRI(OpAnd, 4, RDX, sampleIn|sampleKept)
	f.MovMR(8, f.tempAt(tempEnd), RDX)
	f.sampleG(m, s, 1)
	f.sampleClaim(m)
	f.sampleBelong()
	f.MovRM(8, RDX, f.tempAt(tempEnd))
	f.MovMR(8, At(f.s1(), sampleState), RDX)
	f.sampleKeeps(m)
}

// sampleRecovered emits that calls were left by a panic, the outermost one perhaps among them.
func (f *frame) sampleRecovered(m *sampling, s *storing) {
	const sp, high = 1, 2
	for _, i := range []int{sp, high} {
		f.evaluateArg(s, i)
		s.loaded = append(s.loaded, i)
	}
	f.sampleG(m, s, 0)
	f.sampleFind(m)
	f.MovRM(8, RAX, f.tempAt(s.temps[high]))
	f.OpRM(OpSub, 8, RAX, f.tempAt(s.temps[sp]))
	f.sampleWords()
	on := f.Label()
	f.MovRR(8, f.s2(), RDX)
	f.ShiftRI(Shr, 8, f.s2(), sampleDepth)
	f.OpRR(OpCmp, 8, f.s2(), RAX)
	f.JccShort(CondBE, on)
	f.MovMI(8, At(f.s1(), sampleState), 0)
	f.Bind(on)
	f.sampleKeeps(m)
}
