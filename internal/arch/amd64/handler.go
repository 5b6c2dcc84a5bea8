package amd64

import (
	"errors"
)

// The resident handler stands in a probed process for the signals of a fault (SIGSEGV,
// SIGBUS, SIGFPE, SIGILL). A fault outside generated code goes to the handler that was
// there before, with nothing changed, and so does a signal that somebody has sent (its si_code is 0 or
// less), wherever the thread was. A fault in generated code is looked up in a table:
//
//	a load of a fetch argument  goes on at its fix-up
//	code of a module            the table says what looks at it (see slotfault.go)
//	a displaced instruction     the instruction pointer becomes that of the original,
//	                            then the program's own handler sees the fault; when it
//	                            returns to the original instruction the copy goes on
//
// It uses no stack of its own, but for the default action and where a handler of the program's calls
// it, and only registers that a handler may clobber.

// HandlerEnv says where the handler finds its data.
type HandlerEnv struct {
	Traps  uint64 // address of two words: the table of TrapEntries, sorted, and its length
	Faults uint64 // address of two words: address of the table, and its length in entries
	// Directory: the table of faults is in pieces, and what Faults names is the table of these: entries that have the
	// lowest address of what a piece tells, a word, the address of the piece, and its length in entries. Not with Resumes.
	Directory bool
	Actions   uint64 // saved dispositions: ActionSize bytes for each signal number
	Hooked    uint64 // address of a word: not 0 once Trap stands, so that a trap flag is ours
	// ActionHandler is the offset of a struct kernel_sigaction in one of them.
	ActionSize, ActionHandler int32
	// Resumes says that a handler of the program may return to the instruction that
	// faulted. Go's never does, and must not find a foreign return address.
	Resumes bool
}

// What the kernel says of a SIGTRAP (asm-generic/siginfo.h).
const (
	sigTrap   = 5
	siKernel  = 0x80 // int3
	trapTrace = 2    // a single step
	trapBrkpt = 1    // DR6 has no reason: int1; and, on some virtual machines, a few single steps in a million
)

// trap emits the handler of SIGTRAP: a breakpoint of the engine's goes on in its detour; one that
// has been removed meanwhile is run anew; a single step of the engine's ends. The trap flag is the engine's, since
// the program takes no SIGTRAP of its own.
func (h *handlerCode) trap() {
	int3, step, none := h.Label(), h.Label(), h.Label()
	h.MovRM(4, RAX, At(RSI, infoCode))
	h.OpRI(OpCmp, 4, RAX, siKernel)
	h.Jcc(CondE, int3)
	h.OpRI(OpCmp, 4, RAX, trapTrace)
	h.Jcc(CondE, step)
	h.OpRI(OpCmp, 4, RAX, trapBrkpt)
	h.Jcc(CondNE, none)
	h.TestMI(4, At(RDX, ucFlags), flagTF)
	h.Jcc(CondNE, step)
	h.Bind(none)
	h.chain()
	h.Bind(step)
	h.OpMI(OpAnd, 4, At(RDX, ucFlags), ^flagTF)
	h.Ret()
	h.Bind(int3)
	h.none, h.search = none, int3
	h.breakpoint(none)
}

// breakpoint emits the search for the breakpoint that was hit.
func (h *handlerCode) breakpoint(none Label) {
	loop, upper, found, absent := h.Label(), h.Label(), h.Label(), h.Label()
	h.store = h.Label()
	h.MovRM(8, RAX, At(RDX, ucRIP))
	h.OpRI(OpSub, 8, RAX, 1)
	h.MovRI(R8, h.env.Traps)
	h.MovRM(8, R9, At(R8, 0))
	h.MovRM(8, RCX, At(R8, 8))
	h.MovRI(R10, 0)
	h.Bind(loop)
	h.OpRR(OpCmp, 8, R10, RCX)
	h.Jcc(CondAE, absent)
	h.Lea(R11, AtIndex(R10, RCX, 1, 0))
	h.ShiftRI(Shr, 8, R11, 1)
	h.MovRR(8, R8, R11)
	h.ShiftRI(Shl, 8, R8, 4)
	h.OpRM(OpCmp, 8, RAX, AtIndex(R9, R8, 1, 0))
	h.Jcc(CondE, found)
	h.Jcc(CondB, upper)
	h.Lea(R10, At(R11, 1))
	h.Jmp(loop)
	h.Bind(upper)
	h.MovRR(8, RCX, R11)
	h.Jmp(loop)
	h.Bind(absent)
	h.OpMI(OpCmp, 1, At(RAX, 0), opInt3)
	h.Jcc(CondE, none)
	h.Jmp(h.store)
	h.Bind(found)
	h.MovRM(8, RAX, AtIndex(R9, R8, 1, 8))
	h.Bind(h.store)
	h.MovMR(8, At(RDX, ucRIP), RAX)
	h.Ret()
}

// Offsets in what the kernel gives to a handler: struct ucontext (asm/ucontext.h,
// asm/sigcontext.h) and siginfo.
const (
	ucRSP    = 160
	ucRIP    = 168
	ucFlags  = 176
	ucTrap   = 200
	ucCR2    = 216
	infoCode = 8
	infoAddr = 16
)

// System calls of the handler.
const (
	sysRtSigaction     = 13
	sysRtSigreturn     = 15
	sysGetpid          = 39
	sysGettid          = 186
	sysRtTgsigqueueinf = 297
)

// Handler is the code of the resident handler.
type Handler struct {
	Code   []byte
	Entry  uint64 // what rt_sigaction is given for the signals of a fault
	Trap   uint64 // what it is given for SIGTRAP
	Return uint64 // sa_restorer for where the program had none

	none, search, store uint64 // of the handler of SIGTRAP
}

// Taking says whether a thread that is to go on at pc, in the handler of SIGTRAP, has yet to say
// where its context goes on. It can begin again at Trap: it has changed nothing, and its
// arguments are as the kernel gave them.
func (h *Handler) Taking(pc uint64) bool {
	return pc >= h.Trap && pc < h.none || pc >= h.search && pc <= h.store
}

// Looking says whether a thread that is to go on at pc is in the handler of faults.
func (h *Handler) Looking(pc uint64) bool { return pc >= h.Entry && pc < h.Trap }

// Trapped says whether a thread that is to go on at pc is in the handler of SIGTRAP, so that its
// context does not block that signal.
func (h *Handler) Trapped(pc uint64) bool {
	return pc >= h.Trap && pc-h.Return < uint64(len(h.Code))
}

// Leaving says whether a thread that is to go on at pc is about to return from a handler: its
// stack pointer is that of the saved context then (struct ucontext).
func (h *Handler) Leaving(pc uint64) bool { return pc >= h.Return && pc < h.Entry }

// ContextMask is the offset of the signal mask in a saved context (struct ucontext of the kernel,
// asm/ucontext.h).
const ContextMask = 296

// NewHandler generates the resident handler at addr.
func NewHandler(addr uint64, env HandlerEnv) (*Handler, error) {
	if env.Directory && env.Resumes {
		return nil, errors.New("handler: what goes back to a copy is not found in a table of pieces")
	}
	h := handlerCode{Asm: NewAsm(addr), env: env}
	restorer := h.restorer()
	entry := h.Here()
	h.lookup()
	h.chain()
	if env.Resumes {
		h.mapBack()
	}
	trap := h.Here()
	h.trap()
	code, err := h.Finish()
	if err != nil {
		return nil, err
	}
	return &Handler{
		Code: code, Entry: h.LabelAddr(entry), Trap: h.LabelAddr(trap), Return: h.LabelAddr(restorer),
		none: h.LabelAddr(h.none), search: h.LabelAddr(h.search), store: h.LabelAddr(h.store),
	}, nil
}

type handlerCode struct {
	*Asm
	env  HandlerEnv
	back Label // return address of a handler whose context must be mapped back
	// called goes on where it is no signal that has come here, but a call by a handler of the
	// program's that has replaced ours; pass hands the signal on.
	called, pass Label

	none, search, store Label // see Handler
}

// restorer emits the plain signal return, in the bytes that unwinders look for.
func (h *handlerCode) restorer() Label {
	l := h.Here()
	h.sigreturn()
	return l
}

func (h *handlerCode) sigreturn() {
	h.Raw(0x48, 0xc7, 0xc0, sysRtSigreturn, 0, 0, 0) // mov $15, %rax
	h.Syscall()
}

// table emits R9 = the fault table and RCX = its length.
func (h *handlerCode) table() {
	h.MovRI(R8, h.env.Faults)
	h.MovRM(8, R9, At(R8, 0))
	h.MovRM(8, RCX, At(R8, 8))
}

// lookup emits the search for the instruction pointer of the context in RDX and what
// is done for an entry found. Otherwise control goes on.
func (h *handlerCode) lookup() {
	none, moved := h.Label(), h.Label()
	h.table()
	h.TestRR(8, RCX, RCX) // nothing is ours: what the arguments are does not matter, should a handler of the program's call
	h.Jcc(CondE, none)
	h.MovRM(8, RAX, At(RDX, ucRIP))
	h.find(none)
	if h.env.Directory {
		h.MovRM(8, R9, At(R8, 16))
		h.MovRM(8, RCX, At(R8, 24))
		h.find(none)
	}
	h.OpRM(OpCmp, 8, RAX, At(R8, 8))
	h.Jcc(CondAE, none)
	h.OpMI(OpCmp, 4, At(RSI, infoCode), 0) // somebody has sent the signal (sigaction(2)): the instruction has not faulted
	h.Jcc(CondLE, none)
	h.MovRM(8, RAX, At(R8, 16))
	h.OpMI(OpCmp, 8, At(R8, 24), 0)
	h.Jcc(CondNE, moved)
	h.MovMR(8, At(RDX, ucRIP), RAX)
	h.Ret()
	h.Bind(moved)
	h.Raw(0x49, 0x83, 0x78, 0x18, kindCalled, 0x75, 2) // cmpq $kindCalled, 24(%r8); jne
	h.Raw(0xff, 0xe0)                                  // jmp *%rax
	h.moved(none)
	h.Bind(none)
}

// find emits R8 = the last of the RCX entries at R9 that begin at or before RAX; control goes to none if there is none.
func (h *handlerCode) find(none Label) {
	loop, upper, end := h.Label(), h.Label(), h.Label()
	h.MovRI(R10, 0)
	h.Bind(loop) // RCX is above all entries that may hold it, R10 counts those known to start at or before it
	h.OpRR(OpCmp, 8, R10, RCX)
	h.Jcc(CondAE, end)
	h.Lea(R11, AtIndex(R10, RCX, 1, 0))
	h.ShiftRI(Shr, 8, R11, 1)
	h.MovRR(8, R8, R11)
	h.ShiftRI(Shl, 8, R8, 5)
	h.OpRM(OpCmp, 8, RAX, AtIndex(R9, R8, 1, 0))
	h.Jcc(CondB, upper)
	h.Lea(R10, At(R11, 1))
	h.Jmp(loop)
	h.Bind(upper)
	h.MovRR(8, RCX, R11)
	h.Jmp(loop)
	h.Bind(end)
	h.TestRR(8, R10, R10)
	h.Jcc(CondE, none)
	h.ShiftRI(Shl, 8, R10, 5)
	h.Lea(R8, AtIndex(R9, R10, 1, -FaultEntrySize))
}

// moved emits what is done for a fault in a displaced instruction whose original is in
// RAX: a program that handles the signal sees the original address; one that does not
// dies where it is.
func (h *handlerCode) moved(none Label) {
	h.MovRM(8, R10, At(R8, 24)) // Moved, SP and Stub
	h.toStub()
	h.oldHandler()
	h.OpRI(OpCmp, 8, R8, 1)
	h.Jcc(CondBE, none)
	h.original()
	if !h.env.Resumes {
		return
	}
	h.back, h.called = h.Label(), h.Label()
	h.pass = none
	h.Lea(R9, At(RDX, -8))
	h.OpRR(OpCmp, 8, R9, RSP)
	h.Jcc(CondNE, h.called)
	h.Lea(R9, AtLabel(h.back, 0))
	h.MovMR(8, At(RSP, 0), R9)
}

// original emits what makes the context that of the original instruction, in RAX, with the
// last word of its FaultEntry in R10: the instruction pointer, si_addr where it tells the same
// (SIGILL, SIGFPE), the stack pointer, and the trap flag. That one is ours where the handler of
// SIGTRAP stands, for then the program takes none of its own.
func (h *handlerCode) original() {
	elsewhere, noTraps := h.Label(), h.Label()
	h.MovRM(8, R9, At(RDX, ucRIP))
	h.OpMR(OpCmp, 8, At(RSI, infoAddr), R9)
	h.Jcc(CondNE, elsewhere)
	h.MovMR(8, At(RSI, infoAddr), RAX)
	h.Bind(elsewhere)
	h.MovMR(8, At(RDX, ucRIP), RAX)
	h.addSP()
	h.MovRI(R8, h.env.Hooked)
	h.OpMI(OpCmp, 8, At(R8, 0), 0)
	h.Jcc(CondE, noTraps)
	h.OpMI(OpAnd, 4, At(RDX, ucFlags), ^flagTF)
	h.Bind(noTraps)
}

// addSP emits what makes the context's stack pointer that of the original instruction, with the
// last word of its FaultEntry in R10.
func (h *handlerCode) addSP() {
	h.ShiftRI(Shr, 8, R10, 8)
	h.OpRI(OpAnd, 4, R10, 0xff)
	h.OpMR(OpAdd, 8, At(RDX, ucRSP), R10)
}
