#include "textflag.h"

// func currentG() uint64
TEXT ·currentG(SB), NOSPLIT, $0-8
	MOVQ (TLS), AX
	MOVQ AX, ret+0(FP)
	RET

// func currentGCode() uint64
TEXT ·currentGCode(SB), NOSPLIT, $0-8
	LEAQ ·currentG(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// func currentSP() uint64
TEXT ·currentSP(SB), NOSPLIT, $0-8
	LEAQ ret+0(FP), AX
	MOVQ AX, ret+0(FP)
	RET
