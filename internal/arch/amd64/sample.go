package amd64

import (
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

// sampleCode is sampleWork.
type sampleCode func(f *frame, w *arch.ProbeOp, s *storing, to Label)

// SampleCode is arch.Sample.Code.
func SampleCode() any { return sampleCode(sampleWork) }

// sampleWork emits what a work's sample has to do. With s, where the work is about to be stored: a hit that is not recorded is counted, and goes
// on at to. Without, before an instance is claimed or looked for: who needs none goes on at to.
func sampleWork(f *frame, w *arch.ProbeOp, s *storing, to Label) {
	switch early := w.Role == arch.RoleExit && plainLeave(w); {
	case s != nil && !early:
		newSampling(f, w).decide(s, to)
	case s != nil: // it is decided
	case w.Role == arch.RoleEntry:
		unlessDropped(f, w, to)
	case early:
		if f.w.TID == arch.TIDSyscall {
			f.askTID()
			f.MovMR(8, f.tempAt(tempTID), RAX)
		}
		newSampling(f, w).decide(nil, to)
	}
}

// plainLeave says whether a return is decided about before its call's instance is looked for: a call of a trace that is not kept need not
// have one. A filter needs the instance, and a return address that is replaced too.
func plainLeave(w *arch.ProbeOp) bool {
	return w.Sample.Paired && w.Sample.Every > 1 && w.Filter == nil && w.Trampoline == nil && w.Budget == nil
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
func unlessDropped(f *frame, w *arch.ProbeOp, over Label) {
	if f.dropped == 0 || !without(w, f.miss) {
		return
	}
	f.OpMI(OpCmp, 8, At(RSP, f.dropped), 0)
	f.Jcc(CondNE, over)
}

// sampling is the work of one decision.
type sampling struct {
	*frame
	*arch.Sample
	op *arch.ProbeOp
	// pass is where a hit goes that is recorded, and drop one of a trace that is not kept. none is for an owner that there is no room for.
	pass, drop, none Label
}

func newSampling(f *frame, w *arch.ProbeOp) *sampling {
	m := &sampling{frame: f, Sample: w.Sample, op: w, pass: f.Label(), drop: f.Label(), none: f.Label()}
	if m.all() {
		m.drop = m.pass
	}
	return m
}

// all says whether all hits are recorded: what is written down is for those of other roles.
func (m *sampling) all() bool {
	return m.Every == 1 && (m.Role == arch.SampleEnter || m.Role == arch.SampleLeave)
}

// function is the number of the function in a state.
func (m *sampling) function() int32 {
	return int32(m.Func*hashFactor>>(64-sampleFuncBits)) << sampleFuncShift
}

// decide emits the decision whether the hit is recorded; one that is not is counted, and goes on at done. s may be nil where no argument is
// looked at.
func (m *sampling) decide(s *storing, done Label) {
	note := m.Role == arch.SampleEnter && m.dropped != 0 && !m.all()
	if note {
		m.MovMI(8, At(RSP, m.dropped), 0)
	}
	switch m.Role {
	case arch.SampleEnter:
		m.entered()
	case arch.SampleLeave:
		m.returned()
	case arch.SampleEnded:
		m.ended()
	case arch.SampleCreated:
		m.created(s)
	case arch.SampleRecovered:
		m.recovered(s)
	}
	m.Bind(m.pass)
	if m.all() {
		m.after(func() {
			m.Bind(m.none)
			m.countIn(m.op.Event, ring.CtrUnsampled)
			m.Jmp(m.pass)
		})
		return
	}
	m.after(func() {
		m.Bind(m.drop)
		if note {
			m.MovMI(8, At(RSP, m.dropped), 1)
		}
		if m.Role == arch.SampleEnter {
			m.countIn(m.op.Event, ring.CtrUnsampled)
		} else {
			m.count(m.op.Event)
		}
		m.Jmp(done)
		m.Bind(m.none)
		if note {
			m.MovMI(8, At(RSP, m.dropped), 1)
		}
		m.bump(m.op.Event, ring.CtrMissed)
		m.Jmp(done)
	})
}

// self emits RAX = the key and S2 = the owner who hits. A thread that is not known has its hits recorded: whoever reads them
// counts it. It clobbers RDX and S1.
func (m *sampling) self() {
	switch {
	case m.w.Go != nil:
		m.MovRM(8, RAX, AtFS(m.w.Go.TLS))
		m.TestRR(8, RAX, RAX)
		m.Jcc(CondE, m.pass)
		system := m.Label()
		m.MovRM(8, m.s2(), At(RAX, m.w.Go.GoID))
		m.TestRR(8, m.s2(), m.s2())
		m.Jcc(CondE, system)
		on := m.Here()
		m.after(func() {
			m.Bind(system)
			m.MovRM(8, m.s2(), At(RAX, m.w.Go.M))
			m.MovRM(8, m.s2(), At(m.s2(), m.w.Go.ProcID))
			m.Jmp(on)
		})
	case m.w.TID == arch.TIDThread:
		other := m.Label()
		m.ownBlock(other)
		m.MovRM(8, RAX, AtFS(0)) // a thread's block begins with its own address (System V ABI, x86-64, thread-local storage)
		m.MovRM(4, m.s2(), AtFS(m.w.TIDOff))
		if m.w.Shared == 0 {
			return
		}
		on := m.Here()
		m.after(func() {
			m.Bind(other)
			m.askTID()
			m.thread()
			m.Jmp(on)
		})
	default:
		m.MovRM(8, RAX, m.tempAt(tempTID))
		m.thread()
	}
}

// thread emits S2 = the owner, where RAX, the key, is the thread's id.
func (m *sampling) thread() {
	m.TestRR(8, RAX, RAX)
	m.Jcc(CondE, m.pass)
	m.MovRR(8, m.s2(), RAX)
}

// first emits S1 = the first slot for the key in RAX, and RDX = how many may have it.
func (m *sampling) first() {
	m.MovRI(RDX, hashFactor)
	m.ImulRR(8, RDX, RAX)
	m.ShiftRI(Shr, 8, RDX, 64-arch.SampleSlots)
	m.ShiftRI(Shl, 8, RDX, sampleStride)
	m.MovRI(m.s1(), m.Table+sampleFirst)
	m.OpRR(OpAdd, 8, m.s1(), RDX)
	m.MovRI(RDX, bucketLen)
}

// seek emits S1 = the slot of the key in RAX. It clobbers RDX. Where the search comes to a free slot it goes on at free, and where there is
// none at full.
func (m *sampling) seek(free, full Label) {
	found := m.Label()
	m.first()
	loop := m.Here()
	m.OpMR(OpCmp, 8, At(m.s1(), sampleKey), RAX)
	m.JccShort(CondE, found)
	m.OpMI(OpCmp, 8, At(m.s1(), sampleKey), 0)
	m.Jcc(CondE, free)
	m.OpRI(OpAdd, 8, m.s1(), 1<<sampleStride)
	m.OpRI(OpSub, 4, RDX, 1)
	m.JccShort(CondNE, loop)
	m.Jmp(full)
	m.Bind(found)
}

// look emits S1 = the slot of the key in RAX and the owner in S2, and RDX = its state. One that is in no call goes on at
// m.drop.
func (m *sampling) look() {
	m.seek(m.drop, m.drop)
	m.OpMR(OpCmp, 8, At(m.s1(), sampleOwner), m.s2())
	m.Jcc(CondNE, m.drop)
	m.MovRM(8, RDX, At(m.s1(), sampleState))
	m.TestRR(8, RDX, RDX)
	m.Jcc(CondE, m.drop)
}

// slot emits S1 = the slot of the key in RAX, which gets one if it has none. It clobbers RDX.
func (m *sampling) slot() {
	again, free := m.Here(), m.Label()
	m.seek(free, m.none)
	on := m.Here()
	m.after(func() {
		m.Bind(free)
		m.MovRR(8, RDX, RAX)
		m.MovRI(RAX, 0)
		m.Lock().Cmpxchg(8, At(m.s1(), sampleKey), RDX)
		m.MovRR(8, RAX, RDX)
		m.Jcc(CondE, on)
		m.Jmp(again)
	})
}

// belong emits that the slot of S1 belongs to the owner in S2, who is in no call.
func (m *sampling) belong() {
	m.MovMI(8, At(m.s1(), sampleState), 0)
	m.MovMR(8, At(m.s1(), sampleOwner), m.s2())
}

// words emits RAX = the depth in RAX as a state has it.
func (m *sampling) words() {
	m.ShiftRI(Shl, 8, RAX, sampleDepth-3)
	m.ShiftRI(Shr, 8, RAX, sampleDepth)
}

// keeps emits a jump to m.drop if the trace of the state in RDX is not kept.
func (m *sampling) keeps() {
	m.TestRI(1, RDX, sampleKept)
	m.Jcc(CondE, m.drop)
}
