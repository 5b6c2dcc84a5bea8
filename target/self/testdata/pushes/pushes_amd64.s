#include "funcdata.h"
#include "textflag.h"

// func Room(n uintptr)
//
// The assembler pushes the frame pointer and makes the frame, then the stack is checked. Grown, the
// stack has the frame still.
TEXT ·Room(SB), NOSPLIT, $8-8
	NO_LOCAL_POINTERS
entry:
	MOVQ (TLS), R14
	MOVQ n+0(FP), R12
	NOTQ R12
	LEAQ (SP)(R12*1), R12
	CMPQ R12, 16(R14)
	JLS  grow
	RET
grow:
	CALL runtime·morestack_noctxt(SB)
	JMP  entry

// func Twice(n int) int
TEXT ·Twice(SB), NOSPLIT, $16-16
	NO_LOCAL_POINTERS
	MOVQ n+0(FP), AX
again:
	MOVQ (TLS), R14
	CMPQ SP, 16(R14)
	JLS  more
	ADDQ AX, AX
	MOVQ AX, ret+8(FP)
	RET
more:
	CALL runtime·morestack_noctxt(SB)
	MOVQ n+0(FP), AX // the goroutine may have been preempted there
	JMP  again
