#include "textflag.h"

#define SYS_clone 56 // arch/x86/entry/syscalls/syscall_64.tbl

// func cloneThread(flags, stack, alive, base, start uint64) int64
TEXT ·cloneThread(SB), NOSPLIT, $0-48
	MOVQ flags+0(FP), DI
	MOVQ stack+8(FP), SI
	MOVQ alive+16(FP), DX
	MOVQ DX, R10
	MOVQ base+24(FP), R8
	MOVQ start+32(FP), R12
	MOVL $SYS_clone, AX
	SYSCALL
	TESTQ AX, AX
	JNE  parent
	JMP  R12
parent:
	MOVQ AX, ret+40(FP)
	RET
