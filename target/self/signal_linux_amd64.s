#include "go_asm.h"
#include "textflag.h"

// System calls (arch/x86/entry/syscalls/syscall_64.tbl).
#define SYS_gettid 186
#define SYS_futex 202

#define SIGURG 23

// sigurg is the handler of SIGURG, by the C convention: DI is the signal, SI its siginfo, DX
// the ucontext. A thread that was asked to stop parks (see world_linux_amd64.go), then the
// signal is handled as any other of its kind.
TEXT ·sigurg(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	LEAQ ·world(SB), R9
	CMPL worldState_stopping(R9), $0
	JEQ  out
	MOVQ SI, R14
	MOVQ DX, R15
	MOVL $SYS_gettid, AX
	SYSCALL
	MOVL AX, BX // rt_sigreturn restores all registers
	MOVL AX, R8
	ANDL $(const_slotBuckets-1), R8
	IMULQ $(const_slotWays*slot__size), R8
	LEAQ worldState_slots(R9)(R8*1), R8
	MOVL $const_slotWays, R10
find:
	CMPL slot_tid(R8), BX
	JEQ  found
	ADDQ $slot__size, R8
	DECL R10
	JNE  find
	JMP  back
found:
	MOVQ slot_state(R8), AX
	MOVQ AX, CX
	ANDL $3, CX
	CMPL CX, $const_slotAsked
	JNE  back
	MOVQ R15, slot_uc(R8)
	MOVQ (TLS), CX
	MOVQ CX, slot_g(R8)
	MOVQ AX, R12
	SHRQ $2, R12 // the epoch it was asked in
	LEAQ 1(AX), CX // asked becomes parked
	LOCK
	CMPXCHGQ CX, slot_state(R8)
	JNE  back
	MOVQ R9, R13
	LOCK
	INCL worldState_parked(R13)
	LEAQ worldState_parked(R13), DI
	MOVL $const_futexWakePrivate, SI
	MOVL $1, DX
	MOVL $SYS_futex, AX
	SYSCALL
wait:
	CMPL worldState_epoch(R13), R12
	JNE  back
	LEAQ worldState_epoch(R13), DI
	MOVL $const_futexWaitPrivate, SI
	MOVL R12, DX
	XORL R10, R10
	MOVL $SYS_futex, AX
	SYSCALL
	JMP  wait
back:
	MOVL $SIGURG, DI
	MOVQ R14, SI
	MOVQ R15, DX
out:
	JMP  ·sigrewind(SB)

// func sigurgPC() uintptr
TEXT ·sigurgPC(SB), NOSPLIT, $0-8
	LEAQ ·sigurg(SB), AX
	MOVQ AX, ret+0(FP)
	RET
