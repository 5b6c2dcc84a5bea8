#include "go_asm.h"
#include "textflag.h"

// System calls (arch/x86/entry/syscalls/syscall_64.tbl).
#define SYS_gettid 186
#define SYS_futex 202

// Offsets in struct ucontext.
#define uc_link 8
#define uc_rip 168

// sigurg stands before the runtime's handlers of SIGURG and SIGPROF, by the C convention: DI
// is the signal, SI its siginfo, DX the ucontext.
//
// A thread that was asked to stop parks here (see world_linux_amd64.go), then the signal is
// handled as any other of its kind.
//
// A thread that has just taken a breakpoint is at the start of the detour: it is set back to
// the breakpoint, where the runtime knows the code and may preempt the goroutine.
//
// A thread whose handler in line is to end goes on where a fault would send it (loops_linux_amd64.go).
//
// The runtime may hand a signal on to us that we have handed to it: os/signal takes what it
// finds for the handler to go on with, while SIGURG is not notified. The frame is marked, in a
// word that the kernel does not use, so that the signal ends there.
TEXT ·sigurg(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	LEAQ ·world(SB), R9
	CMPQ uc_link(DX), R9
	JEQ  done
	MOVQ R9, uc_link(DX)
	CMPL worldState_stopping(R9), $0
	JEQ  rewind
	MOVQ DI, R12 // all registers are the interrupted code's again when the signal returns
	MOVQ SI, R13
	MOVQ DX, R15
	MOVL $SYS_gettid, AX
	SYSCALL
	MOVL AX, R8
	ANDL $(const_slotBuckets-1), R8
	IMULQ $(const_slotWays*slot__size), R8
	LEAQ worldState_slots(R9)(R8*1), R8
	MOVL $const_slotWays, R10
find:
	CMPL slot_tid(R8), AX
	JEQ  found
	ADDQ $slot__size, R8
	DECL R10
	JNE  find
	JMP  parked
found:
	MOVQ slot_state(R8), AX
	MOVQ AX, CX
	ANDL $3, CX
	CMPL CX, $const_slotAsked
	JNE  parked
	MOVQ R15, slot_uc(R8)
	MOVQ (TLS), CX
	MOVQ CX, slot_g(R8)
	MOVQ AX, BX
	SHRQ $2, BX // the epoch it was asked in
	LEAQ 1(AX), CX // asked becomes parked
	LOCK
	CMPXCHGQ CX, slot_state(R8)
	JNE  parked
	LOCK
	INCL worldState_parked(R9)
	LEAQ worldState_parked(R9), DI
	MOVL $const_futexWakePrivate, SI
	MOVL $1, DX
	MOVL $SYS_futex, AX
	SYSCALL
wait:
	LEAQ ·world(SB), R9
	CMPL worldState_epoch(R9), BX
	JNE  parked
	LEAQ worldState_epoch(R9), DI
	MOVL $const_futexWaitPrivate, SI
	MOVL BX, DX
	XORL R10, R10
	MOVL $SYS_futex, AX
	SYSCALL
	JMP  wait
parked:
	MOVQ R12, DI
	MOVQ R13, SI
	MOVQ R15, DX
rewind:
	MOVQ ·loopEnd(SB), R8
	TESTQ R8, R8
	JEQ  ends
	CALL R8
ends:
	MOVQ ·controlWords(SB), R8
	MOVQ 16(R8), R9
	MOVQ 24(R8), CX
	MOVQ uc_rip(DX), AX
loop:
	TESTQ CX, CX
	JEQ  next
	CMPQ AX, 8(R9)
	JEQ  back
	ADDQ $16, R9
	DECQ CX
	JMP  loop
back:
	MOVQ (R9), AX
	MOVQ AX, uc_rip(DX)
next:
	LEAQ ·afterFault(SB), R8
	MOVLQSX DI, R9
	MOVQ (R8)(R9*8), AX
	CMPQ AX, $1
	JLS  done // SIG_DFL and SIG_IGN: SIGURG does nothing by default
	JMP  AX
done:
	RET

// func sigurgPC() uintptr
TEXT ·sigurgPC(SB), NOSPLIT, $0-8
	LEAQ ·sigurg(SB), AX
	MOVQ AX, ret+0(FP)
	RET
