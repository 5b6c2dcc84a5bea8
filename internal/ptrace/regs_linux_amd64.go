package ptrace

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Regs is a thread's registers, in the order of the kernel's struct user_regs_struct
// (PTRACE_GETREGS, amd64).
type Regs struct {
	R15, R14, R13, R12, RBP, RBX, R11, R10, R9, R8 uint64
	RAX, RCX, RDX, RSI, RDI                        uint64
	// OrigRAX is the number of the system call that the thread is in or has just left,
	// and ^0 if it came to the kernel by other ways.
	OrigRAX             uint64
	RIP, CS, Flags, RSP uint64
	SS, FSBase, GSBase  uint64
	DS, ES, FS, GS      uint64
}

// InSyscall says whether the thread stands at the end of a system call: it has not seen
// RAX yet, and the kernel may still choose to make the call again.
func (r *Regs) InSyscall() bool { return int64(r.OrigRAX) >= 0 }

const (
	syscallSize       = 2 // bytes of the syscall instruction
	sysRestartSyscall = 219
	sysRtSigreturn    = 15
	NoSyscall         = ^uint64(0)
)

// TrapFlag is EFLAGS.TF: a trap after the next instruction (SDM vol. 1, section 3.4.3).
const TrapFlag = 1 << 8

// restarts says whether the kernel would make the call again, and how.
func (r *Regs) restarts() (again, block bool) {
	if !r.InSyscall() {
		return false, false
	}
	switch -int64(r.RAX) {
	case errRestart, errRestartNoInt, errRestartNoHnd:
		return true, false
	case errRestartBlock:
		return true, true
	}
	return false, false
}

// again gives the registers with which the thread makes its system call once more by
// itself, from the instruction on.
func (r Regs) again(nr uint64) Regs {
	r.RIP -= syscallSize
	r.RAX = nr
	r.OrigRAX = NoSyscall
	return r
}

// undecided gives the registers of a thread whose system call the kernel makes again, unless a handler runs first.
func (r Regs) undecided() Regs {
	again := int64(-errRestartNoHnd)
	r.RAX = uint64(again)
	return r
}

// resumed gives the registers that take the thread on where it was, whatever the kernel
// has forgotten since about its interrupted system call. With block, the restart block is
// still there.
func (r Regs) resumed(blockKept bool) Regs {
	again, block := r.restarts()
	switch {
	case block && blockKept:
		return r.again(sysRestartSyscall)
	case again:
		return r.again(r.OrigRAX)
	}
	r.OrigRAX = NoSyscall
	return r
}

// The requests by which registers are read and written.
const (
	requestGetRegs = unix.PTRACE_GETREGS
	requestSetRegs = unix.PTRACE_SETREGS
)

func getRegs(tid int) (r Regs, err error) {
	err = ptraceAt(requestGetRegs, tid, 0, unsafe.Pointer(&r))
	return r, err
}

func setRegs(tid int, r *Regs) error {
	return ptraceAt(requestSetRegs, tid, 0, unsafe.Pointer(r))
}

// userCS is the code segment of 64-bit user code (__USER_CS).
const userCS = 0x33

// resumeFlag is EFLAGS.RF: no instruction breakpoint on the next instruction, after which
// the processor clears it (SDM 3A 19.3.1.1).
const resumeFlag = 1 << 16

// ThreadPointer is the FS base: what %fs:0 addresses; 0 before the program has set it.
func (t *Thread) ThreadPointer() uint64 { return t.regs.FSBase }

// PC is the instruction pointer, SP the stack pointer.
func (r *Regs) PC() uint64 { return r.RIP }
func (r *Regs) SP() uint64 { return r.RSP }

// Shift has the thread go on so many bytes further, and with a stack pointer that is so many bytes higher.
func (r *Regs) Shift(pc, sp uint64) {
	r.RIP += pc
	r.RSP += sp
}

// Unstep has no trap follow the next instruction.
func (r *Regs) Unstep() { r.Flags &^= TrapFlag }

// Words are the registers that may hold an address of code, the instruction pointer among them.
func (r *Regs) Words() []*uint64 {
	return []*uint64{
		&r.RIP, &r.RAX, &r.RBX, &r.RCX, &r.RDX, &r.RSI, &r.RDI, &r.RBP,
		&r.R8, &r.R9, &r.R10, &r.R11, &r.R12, &r.R13, &r.R14, &r.R15,
	}
}

// setPC has the thread go on at an address, in no system call.
func (r *Regs) setPC(pc uint64) { r.RIP, r.OrigRAX = pc, NoSyscall }

// call is the number of the system call that the thread is in, and result what the call has returned.
func (r *Regs) call() uint64  { return r.OrigRAX }
func (r *Regs) result() int64 { return int64(r.RAX) }

// waits makes the registers those of a thread in a system call, as far as the kernel tells them.
func (r *Regs) waits(w *wait) { r.RIP, r.RSP, r.OrigRAX, r.CS = w.pc, w.sp, w.nr, userCS }

// breakpoint is the instruction that stops a thread, and trapSize how far behind its start the thread then stands.
var breakpoint = []byte{0xcc}

const trapSize = 1

// wide says whether the thread runs 64-bit code.
func (r *Regs) wide() bool { return r.CS == userCS }

// resumePC is the address of the instruction that the thread runs next: RIP, or the
// system call instruction before it where the kernel makes the call again.
func (r *Regs) resumePC() uint64 {
	if again, _ := r.restarts(); again {
		return r.RIP - syscallSize
	}
	return r.RIP
}

// fast says whether the kernel may return to the program by SYSRET, and gives the registers with which it does not.
// SYSRET is taken only where RCX holds RIP and R11 the flags, and never with RF set, which it cannot restore
// (do_syscall_64).
func (r Regs) fast() (slow Regs, fast bool) {
	fast = r.RCX == r.RIP && r.R11 == r.Flags
	r.Flags |= resumeFlag
	return r, fast
}

// enter gives the registers with which the thread makes a system call, at an instruction and with a stack.
func (r Regs) enter(at, sp, nr uint64, args *[6]uint64) Regs {
	const directionAndTraps = 1<<10 | TrapFlag | resumeFlag
	r.RIP, r.RSP, r.RAX, r.OrigRAX = at, sp, nr, NoSyscall
	r.RDI, r.RSI, r.RDX, r.R10, r.R8, r.R9 = args[0], args[1], args[2], args[3], args[4], args[5]
	r.Flags &^= directionAndTraps
	return r
}
