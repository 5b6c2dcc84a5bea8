package amd64

import (
	"fmt"
	"slices"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// maxRecordBytes bounds a record.
const maxRecordBytes = ring.MaxRecord

// Temporaries that every record has.
const (
	tempTID   = iota
	tempUnits // size of the record, where strings make it vary
	tempCur   // where the next string goes, bytes from the record's start
	tempEnd   // where the string being copied ends
	tempMask  // signals that the thread blocks, once asked for
	fixedTemps
)

// tempGuard holds, in a kernel, the address of the word that guard has set.
const tempGuard = tempMask

// tempSlot holds the address of the instance that a handler is called with: such work
// writes no record.
const tempSlot = tempCur

// storing is the work of writing one record.
type storing struct {
	w      *arch.ProbeOp
	entry  int   // first temporary of the values saved at entry
	temps  []int // first temporary of each argument
	walk   int   // first temporary of the walk over the stack
	hist   int   // first temporary of a histogram
	loaded []int // arguments that the filter has loaded into theirs
	args   int32 // offset of the argument area in the record
	units  int32 // size of the fixed part
	locked bool  // written by the locked protocol only
	cap    int32 // most bytes of a string
}

func (f *frame) newStoring(w *arch.ProbeOp) (*storing, error) {
	s := &storing{w: w, entry: fixedTemps, args: ArgsOffset(f.w.CodegenEnv, w)}
	next := s.entry + len(w.Prog.EntryBases())
	fixed := int(s.args)
	s.locked = !f.w.HasRseq
	if w.Prog != nil {
		fixed += w.Prog.Fixed
		for i := range w.Prog.Args {
			a := &w.Prog.Args[i]
			s.temps = append(s.temps, next)
			next += f.w.argTemps(a)
			s.locked = s.locked || a.Store == fetch.StoreArray || isString(a)
		}
		s.walk, s.hist = next, next
		if w.Hist != nil && w.Hist.Hist.Callers() > 0 {
			s.hist += walkRegs
		}
		s.locked = s.locked || w.Prog.Stack > 0
		s.cap = stringCap(w.Prog, fixed)
	}
	if fixed > maxRecordBytes || w.Prog != nil && w.Prog.Dynamic && s.cap < 16 {
		return nil, fmt.Errorf("record of %d bytes: more than the ring's %d: %w", fixed, maxRecordBytes, ErrFrame)
	}
	s.units = int32(fixed / 8)
	return s, nil
}

// ArgsOffset is where the argument area of a work's records starts, in bytes.
func ArgsOffset(w *arch.CodegenEnv, k *arch.ProbeOp) int32 {
	n := int32(ring.RecHeader)
	if w.Go != nil {
		n += 8
	}
	if w.Kernel != nil {
		n = KernelRecord
	}
	if k.Role == arch.RoleExit || k.Role == arch.RoleLeft {
		n += 8
	}
	return n
}

// store emits the counting or recording of one run.
func (f *frame) store(w *arch.ProbeOp) error {
	if w.Count {
		f.count(w.Event)
		return nil
	}
	if w.Budget != nil {
		return w.Budget.Code.(budgetCode)(f, w)
	}
	return f.storeAll(w, f.Label())
}

// storeAll is store without a budget. It binds done at its end.
func (f *frame) storeAll(w *arch.ProbeOp, done Label) error {
	s, err := f.newStoring(w)
	if err != nil {
		return err
	}
	if w.Prog != nil && w.Prog.Dynamic {
		f.MovMI(8, f.tempAt(tempUnits), s.units)
		f.MovMI(8, f.tempAt(tempCur), s.units*8)
	}
	f.staged = f.w.stagedArg(w)
	early := w.Filter != nil && !w.Filter.Loads(w.Prog) // what it tests is in registers: nothing else is asked before
	if early {
		f.filter(s, done)
	}
	if f.w.Kernel == nil && f.w.TID == arch.TIDSyscall && !w.CountPassing && (w.Hist == nil || w.Hist.TID() || w.Hist.Hist.Text()) {
		f.askTID()
		f.MovMR(8, f.tempAt(tempTID), RAX)
	}
	first := w.Sample != nil && !w.Sample.Role.Loads() && (w.Filter == nil || early) // likewise
	if first {
		w.Sample.Code.(sampleCode)(f, w, s, done)
	}
	f.ask(w)
	if w.Filter != nil && !early {
		f.filter(s, done)
	}
	if w.Sample != nil && !first {
		w.Sample.Code.(sampleCode)(f, w, s, done)
	}
	if w.CountPassing {
		f.count(w.Event)
		f.Bind(done)
		return nil
	}
	if w.Hist != nil {
		long := f.Label()
		w.Hist.Code.(histCode)(f, s, done, long)
		if !w.Hist.Hist.Text() {
			f.Bind(done)
			return nil
		}
		f.Jmp(done)
		f.Bind(long)
	}
	f.evaluate(s)
	switch {
	case f.w.Kernel != nil:
		f.kernelRecord(s, done)
	case s.locked:
		f.lockedRecord(s, done)
	default:
		f.rseqRecord(s, done)
	}
	f.Bind(done)
	return nil
}

// evaluate emits the loads that may fault and the measuring of strings, into
// temporaries, before anything is reserved in the ring.
func (f *frame) evaluate(s *storing) {
	if s.w.Prog == nil {
		return
	}
	for i := range s.w.Prog.Args {
		if !slices.Contains(s.loaded, i) {
			f.evaluateArg(s, i)
		}
	}
}

// evaluateArg is evaluate for one argument.
func (f *frame) evaluateArg(s *storing, i int) {
	switch a := &s.w.Prog.Args[i]; {
	case isString(a):
		f.measure(a, s, s.temps[i])
	case a.Store == fetch.StoreSpan:
		a.Chain.(spanCode).take(f, s, i)
	case a.Store == fetch.StoreComm:
		f.askName(s.temps[i])
	case a.Store == fetch.StoreArray && f.w.Kernel != nil:
		f.arrayAddress(a, s)
		f.MovMR(8, f.tempAt(s.temps[i]), RAX)
	case f.w.argTemps(a) > 0:
		f.value(a, s)
		f.MovMR(8, f.tempAt(s.temps[i]), RAX)
	}
}

// shard emits S1 = the shard of the CPU in RAX; it clobbers RAX.
func (f *frame) shard(locked bool) {
	first := f.w.Ring + f.w.Layout.ShardOff(0)
	if locked {
		first = f.w.lockedShard(0)
	}
	f.ShiftRI(Shl, 8, RAX, f.w.strideShift())
	f.MovRI(f.s1(), first)
	f.OpRR(OpAdd, 8, f.s1(), RAX)
}

// count emits hits++ for an event.
func (f *frame) count(event int) { f.countIn(event, ring.CtrHits) }

// countIn emits the increment of one of an event's counters.
func (f *frame) countIn(event int, field int32) {
	if f.w.Kernel != nil {
		f.kernelShard()
		f.Lock().IncM(8, f.inShard(counter(event, field)))
		return
	}
	slow, done := f.Label(), f.Label()
	locked := func() {
		f.cpu(false)
		f.shard(true)
		f.Lock().IncM(8, At(f.s1(), counter(event, field)))
	}
	if !f.w.HasRseq {
		locked()
		return
	}
	f.sequence(slow, func() {
		f.shard(false)
		f.IncM(8, At(f.s1(), counter(event, field)))
	})
	f.Bind(done)
	f.after(func() {
		f.Bind(slow)
		locked()
		f.Jmp(done)
	})
}

// rseqRecord emits a record by protocol A of package ring.
func (f *frame) rseqRecord(s *storing, done Label) {
	slow, full := f.Label(), f.Label()
	f.sequence(slow, func() {
		f.shard(false)
		f.MovRM(8, f.s2(), At(f.s1(), ring.ShHead))
		f.Lea(RDX, At(f.s2(), s.units))
		f.OpRM(OpSub, 8, RDX, At(f.s1(), ring.ShTail))
		f.OpRI(OpCmp, 8, RDX, f.w.units())
		f.Jcc(CondA, full)
		f.tsc()
		f.MovRR(4, RDX, f.s2())
		f.OpRI(OpAnd, 4, RDX, f.w.units()-1)
		f.Lea(RDX, AtIndex(f.s1(), RDX, 8, f.w.dataOff()))
		f.MovMR(8, At(RDX, 8), RAX)
		f.threadID()
		f.MovMI(4, At(RDX, 0), int32(f.w0(s)))
		f.MovMR(4, At(RDX, 4), RAX)
		f.fill(s, RDX)
		f.OpRI(OpAdd, 8, f.s2(), s.units)
		f.MovMR(8, At(f.s1(), ring.ShHead), f.s2())
	})
	f.after(func() {
		f.Bind(full)
		f.endSequence()
		f.lost(s, done)
		f.Bind(slow)
		f.lockedRecord(s, done)
		f.Jmp(done)
	})
}

// lost emits lost++ in the shard of S1.
func (f *frame) lost(s *storing, done Label) {
	at := At(f.s1(), counter(s.w.Event, ring.CtrLost))
	if f.w.Kernel != nil {
		at = f.inShard(at.Disp)
	}
	f.Lock().IncM(8, at)
	f.Jmp(done)
}

// w0 is the constant half of a record's first word.
func (f *frame) w0(s *storing) uint32 { return ring.Word0(int(s.units), s.w.Event) }

// tsc emits RAX = the time stamp counter.
func (f *frame) tsc() {
	f.Rdtsc()
	f.ShiftRI(Shl, 8, RDX, 32)
	f.OpRR(OpOr, 8, RAX, RDX)
}

// threadID emits EAX = the thread's id. Where FS may lead elsewhere it has been shown that it does not.
func (f *frame) threadID() {
	if !f.loadTID(f.w.CodegenEnv) {
		f.MovRM(4, RAX, f.tempAt(tempTID))
	}
}

// loadTID emits EAX = the thread's id, if code can read it there. It changes the flags.
func (a *Asm) loadTID(w *arch.CodegenEnv) bool {
	switch w.TID {
	case arch.TIDThread:
		a.MovRM(4, RAX, AtFS(w.TIDOff))
	case arch.TIDGo:
		none := a.Label()
		a.MovRM(8, RAX, AtFS(w.Go.TLS))
		a.TestRR(8, RAX, RAX)
		a.JccShort(CondE, none)
		a.MovRM(8, RAX, At(RAX, w.Go.M))
		a.MovRM(4, RAX, At(RAX, w.Go.ProcID))
		a.Bind(none)
	default:
		return false
	}
	return true
}

// lockedRecord emits a record by protocol B of package ring.
func (f *frame) lockedRecord(s *storing, done Label) {
	dynamic := s.w.Prog != nil && s.w.Prog.Dynamic
	full := f.Label()
	if f.w.Shared != 0 && f.w.TID == arch.TIDThread {
		f.blockTID()
	}
	f.cpu(true)
	f.shard(true)
	f.reserve(s, dynamic, full)
	f.OpRI(OpAnd, 4, f.s2(), f.w.units()-1)
	f.Lea(f.s2(), AtIndex(f.s1(), f.s2(), 8, f.w.dataOff()))
	f.tsc()
	f.MovMR(8, At(f.s2(), 8), RAX)
	f.fill(s, f.s2())
	if f.w.Shared != 0 {
		f.MovRM(4, RAX, f.tempAt(tempTID))
	} else {
		f.threadID()
	}
	f.ShiftRI(Shl, 8, RAX, 32)
	f.MovRI(RDX, uint64(f.w0(s)))
	f.OpRR(OpOr, 8, RAX, RDX)
	if dynamic { // units are counted anew: those of the fixed part are in w0
		f.MovRM(8, RDX, f.tempAt(tempUnits))
		f.OpRI(OpSub, 4, RDX, s.units)
		f.OpRR(OpAdd, 8, RAX, RDX)
	}
	f.MovMR(8, At(f.s2(), 0), RAX)
	f.after(func() {
		f.Bind(full)
		f.lost(s, done)
	})
}

// reserve emits the reservation of the record in the shard of S1; S2 becomes its
// position. The tail is read before the head: read after it, a tail that the reader has
// moved past that head would look like a full shard.
func (f *frame) reserve(s *storing, dynamic bool, full Label) {
	retry := f.Here()
	f.MovRM(8, RDX, At(f.s1(), ring.ShTail))
	f.MovRM(8, RAX, At(f.s1(), ring.ShHead))
	f.MovRR(8, f.s2(), RAX)
	f.OpRR(OpSub, 8, f.s2(), RDX)
	if dynamic {
		f.OpRM(OpAdd, 8, f.s2(), f.tempAt(tempUnits))
	} else {
		f.OpRI(OpAdd, 8, f.s2(), s.units)
	}
	f.ShiftRI(Shl, 8, f.s2(), 16) // positions have 48 bits, the count stands above them
	f.ShiftRI(Shr, 8, f.s2(), 16)
	f.OpRI(OpCmp, 8, f.s2(), f.w.lockedUnits())
	f.Jcc(CondA, full)
	if dynamic {
		f.MovRI(RDX, 1<<48)
		f.OpRM(OpAdd, 8, RDX, f.tempAt(tempUnits))
	} else {
		f.MovRI(RDX, 1<<48+uint64(s.units))
	}
	f.OpRR(OpAdd, 8, RDX, RAX)
	f.MovRR(8, f.s2(), RAX)
	f.Lock().Cmpxchg(8, At(f.s1(), ring.ShHead), RDX)
	f.Jcc(CondNE, retry)
}
