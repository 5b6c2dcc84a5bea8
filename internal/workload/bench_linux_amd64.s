#include "go_asm.h"
#include "textflag.h"

// The functions below are those of src/bench.c, instruction by instruction. They take the
// four arguments in DI, SI, DX, CX as C functions do, and return in AX; R13 is the thread's
// struct state (state_unsafe.go). Go reaches them through the loops alone.

#define BODY \
	LEAQ (DI)(SI*1), AX \
	ADDQ DX, AX \
	ADDQ CX, AX

TEXT ·BenchLea(SB), NOSPLIT|NOFRAME, $0-0
	BODY
	RET

TEXT ·BenchEndbr(SB), NOSPLIT|NOFRAME, $0-0
	BYTE $0xf3; BYTE $0x0f; BYTE $0x1e; BYTE $0xfa // endbr64
	BODY
	RET

TEXT ·BenchPush(SB), NOSPLIT|NOFRAME, $0-0
	PUSHQ BP
	BODY
	POPQ BP
	RET

TEXT ·BenchNop5(SB), NOSPLIT|NOFRAME, $0-0
	BYTE $0x0f; BYTE $0x1f; BYTE $0x44; BYTE $0x00; BYTE $0x00 // nopl 0(AX)(AX*1)
	BODY
	RET

TEXT ·BenchRet(SB), NOSPLIT|NOFRAME, $0-0
	RET

TEXT ·BenchClock(SB), NOSPLIT|NOFRAME, $0-0
	RDTSC
	RET

// BenchTraced is the tracepoint of src/tracepoint.h, then as BenchLea. What gcc reads
// relative to FS and RIP is read relative to R13 here: as many loads, none dependent on more.
TEXT ·BenchTraced(SB), NOSPLIT|NOFRAME, $0-0
	MOVQ  state_area(R13), AX
	MOVQ  CX, R10
	MOVQ  DI, R8
	MOVQ  SI, R9
	MOVQ  DX, SI
	MOVL  4(AX), CX             // cpu_id of the rseq area
	IMULQ state_stride(R13), CX
	ADDQ  state_buffers(R13), CX
	MOVQ  state_mask(R13), AX
	MOVQ  (CX), R11             // head
	ANDQ  R11, AX
	LEAQ  64(CX)(AX*1), DI
	MOVQ  state_thread(R13), AX
	ORQ   $0x10006, AX          // six words, event 1
	MOVQ  AX, (DI)
	RDTSC
	SHLQ  $32, DX
	MOVQ  R8, 16(DI)
	ADDQ  $48, R11
	ORQ   DX, AX
	MOVQ  R9, 24(DI)
	MOVQ  AX, 8(DI)
	LEAQ  (SI)(R10*1), AX
	MOVQ  SI, 32(DI)
	ADDQ  R9, AX
	MOVQ  R10, 40(DI)
	ADDQ  R8, AX
	MOVQ  R11, (CX)
	RET

// The text that the functions are given, and behind it the header of a Go string of its bytes.
DATA text<>+0(SB)/8, $"/usr/bin"
DATA text<>+8(SB)/8, $"/python\x00"
DATA text<>+16(SB)/8, $text<>(SB)
DATA text<>+24(SB)/8, $15
GLOBL text<>(SB), NOPTR, $32

// LOOP defines func NAME(n uint64, st *state), which calls FUNC(i, n, text, 15) n times.
#define LOOP(NAME, FUNC) \
TEXT NAME(SB), NOSPLIT, $16-16 \
	MOVQ n+0(FP), R12  \
	MOVQ st+8(FP), R13 \
	XORL BX, BX        \
again:                     \
	MOVQ BX, DI        \
	MOVQ R12, SI       \
	LEAQ text<>(SB), DX \
	MOVL $15, CX       \
	CALL FUNC(SB)      \
	INCQ BX            \
	CMPQ BX, R12       \
	JNE  again         \
	RET

LOOP(·loopLea, ·BenchLea)
LOOP(·loopEndbr, ·BenchEndbr)
LOOP(·loopPush, ·BenchPush)
LOOP(·loopNop5, ·BenchNop5)
LOOP(·loopRet, ·BenchRet)
LOOP(·loopClock, ·BenchClock)
LOOP(·loopTraced, ·BenchTraced)
