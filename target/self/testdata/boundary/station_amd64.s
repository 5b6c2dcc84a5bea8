#include "textflag.h"

// AT stands before the instruction of a station that is probed: a nop that says so.
#define AT BYTE $0x0f; BYTE $0x1f; BYTE $0x80; LONG $0x600dcafe

// LOAD loads the general registers.
#define LOAD \
	MOVQ ·in+0(SB), AX; \
	MOVQ ·in+8(SB), CX; \
	MOVQ ·in+16(SB), DX; \
	MOVQ ·in+24(SB), BX; \
	MOVQ ·in+40(SB), BP; \
	MOVQ ·in+48(SB), SI; \
	MOVQ ·in+56(SB), DI; \
	MOVQ ·in+64(SB), R8; \
	MOVQ ·in+72(SB), R9; \
	MOVQ ·in+80(SB), R10; \
	MOVQ ·in+88(SB), R11; \
	MOVQ ·in+96(SB), R12; \
	MOVQ ·in+104(SB), R13; \
	MOVQ ·in+112(SB), R14; \
	MOVQ ·in+120(SB), R15

// STATION begins a station. The function may have had its stack checked, by Go code that keeps no
// register, so all are loaded again; then the flags.
#define STATION LOAD; PUSHQ ·in+136(SB); POPFQ

#define XRSTOR BYTE $0x48; BYTE $0x0f; BYTE $0xae; BYTE $0x2b // xrstor64 (%rbx)
#define XSAVE BYTE $0x48; BYTE $0x0f; BYTE $0xae; BYTE $0x23 // xsave64 (%rbx)
#define CALLSLOT BYTE $0xff; BYTE $0x54; BYTE $0x24; BYTE $16 // call *16(%rsp)

// func drive()
//
// It loads all of in, calls target, and stores all to out.
TEXT ·drive(SB), 0, $512-0
	STMXCSR 0(SP)
	FSTCW 8(SP)
	MOVQ ·target(SB), AX
	MOVQ AX, 16(SP)
	CLD
	LEAQ ·stack(SB), SI
	LEAQ 64(SP), DI
	MOVQ $32, CX
	REP; MOVSQ
	MOVL ·xmask(SB), AX
	XORL DX, DX
	MOVQ ·xin(SB), BX
	XRSTOR
	PUSHQ ·in+128(SB)
	POPFQ
	LOAD
	CALLSLOT
	MOVQ AX, ·out+0(SB)
	MOVQ CX, ·out+8(SB)
	MOVQ DX, ·out+16(SB)
	MOVQ BX, ·out+24(SB)
	MOVQ SP, ·out+32(SB)
	MOVQ BP, ·out+40(SB)
	MOVQ SI, ·out+48(SB)
	MOVQ DI, ·out+56(SB)
	MOVQ R8, ·out+64(SB)
	MOVQ R9, ·out+72(SB)
	MOVQ R10, ·out+80(SB)
	MOVQ R11, ·out+88(SB)
	MOVQ R12, ·out+96(SB)
	MOVQ R13, ·out+104(SB)
	MOVQ R14, ·out+112(SB)
	MOVQ R15, ·out+120(SB)
	PUSHFQ
	POPQ ·out+128(SB)
	CLD
	MOVL ·xmask(SB), AX
	XORL DX, DX
	MOVQ ·xout(SB), BX
	XSAVE
	LEAQ 64(SP), SI
	LEAQ ·stack(SB), DI
	MOVQ $32, CX
	REP; MOVSQ
	BYTE $0xdb; BYTE $0xe3 // fninit
	LDMXCSR 0(SP)
	FLDCW 8(SP)
	RET

TEXT ·callee(SB), NOSPLIT, $0-0
	ADCQ $5, R12
	RET

TEXT ·arithmetic(SB), 0, $256-0
	STATION
	AT
	ADCQ CX, DX
	SBBQ $3, R9
	CMOVQOS R10, R11
	RCLQ $3, R12
	RET

TEXT ·stacked(SB), 0, $256-0
	STATION
	AT
	PUSHQ R12
	PUSHFQ
	POPQ R13
	POPQ R9
	RET

TEXT ·called(SB), 0, $256-0
	STATION
	AT
	CALL ·callee(SB)
	ADCQ AX, BX
	RET

TEXT ·jumped(SB), 0, $256-0
	STATION
	AT
	JCS over
	LEAQ 1(BX), BX
	LEAQ 2(BX), BX
over:
	SBBQ R9, R10
	RET

// The direction is that of R8, whichever it is.
TEXT ·moves(SB), 0, $256-0
	STATION
	MOVL $7, CX
	AT
	REP; MOVSB
	STOSQ
	LODSW
	MOVSQ
	RET

// A handler lets it go on behind the instruction that is probed.
TEXT ·left(SB), 0, $256-0
	STATION
	AT
	BYTE $0x0f; BYTE $0x1f; BYTE $0x80; LONG $0x11223344
	ADCQ CX, DX
	LODSB
	RET

TEXT ·sse(SB), 0, $256-0
	STATION
	AT
	PADDL (DI), X3
	MULPD X1, X2
	CVTSD2SQ X4, AX
	UCOMISD X5, X6
	RET

TEXT ·control(SB), 0, $256-0
	STATION
	AT
	STMXCSR 32(DI)
	DIVPD X3, X4
	LDMXCSR 32(DI)
	RET

TEXT ·x87(SB), 0, $256-0
	STATION
	AT
	FMOVD (DI), F0
	FXCHD F0, F3
	FMOVDP F0, 16(DI)
	FSTSW AX
	RET

TEXT ·vex(SB), 0, $256-0
	STATION
	AT
	VPADDD (DI), Y1, Y2
	VADDPS Y3, Y4, Y5
	VPTEST Y6, Y7
	RET

TEXT ·evex(SB), 0, $256-0
	STATION
	AT
	VPADDD.Z (DI), Z1, K1, Z17
	VADDPS Z3, Z31, K3, Z5
	VMOVDQU8 Z20, K2, 64(DI)
	KANDQ K1, K2, K3
	KORTESTQ K4, K5
	RET

// func xgetbv() uint32
TEXT ·xgetbv(SB), NOSPLIT, $0-4
	XORL CX, CX
	XGETBV
	MOVL AX, ret+0(FP)
	RET

// func xsize() uint32
TEXT ·xsize(SB), NOSPLIT, $0-4
	MOVL $13, AX
	XORL CX, CX
	CPUID
	MOVL BX, ret+0(FP)
	RET

// Where the stations are, in the order of main.go.
DATA table<>+0(SB)/8, $·arithmetic(SB)
DATA table<>+8(SB)/8, $·stacked(SB)
DATA table<>+16(SB)/8, $·called(SB)
DATA table<>+24(SB)/8, $·jumped(SB)
DATA table<>+32(SB)/8, $·moves(SB)
DATA table<>+40(SB)/8, $·left(SB)
DATA table<>+48(SB)/8, $·sse(SB)
DATA table<>+56(SB)/8, $·control(SB)
DATA table<>+64(SB)/8, $·x87(SB)
DATA table<>+72(SB)/8, $·vex(SB)
DATA table<>+80(SB)/8, $·evex(SB)
GLOBL table<>(SB), RODATA|NOPTR, $88

// func table() *[11]uint64
TEXT ·table(SB), NOSPLIT, $0-8
	LEAQ table<>(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// func setMXCSR(v uint32)
TEXT ·setMXCSR(SB), NOSPLIT, $0-4
	LDMXCSR v+0(FP)
	RET

// func getMXCSR() uint32
TEXT ·getMXCSR(SB), NOSPLIT, $0-4
	STMXCSR ret+0(FP)
	RET
