#include "go_asm.h"
#include "textflag.h"

// func load32(p *uint32) uint32
TEXT ·load32(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), AX
	MOVL (AX), AX
	MOVL AX, ret+8(FP)
	RET

// func store32(p *uint32, v uint32)
TEXT ·store32(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), AX
	MOVL v+8(FP), CX
	XCHGL CX, (AX)
	RET

// func add32(p *uint32, v uint32)
TEXT ·add32(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), AX
	MOVL v+8(FP), CX
	LOCK
	ADDL CX, (AX)
	RET

// func load64(p *uint64) uint64
TEXT ·load64(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ (AX), AX
	MOVQ AX, ret+8(FP)
	RET

// func store64(p *uint64, v uint64)
TEXT ·store64(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), CX
	XCHGQ CX, (AX)
	RET

// func cas64(p *uint64, old, v uint64) bool
TEXT ·cas64(SB), NOSPLIT, $0-25
	MOVQ p+0(FP), DX
	MOVQ old+8(FP), AX
	MOVQ v+16(FP), CX
	LOCK
	CMPXCHGQ CX, (DX)
	SETEQ ret+24(FP)
	RET

// func onSystem(p *plan) int32
//
// It does what runtime.systemstack does, without telling the runtime: nobody looks while
// all signals are blocked and all other threads are stopped.
TEXT ·onSystem(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), DI
	MOVQ (TLS), R12
	MOVQ const_gateM(R12), R11
	MOVQ const_gateG0(R11), R11
	MOVQ const_gateSchedSP(R11), R10
	SUBQ $64, R10
	ANDQ $~15, R10
	MOVQ SP, 32(R10)
	MOVQ R12, 40(R10)
	MOVQ R10, SP
	MOVQ TLS, CX
	MOVQ R11, 0(CX)(TLS*1)
	MOVQ R11, R14
	XORPS X15, X15
	MOVQ DI, AX
	MOVQ ·stoppedCode(SB), CX
	CALL CX // by ABIInternal: the compiler's wrapper would call the race detector
	MOVQ 40(SP), R12
	MOVQ TLS, CX
	MOVQ R12, 0(CX)(TLS*1)
	MOVQ 32(SP), SP
	MOVL AX, ret+8(FP)
	RET
