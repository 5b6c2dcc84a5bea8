#include "go_asm.h"
#include "textflag.h"

// System calls (arch/x86/entry/syscalls/syscall_64.tbl).
#define SYS_gettid 186
#define SYS_futex 202

// Offsets in siginfo and struct ucontext.
#define info_code 8
#define info_pid 16
#define info_value 24

// sigtrap is the handler of SIGTRAP, by the C convention: DI is the signal, SI its siginfo,
// DX the ucontext. A signal of ours parks the thread (see world_linux_amd64.go). Everything
// else is the generated handler's.
TEXT ·sigtrap(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	MOVL info_code(SI), AX
	LEAQ ·world(SB), R9
	CMPL AX, $-1 // SI_QUEUE
	JEQ  queued
	TESTL AX, AX // SI_USER
	JNE  pass
	CMPL info_pid(SI), $0 // what is left of ours where the kernel had no memory for it
	JEQ  mine
pass:
	MOVQ ·afterTrap(SB), AX
	JMP  AX
queued:
	CMPQ info_value(SI), R9
	JNE  pass
mine:
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
	RET
found:
	MOVQ slot_state(R8), AX
	MOVQ AX, CX
	ANDL $3, CX
	CMPL CX, $const_slotAsked
	JNE  out
	MOVQ DX, slot_uc(R8)
	MOVQ (TLS), CX
	MOVQ CX, slot_g(R8)
	MOVQ AX, R12
	SHRQ $2, R12 // the epoch it was asked in
	LEAQ 1(AX), CX // asked becomes parked
	LOCK
	CMPXCHGQ CX, slot_state(R8)
	JNE  out
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
	JNE  out
	LEAQ worldState_epoch(R13), DI
	MOVL $const_futexWaitPrivate, SI
	MOVL R12, DX
	XORL R10, R10
	MOVL $SYS_futex, AX
	SYSCALL
	JMP  wait
out:
	RET

// func sigtrapPC() uintptr
TEXT ·sigtrapPC(SB), NOSPLIT, $0-8
	LEAQ ·sigtrap(SB), AX
	MOVQ AX, ret+0(FP)
	RET
