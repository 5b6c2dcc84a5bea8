package amd64

// rseqSig is the signature that stands before an abort handler (glibc's RSEQ_SIG for
// x86); the kernel compares it with what the thread registered.
const rseqSig = RseqSignature

// RseqSignature is the value that a thread must have registered with its sequence.
const RseqSignature = 0x53053053

// Offsets in struct rseq (linux/rseq.h, kernel 4.18).
const (
	rseqCPU = 4
	rseqCS  = 8
)

// sequence emits a restartable sequence: body runs from start to its last
// instruction, which commits. A preemption, a migration or a signal in between begins
// it again. slow is where a thread goes that has not registered; RAX is the CPU.
// Nothing is stored before the area is known to be the thread's own and to be registered.
func (e *emitter) sequence(slow Label, body func()) {
	e.ownBlock(slow)
	e.OpMI(OpCmp, 4, AtFS(e.w.RseqOff+rseqCPU), int32(e.w.Layout.CPUs))
	e.Jcc(CondAE, slow)
	restart, abort, start, post, desc, gone := e.Here(), e.Label(), e.Label(), e.Label(), e.Label(), e.Label()
	e.Lea(RAX, AtLabel(desc, 0))
	e.MovMR(8, AtFS(e.w.RseqOff+rseqCS), RAX)
	e.Bind(start)
	e.MovRM(4, RAX, AtFS(e.w.RseqOff+rseqCPU))
	e.OpRI(OpCmp, 4, RAX, int32(e.w.Layout.CPUs))
	e.Jcc(CondAE, gone)
	body()
	e.Bind(post)
	e.endSequence()
	e.after(func() {
		e.Bind(gone)
		e.endSequence()
		e.Jmp(slow)
		e.Raw(0x0f, 0xb9, 0x3d) // ud1 sig(%rip), %edi: never run
		e.Data32(rseqSig)
		e.Bind(abort)
		e.Jmp(restart)
		e.Align(32)
		e.Bind(desc)
		e.Data64(0) // version, flags
		e.DataAddr(start)
		e.DataDiff(post, start)
		e.DataAddr(abort)
	})
}

func (e *emitter) endSequence() { e.MovMI(8, AtFS(e.w.RseqOff+rseqCS), 0) }

// cpu emits RAX = the CPU. With area a thread that has registered one for rseq(2) reads it there: to ask the processor takes many cycles
// where it has no RDPID.
func (e *emitter) cpu(area bool) {
	slow, done := e.Label(), e.Label()
	if area && e.w.HasRseq {
		e.ownBlock(slow)
		e.MovRM(4, RAX, AtFS(e.w.RseqOff+rseqCPU))
		e.OpRI(OpCmp, 4, RAX, int32(e.w.Layout.CPUs))
		e.Jcc(CondB, done)
	}
	e.Bind(slow)
	if e.w.Features&FeatureRDPID != 0 {
		e.Rdpid(RAX)
	} else {
		e.MovRI(RAX, cpuNodeSel)
		e.Raw(0x0f, 0x03, 0xc0) // lsl %eax, %eax
	}
	e.OpRI(OpAnd, 4, RAX, 0xfff)
	e.OpRI(OpCmp, 4, RAX, int32(e.w.Layout.CPUs))
	e.Jcc(CondB, done)
	e.MovRI(RAX, 0)
	e.Bind(done)
}

// cpuNodeSel is the segment whose limit holds the CPU's number (__CPUNODE_SEG of
// arch/x86/include/asm/segment.h, which the vDSO's getcpu reads too).
const cpuNodeSel = 0x7b
