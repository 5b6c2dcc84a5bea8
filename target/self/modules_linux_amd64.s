#include "go_asm.h"
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

// endLoop is called by sigurg with the ucontext in DX, and changes R8, R9 and AX. It sends the thread whose handler in line is to end where a fault would.
TEXT ·endLoop(SB), NOSPLIT|NOFRAME, $0
	LEAQ ·loops(SB), R8
	MOVQ loopState_key(R8), AX
	TESTQ AX, AX
	JEQ  done
	RDFSBASEQ R9
	CMPQ AX, R9
	JNE  done
	MOVQ loopState_runs(R8), R9
	MOVQ (R9), R9
	CMPQ R9, loopState_run(R8)
	JNE  done
	MOVQ 168(DX), AX // REG_RIP
	CMPQ AX, loopState_lo(R8)
	JCS  done
	CMPQ AX, loopState_hi(R8)
	JCC  done
	MOVQ loopState_abandon(R8), AX
	MOVQ AX, 168(DX)
	MOVQ loopState_desc(R8), R9
	MOVQ $1, const_descLooped(R9)
	MOVQ $0, loopState_key(R8)
done:
	RET

// func endLoopPC() uintptr
TEXT ·endLoopPC(SB), NOSPLIT, $0-8
	LEAQ ·endLoop(SB), AX
	MOVQ AX, ret+0(FP)
	RET
