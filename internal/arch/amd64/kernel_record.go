package amd64

import (
	"math"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/ring"
)

// fitsDisp says whether an address is one that a displacement holds, sign-extended: one of
// the upper 2 GB, where a kernel has its code and modules.
func fitsDisp(addr uint64) bool { return int64(addr) == int64(int32(addr)) }

// shardBase is the address of the first locked shard.
func (w writer) shardBase() uint64 { return w.lockedShard(0) }

// nearRing says whether displacements hold the addresses in the first locked shard.
func (w writer) nearRing() bool {
	return fitsDisp(w.shardBase()) && fitsDisp(w.shardBase()+w.Layout.Stride)
}

// kernelShard emits S1 = the shard of the CPU, for inShard. If displacements do not hold the
// ring's addresses it clobbers RAX or, where that is S1, uses the stack.
func (f *frame) kernelShard() {
	f.MovRM(4, f.s1(), AtGS(f.w.Kernel.CPU))
	f.ShiftRI(Shl, 8, f.s1(), f.w.strideShift())
	if f.near {
		return
	}
	other := RAX
	if f.s1() == RAX {
		other = RDX
	}
	f.Push(other)
	f.MovRI(other, f.w.shardBase())
	f.OpRR(OpAdd, 8, f.s1(), other)
	f.Pop(other)
}

// inShard is the operand at off in the shard of kernelShard.
func (f *frame) inShard(off int32) Mem {
	if f.near {
		off += int32(f.w.shardBase())
	}
	return At(f.s1(), off)
}

// kernelRecord emits a record by protocol B of package ring, with what a kernel's record has
// at its start. Arguments come first, for they may be calls.
func (f *frame) kernelRecord(s *storing, done Label) {
	dynamic := s.w.Prog != nil && s.w.Prog.Dynamic
	full := f.Label()
	f.kernelShard()
	f.kernelReserve(s, dynamic, full)
	f.OpRI(OpAnd, 4, RAX, f.w.units()-1)
	data := f.inShard(f.w.dataOff())
	data.Index, data.Scale = RAX, 8
	f.Lea(f.s2(), data)
	rec := f.s2()
	f.Rdtsc()
	f.MovMR(4, At(rec, 8), RAX)
	f.MovMR(4, At(rec, 12), RDX)
	f.MovRM(4, RAX, AtGS(f.w.Kernel.Preempt))
	if f.w.Kernel.WidePreempt {
		f.OpRM(OpOr, 4, RAX, AtGS(f.w.Kernel.Preempt+4)) // its highest bit is the only one
	}
	f.MovMR(4, At(rec, KernelPreempt), RAX)
	f.MovRM(4, RAX, At(RSP, f.user))
	f.MovMR(4, At(rec, KernelFlags), RAX)
	if s.w.Role == arch.RoleExit {
		f.MovRM(8, RAX, At(RSP, f.drop))
		f.MovMR(8, At(rec, KernelRecord), RAX)
	}
	if s.w.Prog != nil {
		for i := range s.w.Prog.Args {
			f.fillArg(s, i, rec)
		}
		if s.w.Prog.Stack > 0 {
			f.kernelStackTrace(s, rec)
		}
	}
	f.commit(s, dynamic, rec)
	f.after(func() {
		f.Bind(full)
		f.lost(s, done)
	})
}

// commit emits the task's name and the record's first word.
func (f *frame) commit(s *storing, dynamic bool, rec Reg) {
	k := f.w.Kernel
	f.MovRM(8, RDX, AtGS(k.Current))
	f.MovRM(8, RAX, At(RDX, k.Comm))
	f.MovMR(8, At(rec, KernelComm), RAX)
	f.MovRM(8, RAX, At(RDX, k.Comm+8))
	f.MovMR(8, At(rec, KernelComm+8), RAX)
	f.MovRM(4, RAX, At(RDX, k.PID))
	f.ShiftRI(Shl, 8, RAX, 32)
	w0 := f.w0(s)
	if dynamic {
		f.OpRM(OpOr, 8, RAX, f.tempAt(tempUnits))
		w0 -= uint32(s.units)
	}
	switch {
	case w0 > math.MaxInt32:
		f.MovRI(RDX, uint64(w0))
		f.OpRR(OpOr, 8, RAX, RDX)
	case w0 != 0:
		f.OpRI(OpOr, 8, RAX, int32(w0))
	}
	f.MovMR(8, At(rec, 0), RAX)
}

// kernelReserve emits the reservation of the record in the shard of S1; RAX becomes the head
// before it. It is reserve, shorter: what is unread is made negative and shifted up to be a
// signed number, as positions have 48 bits.
func (f *frame) kernelReserve(s *storing, dynamic bool, full Label) {
	retry := f.Here()
	f.MovRM(8, RDX, f.inShard(ring.ShTail))
	f.MovRM(8, RAX, f.inShard(ring.ShHead))
	room := int64(f.w.lockedUnits())
	if dynamic {
		f.OpRM(OpSub, 8, RDX, f.tempAt(tempUnits))
		f.MovRI(f.s2(), 1<<48)
		f.OpRM(OpAdd, 8, f.s2(), f.tempAt(tempUnits))
	} else {
		room -= int64(s.units)
		f.MovRI(f.s2(), 1<<48+uint64(s.units))
	}
	f.OpRR(OpAdd, 8, f.s2(), RAX)
	f.OpRR(OpSub, 8, RDX, RAX)
	f.ShiftRI(Shl, 8, RDX, 16)
	least := -room << 16
	if least != int64(int32(least)) {
		f.ShiftRI(Sar, 8, RDX, 16)
		least >>= 16
	}
	f.OpRI(OpCmp, 8, RDX, int32(least))
	f.Jcc(CondL, full)
	f.Lock().Cmpxchg(8, f.inShard(ring.ShHead), f.s2())
	f.Jcc(CondNE, retry)
}
