package watchpoint

import (
	"encoding/binary"
	"math/bits"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// sampleType is what the samples of watchpoints hold, in words: see Set.record.
const sampleType = unix.PERF_SAMPLE_IDENTIFIER | unix.PERF_SAMPLE_IP | unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME |
	unix.PERF_SAMPLE_CPU | unix.PERF_SAMPLE_REGS_USER

// Offsets in a sample behind its header (perf_event_open(2), PERF_RECORD_SAMPLE).
const (
	sampleID    = 0
	sampleIP    = 8
	sampleTID   = 20
	sampleTime  = 24
	sampleCPU   = 32
	sampleABI   = 40 // 0: there are no registers
	sampleRegs  = 48 // those of the mask, in the order of its bits
	maxAccessor = 1 << 16
)

// perfMask has the registers that a program asks for, as bits of sample_regs_user.
func perfMask(prog *fetch.Program) (mask uint64) {
	if prog == nil {
		return 0
	}
	mask = 1 << perfIP // a mask must not be empty
	for i := range prog.Args {
		if b := prog.Args[i].Base; b.Kind == fetch.BaseReg && b.Reg != fetch.RegConst {
			mask |= 1 << perfReg(b.Reg)
		}
	}
	return mask
}

// perfReg is the number of a register in samples.
func perfReg(r fetch.Reg) uint {
	switch r {
	case fetch.RegIP:
		return perfIP
	case fetch.RegFlags:
		return perfFlags
	}
	return perfRegs[r&15]
}

// sampled is the thread that a sample tells of, as a fetch.Machine: it has registers only.
type sampled struct {
	mask uint64
	regs []byte
}

// Reg gives a register of the mask.
func (m sampled) Reg(r fetch.Reg) uint64 {
	bit := uint64(1) << perfReg(r)
	at := 8 * bits.OnesCount64(m.mask&(bit-1))
	if m.mask&bit == 0 || at+8 > len(m.regs) {
		return 0
	}
	return binary.NativeEndian.Uint64(m.regs[at:])
}

// Stack has no words.
func (sampled) Stack(int) (uint64, bool) { return 0, false }

// Load loads nothing.
func (sampled) Load(uint64, []byte, bool) bool { return false }

// Poll reads the records that there are, in no order, and returns how many. space has the code of the target's; thread, if it is not nil,
// gives the id of a thread as the target has it for that of the tracer's pid namespace. Accesses that f makes are read by the next call.
func (s *Set) Poll(space *symbol.Space, thread func(tid int) int, f func(*target.UprobeRecord)) (n int) {
	rings, ended := s.take()
	for _, r := range rings {
		r.poll(func(b []byte) bool {
			if len(b) < sampleRegs {
				return true
			}
			p, comes := s.owner(word(b, sampleID))
			if p != nil {
				n++
				f(s.record(p, b, space, thread))
			}
			return !comes
		})
	}
	ended()
	return n
}

// word is the word at an offset of a sample.
func word(b []byte, off int) uint64 { return binary.NativeEndian.Uint64(b[off:]) }

// record makes a record of a sample.
func (s *Set) record(p *point, b []byte, space *symbol.Space, thread func(int) int) *target.UprobeRecord {
	m := sampled{mask: p.mask}
	if word(b, sampleABI) != 0 {
		m.regs = b[sampleRegs:]
	}
	r := &target.UprobeRecord{
		Event: p.w.Event, TID: int(binary.NativeEndian.Uint32(b[sampleTID:])), CPU: int(binary.NativeEndian.Uint32(b[sampleCPU:])), Nanos: word(b, sampleTime),
	}
	if thread != nil {
		r.TID = thread(r.TID)
	}
	r.IP, r.Before = s.accessor(p, space, word(b, sampleIP))
	rec := append(s.scratch[:0], make([]byte, p.w.Args)...)
	binary.LittleEndian.PutUint64(rec, uint64(r.TID)<<32|uint64(ring.Word0((p.w.Args+p.w.Prog.Fixed)/8, p.w.Event)))
	binary.LittleEndian.PutUint64(rec[8:], r.Nanos)
	r.Bytes = p.w.Prog.Eval(m, rec, ring.MaxRecord)
	s.scratch = r.Bytes
	return r
}

// accessKey is where a watchpoint was hit, in a file; accessor is the instruction that did it.
type accessKey struct {
	im    *symbol.Image
	vaddr uint64
	reads bool
}

type accessor struct {
	vaddr uint64
	known bool
}

// accessor gives the instruction that accessed the memory, where next is the one to be run then. before: it is not known, and
// next is given.
func (s *Set) accessor(p *point, space *symbol.Space, next uint64) (at uint64, before bool) {
	if p.w.Access == event.Execute { // the trap comes before the instruction
		return next, false
	}
	loc, ok := space.SymbolAt(next)
	if !ok {
		return next, true
	}
	k := accessKey{loc.Module.Image, loc.Module.Linktime(next), p.w.Access != event.Write}
	a, ok := s.accessors[k]
	if !ok {
		code := make([]byte, loc.Size)
		if k.im.ReadAt(loc.Func.Addr, code) == nil {
			a.vaddr, a.known = native.Accessor(code, loc.Func.Addr, k.vaddr, k.reads)
		}
		if s.accessors == nil || len(s.accessors) >= maxAccessor {
			s.accessors = map[accessKey]accessor{}
		}
		s.accessors[k] = a
	}
	if !a.known {
		return next, true
	}
	return loc.Module.Runtime(a.vaddr), false
}
