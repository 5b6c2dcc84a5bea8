package ptrace

import (
	"fmt"
)

// The frame that rt_sigreturn takes a thread's state from (arch/x86/include/uapi/asm/
// sigcontext.h and ucontext.h; struct rt_sigframe without its siginfo, which is not read).
//
//	RSP ─► +0    return address: an rt_sigreturn stub, or pop rax; ret
//	       +8    only with pop: 15
//	      +16    only with pop: a syscall instruction
//	       uc    flags, link, altstack (impossible mode: left as it is)
//	   +40 sc    r8..r15 di si bp bx dx ax cx sp ip flags cs/gs/fs/ss err trapno oldmask cr2 fpstate ─┐
//	  +296       signal mask                                                                          │
//	       64    xsave area in the kernel's user format, magic words at 464 and behind its end  ◄─────┘
//	       data  bytes for the calls' arguments
const (
	ucSize     = 304
	scOffset   = 40
	maskOffset = 296

	ucFPXstate   = 1 // UC_FP_XSTATE
	ucSigSS      = 2 // UC_SIGCONTEXT_SS
	ucStrictSS   = 4 // UC_STRICT_RESTORE_SS
	ssImpossible = 7 // neither SS_ONSTACK nor SS_DISABLE: sigaltstack answers EINVAL, which rt_sigreturn passes over

	fxSize      = 512
	swReserved  = 464 // struct _fpx_sw_bytes within the fxsave area
	xsaveMin    = fxSize + 64
	fpMagic1    = 0x46505853
	fpMagic2    = 0x46505845
	featureTile = 1 << 18 // XTILEDATA, in the frame only for threads that use it
)

// frameSpec is what a frame is made of.
type frameSpec struct {
	regs   Regs   // to be restored; RIP and RAX say what runs next
	mask   uint64 // signal mask to be restored
	xstate []byte // NT_X86_XSTATE of the thread; fxSize bytes where the processor has no xsave
	sizes  xstateSizes
	gadget gadgets
	data   int // bytes of room for arguments
}

// xstateSizes is where the kernel looks for the second magic word: behind as much of the
// xsave area as the thread has been given, which is all but the tile data for a thread
// that never used AMX.
type xstateSizes struct {
	Default uint64 // bytes without XTILEDATA
	Max     uint64 // bytes with everything that XCR0 allows
}

// layFrame makes the frame with which the thread goes on where it was.
func (c *caller) layFrame(lo, hi uint64, xstate []byte, data int) (*frame, error) {
	spec := frameSpec{
		regs: c.t.regs.resumed(false), mask: c.mask, xstate: xstate,
		sizes: xstateSize(), gadget: c.gadget, data: data,
	}
	return spec.build(lo, hi)
}

// frameSize is the most bytes that a frame takes, alignment included.
func frameSize(xstate, data int) int {
	return 8*3 + ucSize + 63 + xstate + 8 + 16 + data
}

// build lays the frame out so that all of it lies in [lo, hi), as high as it can.
func (f *frameSpec) build(lo, hi uint64) (*frame, error) {
	chain := f.gadget.chain()
	if len(f.xstate) < xsaveMin && len(f.xstate) != fxSize {
		return nil, fmt.Errorf("signal frame: xsave area of %d bytes is shorter than its header", len(f.xstate))
	}
	data := (hi - uint64(f.data)) &^ 15
	fp := (data - uint64(len(f.xstate)) - 8) &^ 63
	uc := (fp - ucSize) &^ 15
	rsp := uc - uint64(8*len(chain))
	if hi < lo || uint64(frameSize(len(f.xstate), f.data)) > hi-lo || rsp < lo {
		return nil, fmt.Errorf("signal frame: %d bytes do not fit in [%#x, %#x)", frameSize(len(f.xstate), f.data), lo, hi)
	}
	b := make([]byte, data-rsp)
	for i, word := range chain {
		le.PutUint64(b[8*i:], word)
	}
	f.context(b[uc-rsp:], fp)
	f.fpstate(b[fp-rsp:])
	return &frame{bytes: b, sp: rsp, data: data}, nil
}

func (f *frameSpec) context(b []byte, fp uint64) {
	r := &f.regs
	flags := uint64(ucSigSS | ucStrictSS)
	if len(f.xstate) != fxSize {
		flags |= ucFPXstate
	}
	le.PutUint64(b, flags)
	le.PutUint32(b[24:], ssImpossible)
	sc := b[scOffset:]
	for i, v := range []uint64{
		r.R8, r.R9, r.R10, r.R11, r.R12, r.R13, r.R14, r.R15,
		r.RDI, r.RSI, r.RBP, r.RBX, r.RDX, r.RAX, r.RCX, r.RSP, r.RIP, r.Flags,
	} {
		le.PutUint64(sc[8*i:], v)
	}
	le.PutUint16(sc[144:], uint16(r.CS))
	le.PutUint16(sc[146:], uint16(r.GS))
	le.PutUint16(sc[148:], uint16(r.FS))
	le.PutUint16(sc[150:], uint16(r.SS))
	le.PutUint64(sc[184:], fp)
	le.PutUint64(b[maskOffset:], f.mask)
}

// fpstate copies the xsave area and adds what fpu__restore_sig checks: both magic words
// and the sizes. Linux before 6.6 looks for the second one behind xstate_size, later ones
// behind the thread's own size; both places that these can be get it. A kernel on a processor
// without xsave takes what fxsave stores, and looks for nothing else.
func (f *frameSpec) fpstate(b []byte) {
	copy(b, f.xstate)
	if len(f.xstate) == fxSize {
		return
	}
	size := uint64(len(f.xstate))
	features := le.Uint64(b[swReserved:]) // the kernel gives XCR0's user part here
	le.PutUint32(b[size:], fpMagic2)
	if inUse := le.Uint64(b[fxSize:]); inUse&featureTile == 0 && f.sizes.Default < size {
		size = f.sizes.Default
		features &^= featureTile
		le.PutUint32(b[size:], fpMagic2)
	}
	sw := b[swReserved:fxSize]
	clear(sw)
	le.PutUint32(sw, fpMagic1)
	le.PutUint32(sw[4:], uint32(size)+4)
	le.PutUint64(sw[8:], features)
	le.PutUint32(sw[16:], uint32(size))
}
