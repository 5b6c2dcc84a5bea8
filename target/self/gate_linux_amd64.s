#include "go_asm.h"
#include "textflag.h"

#define SYS_write 1 // arch/x86/entry/syscalls/syscall_64.tbl

// Offsets in g and m, which Attach checks (fitsGate).
#define g_stack_lo 0
#define g_stack_hi 8
#define g_m const_gateM
#define g_sched_sp const_gateSchedSP
#define m_g0 const_gateG0
#define m_procid const_gateProcID

// Offsets from the frame at which a detour saves registers (internal/arch/amd64, call.go).
#define F_AX 0
#define F_CX 8
#define F_DX 16
#define F_R11 24
#define F_R12 32
#define F_R13 40
#define F_OF 48
#define F_FLAGS 49

// Offsets in amd64.Regs, which stands at the start of a hit (call_linux_amd64.go checks them).
#define R_AX 0
#define R_BX 8
#define R_CX 16
#define R_DX 24
#define R_SI 32
#define R_DI 40
#define R_BP 48
#define R_SP 56
#define R_R8 64
#define R_R9 72
#define R_R10 80
#define R_R11 88
#define R_R12 96
#define R_R13 104
#define R_R14 112
#define R_R15 120
#define R_IP 128
#define R_FLAGS 136
#define R_X 144
#define R_POINT 400

// Bits of the flags register.
#define ARITH 0xd5 // CF PF AF ZF SF
#define FIXED 0x202 // IF and the bit that is always set
#define OFBIT 11
#define DIRECTION 0x400

// The state components that a handler may change and a program with vector code may need:
// x87, SSE, AVX, mask registers, ZMM. An image of them takes at most XSAVE bytes (SDM vol. 1,
// 13.4; what comes after them, tiles for one, Go code does not touch).
#define COMPONENTS 0xe7
#define XSAVE 2752

// SAVE_X stores the vector registers and their control word into the hit in B.
#define SAVE_X(B) \
	STMXCSR hit_mxcsr(B); \
	MOVUPS X0, (R_X+0)(B); \
	MOVUPS X1, (R_X+16)(B); \
	MOVUPS X2, (R_X+32)(B); \
	MOVUPS X3, (R_X+48)(B); \
	MOVUPS X4, (R_X+64)(B); \
	MOVUPS X5, (R_X+80)(B); \
	MOVUPS X6, (R_X+96)(B); \
	MOVUPS X7, (R_X+112)(B); \
	MOVUPS X8, (R_X+128)(B); \
	MOVUPS X9, (R_X+144)(B); \
	MOVUPS X10, (R_X+160)(B); \
	MOVUPS X11, (R_X+176)(B); \
	MOVUPS X12, (R_X+192)(B); \
	MOVUPS X13, (R_X+208)(B); \
	MOVUPS X14, (R_X+224)(B); \
	MOVUPS X15, (R_X+240)(B)

// SAVE_SLOTS copies the registers that the detour's frame F keeps into the hit in B, by T.
#define SAVE_SLOTS(F, B, T) \
	MOVQ F_AX(F), T; \
	MOVQ T, R_AX(B); \
	MOVQ F_CX(F), T; \
	MOVQ T, R_CX(B); \
	MOVQ F_DX(F), T; \
	MOVQ T, R_DX(B); \
	MOVQ F_R11(F), T; \
	MOVQ T, R_R11(B); \
	MOVQ F_R12(F), T; \
	MOVQ T, R_R12(B); \
	MOVQ F_R13(F), T; \
	MOVQ T, R_R13(B)

// gate is entered by a jump from a detour (internal/arch/amd64, call.go, has the contract). It runs a
// handler on the thread's system stack.
TEXT ·gate(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	CMPL desc_kind(R12), $const_kindSleep
	JEQ  sleep
	MOVQ (TLS), CX
	TESTQ CX, CX
	JEQ  early
	MOVQ g_m(CX), R11
	TESTQ R11, R11
	JEQ  early
	CMPQ SP, g_stack_lo(CX)
	JCS  early
	CMPQ SP, g_stack_hi(CX)
	JHI  early
	// On the signal stack, or where the runtime changes goroutines, the system stack may be
	// in use: nothing is stored there.
	CMPQ m_g0(R11), CX
	JEQ  system
	ADDQ ·gateCurG(SB), R11
	CMPQ (R11), CX
	JNE  early
	MOVQ g_m(CX), R11
	MOVQ m_g0(R11), R11
	MOVQ g_sched_sp(R11), R11
	JMP  room
system:
	MOVQ SP, R11
room:
	SUBQ $(hit__size+const_gateBelow), R11
	ANDQ $~63, R11
	MOVQ g_m(CX), CX
	MOVQ m_g0(CX), CX
	MOVQ g_stack_lo(CX), CX
	ADDQ $const_gateRoom, CX
	CMPL desc_kind(R12), $const_kindHandler
	JEQ  enough
	SUBQ $(const_gateRoom-const_gateBelow), CX
enough:
	CMPQ R11, CX // before anything is stored
	JCS  early
	MOVQ (TLS), CX
	MOVQ CX, hit_g(R11)
	MOVQ g_m(CX), CX
	MOVQ CX, hit_m(R11)
	MOVQ m_g0(CX), CX
	MOVQ CX, hit_g0(R11)

	MOVQ BX, R_BX(R11)
	MOVQ SI, R_SI(R11)
	MOVQ DI, R_DI(R11)
	MOVQ BP, R_BP(R11)
	MOVQ R8, R_R8(R11)
	MOVQ R9, R_R9(R11)
	MOVQ R10, R_R10(R11)
	MOVQ R14, R_R14(R11)
	MOVQ R15, R_R15(R11)
	LEAQ (SP)(DX*1), CX
	MOVQ CX, R_SP(R11)
	SAVE_SLOTS(SP, R11, BX)
	MOVBLZX F_FLAGS(SP), BX
	ANDL $ARITH, BX
	MOVBLZX F_OF(SP), CX
	ANDL $1, CX
	SHLL $OFBIT, CX
	ORL  CX, BX
	ORL  $FIXED, BX
	MOVQ BX, R_FLAGS(R11)
	MOVQ desc_ip(R12), BX
	MOVQ BX, R_IP(R11)
	MOVQ AX, hit_instance(R11)
	LEAQ desc_point(R12), BX // Regs.Bind: Go code's store would come with a write barrier
	MOVQ BX, R_POINT(R11)
	MOVQ R12, hit_desc(R11)
	MOVQ R13, hit_resume(R11)
	MOVQ SP, hit_frame(R11)
	SAVE_X(R11)
	MOVL $0, hit_direction(R11)

	// May a handler run here?
	MOVQ hit_m(R11), R8
	MOVQ hit_g(R11), R9
	MOVL m_procid(R8), R10
	MOVQ ·busyTable(SB), BX
	LEAQ (BX)(R10*8), R10
	CMPL desc_kind(R12), $const_kindHandler
	JNE  panicked
	MOVQ ·gateP(SB), BX
	MOVQ (R8)(BX*1), BX
	TESTQ BX, BX
	JEQ  noGoroutine
	ADDQ ·gateBarrier(SB), BX
	CMPQ (BX), $0 // the buffer of write barriers is being emptied: none may happen
	JEQ  noGoroutine
	CMPQ (R10), $0
	JNE  busy
	MOVQ R11, (R10)
	MOVQ R10, hit_busy(R11)
	MOVQ ·gateLocks(SB), BX
	MOVL (R8)(BX*1), BX
	MOVL BX, hit_locks(R11)
	MOVQ ·gateMallocing(SB), BX
	MOVL (R8)(BX*1), BX
	MOVL BX, hit_mallocing(R11)
	MOVL $0, hit_failing(R11)
	XORL DX, DX
	CMPQ R9, hit_g0(R11)
	JEQ  onSystem

	// As runtime.systemstack does, the goroutine tells where it is, for profiles and traces
	// that are taken in the handler: two words at the top of the detour's frame look like
	// the frame of systemstack, called at the point.
	MOVQ g_sched_sp(R9), BX
	MOVQ BX, (hit_sched+0)(R11)
	MOVQ const_gateSchedPC(R9), BX
	MOVQ BX, (hit_sched+8)(R11)
	MOVQ const_gateSchedBP(R9), BX
	MOVQ BX, (hit_sched+16)(R11)
	MOVQ R_SP(R11), DX
	MOVQ -8(DX), BX
	MOVQ BX, hit_word0(R11)
	MOVQ -16(DX), BX
	MOVQ BX, hit_word1(R11)
	MOVQ desc_ip(R12), BX
	MOVQ BX, -8(DX)
	MOVQ R_BP(R11), BX
	MOVQ BX, -16(DX)
	MOVQ BX, const_gateSchedBP(R9)
	MOVQ ·gateSwitch(SB), BX
	MOVQ BX, const_gateSchedPC(R9)
	LEAQ -16(DX), BX
	MOVQ BX, g_sched_sp(R9)
onSystem:
	MOVQ DX, hit_top(R11)

	MOVQ hit_g0(R11), BX
	MOVQ R11, SP
	MOVQ TLS, CX
	MOVQ BX, 0(CX)(TLS*1)
	CMPL desc_wide(R12), $0
	JNE  wide
	SUBQ $32, SP
	MOVQ R11, 0(SP)
	CALL ·dispatch(SB)
	MOVQ 8(SP), AX
	LEAQ 32(SP), R11
	JMP  ·gateBack(SB)
wide: // the whole vector state is kept below the hit; the direction flag may be set, as nowhere in compiled Go
	PUSHFQ
	POPQ AX
	ANDL $DIRECTION, AX
	MOVL AX, hit_direction(R11)
	ORQ  AX, R_FLAGS(R11)
	CLD
	SUBQ $XSAVE, SP
	ANDQ $~63, SP
	XORL AX, AX
	MOVQ AX, 512(SP)
	MOVQ AX, 520(SP)
	MOVQ AX, 528(SP)
	MOVQ AX, 536(SP)
	MOVQ AX, 544(SP)
	MOVQ AX, 552(SP)
	MOVQ AX, 560(SP)
	MOVQ AX, 568(SP)
	MOVL $COMPONENTS, AX
	XORL DX, DX
	BYTE $0x48; BYTE $0x0f; BYTE $0xae; BYTE $0x24; BYTE $0x24 // xsave64 (%rsp)
	MOVQ SP, hit_xsave(R11)
	SUBQ $32, SP
	MOVQ R11, 0(SP)
	CALL ·dispatch(SB)
	MOVQ 8(SP), CX
	MOVQ 0(SP), R11
	JMP  ·gateUnwide(SB)

sleep: // the handler runs on a goroutine of its own, if this one may wait here
	MOVQ (TLS), CX
	TESTQ CX, CX
	JEQ  early
	MOVQ g_m(CX), R11
	TESTQ R11, R11
	JEQ  early
	ADDQ ·gateCurG(SB), R11
	CMPQ CX, (R11)
	JNE  early
	MOVQ g_m(CX), R11
	ADDQ ·gateP(SB), R11
	CMPQ (R11), $0
	JEQ  early
	MOVQ g_m(CX), R11
	ADDQ ·gateLocks(SB), R11
	CMPL (R11), $0
	JNE  early
	MOVQ g_m(CX), R11
	ADDQ ·gateMallocing(SB), R11
	CMPL (R11), $0
	JNE  early
	LEAQ (SP)(DX*1), R11
	CMPQ R11, g_stack_hi(CX)
	JHI  early
	SUBQ $const_sleepNeed, R11
	CMPQ R11, g_stack_lo(CX)
	JLT  early
	MOVQ g_m(CX), R11
	MOVL m_procid(R11), R11
	SHLQ $3, R11
	ADDQ ·busyTable(SB), R11
	CMPQ (R11), $0
	JNE  awake
	// The frame to come begins at the point's stack pointer, with the point as its return
	// address. What the detour has there and in the word below is kept in DX and R11; CX is
	// the detour's frame.
	MOVQ SP, CX
	LEAQ (SP)(DX*1), SP
	MOVQ -8(SP), DX
	MOVQ desc_ip(R12), R11
	MOVQ R11, -8(SP)
	MOVQ -16(SP), R11
	SUBQ $8, SP
	JMP  runtime·debugCallV2<>(SB)
awake:
	LOCK
	INCQ desc_busy(R12)
	MOVL desc_missed(R12), AX
	JMP  R13

early: // nothing was changed yet
	CMPL desc_kind(R12), $const_kindPanic
	JEQ  quiet
	CMPL desc_kind(R12), $const_kindFatal
	JEQ  quiet
	LOCK
	INCQ desc_system(R12)
	MOVL desc_missed(R12), AX
	JMP  R13
quiet:
	XORL AX, AX
	JMP  R13

noGoroutine:
	LOCK
	INCQ desc_system(R12)
	MOVL desc_missed(R12), AX
	JMP  ·gateRestore(SB)
busy:
	LOCK
	INCQ desc_busy(R12)
	MOVL desc_missed(R12), AX
	JMP  ·gateRestore(SB)

panicked: // the runtime's gopanic begins: is it a handler's panic? or it ends the program
	XORL AX, AX
	CMPQ R9, hit_g0(R11)
	JNE  other
	MOVQ (R10), R10
	ANDQ $~const_seenMask, R10
	JEQ  other
	CMPL desc_kind(R12), $const_kindFatal
	JEQ  fatal
	CMPL hit_failing(R10), $0
	JNE  other
	MOVQ ·gateLocks(SB), BX
	MOVL (R8)(BX*1), BX
	CMPL BX, hit_locks(R10)
	JNE  other
	MOVQ ·gateMallocing(SB), BX
	MOVL (R8)(BX*1), BX
	CMPL BX, hit_mallocing(R10)
	JNE  other
	MOVL $const_trapPanic, hit_trap(R10)
	MOVQ R_AX(R11), BX
	MOVQ BX, hit_panicType(R10)
	MOVQ R_BX(R11), BX
	MOVQ BX, hit_panicData(R10)
	MOVQ R10, SP
	JMP  ·gateFailed(SB)
other:
	JMP  ·gateRestore(SB)
fatal: // hit_desc(R10) is the handler that did it
	MOVQ R11, R12
	MOVQ hit_desc(R10), R13
	LEAQ ·fatalHead(SB), R8
	CALL ·say<>(SB)
	LEAQ desc_name(R13), R8
	CALL ·say<>(SB)
	LEAQ ·fatalTail(SB), R8
	CALL ·say<>(SB)
	MOVQ R12, R11
	XORL AX, AX
	JMP  other

// say writes the string at R8 to the standard error.
TEXT ·say<>(SB), NOSPLIT|NOFRAME, $0
	MOVL $2, DI
	MOVQ 0(R8), SI
	MOVQ 8(R8), DX
	MOVL $SYS_write, AX
	SYSCALL
	RET

// gateUnwide loads the vector state of the hit in R11. CX is the action.
TEXT ·gateUnwide(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	MOVQ hit_xsave(R11), BX
	MOVL $COMPONENTS, AX
	XORL DX, DX
	BYTE $0x48; BYTE $0x0f; BYTE $0xae; BYTE $0x2b // xrstor64 (%rbx)
	MOVQ CX, AX
	JMP  ·gateBack(SB)

// gateBack ends the hit in R11. AX is the action.
TEXT ·gateBack(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	MOVQ hit_g(R11), CX
	MOVQ TLS, DX
	MOVQ CX, 0(DX)(TLS*1)
	MOVQ hit_top(R11), DX
	TESTQ DX, DX
	JEQ  free
	MOVQ hit_word0(R11), BX
	MOVQ BX, -8(DX)
	MOVQ hit_word1(R11), BX
	MOVQ BX, -16(DX)
	MOVQ (hit_sched+0)(R11), BX
	MOVQ BX, g_sched_sp(CX)
	MOVQ (hit_sched+8)(R11), BX
	MOVQ BX, const_gateSchedPC(CX)
	MOVQ (hit_sched+16)(R11), BX
	MOVQ BX, const_gateSchedBP(CX)
free:
	MOVQ hit_busy(R11), CX
	MOVQ $0, (CX)
	JMP  ·gateRestore(SB)

// gateRestore loads the registers of the hit in R11 and leaves the gate. AX is the action.
TEXT ·gateRestore(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	STMXCSR hit_faultAddr(R11) // loading it costs more than a look whether a handler has changed it
	MOVL hit_faultAddr(R11), BX
	CMPL BX, hit_mxcsr(R11)
	JEQ  same
	LDMXCSR hit_mxcsr(R11)
same:
	TESTL $DIRECTION, hit_direction(R11)
	JEQ  forward
	STD
forward:
	MOVUPS (R_X+0)(R11), X0
	MOVUPS (R_X+16)(R11), X1
	MOVUPS (R_X+32)(R11), X2
	MOVUPS (R_X+48)(R11), X3
	MOVUPS (R_X+64)(R11), X4
	MOVUPS (R_X+80)(R11), X5
	MOVUPS (R_X+96)(R11), X6
	MOVUPS (R_X+112)(R11), X7
	MOVUPS (R_X+128)(R11), X8
	MOVUPS (R_X+144)(R11), X9
	MOVUPS (R_X+160)(R11), X10
	MOVUPS (R_X+176)(R11), X11
	MOVUPS (R_X+192)(R11), X12
	MOVUPS (R_X+208)(R11), X13
	MOVUPS (R_X+224)(R11), X14
	MOVUPS (R_X+240)(R11), X15
	MOVQ R_SI(R11), SI
	MOVQ R_DI(R11), DI
	BYTE $0x49; BYTE $0x8b; BYTE $0x6b; BYTE $R_BP // MOVQ R_BP(R11), BP: vet would want it saved
	MOVQ R_R8(R11), R8
	MOVQ R_R9(R11), R9
	MOVQ R_R10(R11), R10
	MOVQ R_R14(R11), R14
	MOVQ R_R15(R11), R15
	MOVQ AX, hit_action(R11)
	CMPQ AX, $const_actionLeave
	JEQ  leave
	MOVQ hit_frame(R11), CX
	MOVQ R_AX(R11), BX
	MOVQ BX, F_AX(CX)
	MOVQ R_CX(R11), BX
	MOVQ BX, F_CX(CX)
	MOVQ R_DX(R11), BX
	MOVQ BX, F_DX(CX)
	MOVQ R_R11(R11), BX
	MOVQ BX, F_R11(CX)
	MOVQ R_R12(R11), BX
	MOVQ BX, F_R12(CX)
	MOVQ R_R13(R11), BX
	MOVQ BX, F_R13(CX)
	MOVQ R_FLAGS(R11), BX
	MOVL BX, AX
	SHRL $OFBIT, BX
	ANDL $1, BX
	SHLL $8, AX
	ANDL $0xff00, AX
	ORL  AX, BX
	MOVQ BX, F_OF(CX) // one store: it is loaded as a word
	MOVQ hit_action(R11), AX
	MOVQ R_BX(R11), BX
	MOVQ hit_resume(R11), R13
	MOVQ CX, SP
	JMP  R13

leave: // all registers are loaded, and the thread goes on at IP
	MOVQ R_SP(R11), CX
	MOVQ R_IP(R11), BX
	MOVQ BX, -8(CX)
	SUBQ $8, CX
	MOVQ CX, hit_frame(R11)
	MOVQ R_FLAGS(R11), BX
	MOVQ BX, AX
	SHRQ $OFBIT, BX
	ANDL $1, BX
	SHLL $8, AX
	ORL  BX, AX
	ADDB $0x7f, AX
	SAHF
	MOVQ R_AX(R11), AX
	MOVQ R_BX(R11), BX
	MOVQ R_CX(R11), CX
	MOVQ R_DX(R11), DX
	MOVQ R_R12(R11), R12
	MOVQ R_R13(R11), R13
	MOVQ hit_frame(R11), SP
	MOVQ R_R11(R11), R11
	RET

// gateFailed goes on when a handler was abandoned. SP is its hit.
TEXT ·gateFailed(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	MOVQ SP, R11
	MOVL $1, hit_failing(R11)
	MOVQ hit_desc(R11), R12
	CMPL desc_wide(R12), $0
	JEQ  narrow
	MOVQ hit_xsave(R11), SP
narrow:
	CLD
	SUBQ $32, SP
	MOVQ R11, 0(SP)
	CALL ·dispatchFailed(SB)
	MOVQ 0(SP), R11
	MOVQ 8(SP), CX
	MOVQ hit_desc(R11), R12
	CMPL desc_wide(R12), $0
	JNE  wide
	MOVQ CX, AX
	JMP  ·gateBack(SB)
wide:
	JMP  ·gateUnwide(SB)

// func gatePC() uintptr
TEXT ·gatePC(SB), NOSPLIT, $0-8
	LEAQ ·gate(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// sigfault stands, behind the generated handler, before the runtime's for the signals of a
// fault. One in a handler of a probe abandons the handler: its thread goes on in gateFailed.
TEXT ·sigfault(SB), NOSPLIT|NOFRAME|TOPFRAME, $0
	CMPL 8(SI), $0 // si_code: somebody has sent it, the handler has not faulted
	JLE  next
	MOVQ (TLS), R8
	TESTQ R8, R8
	JEQ  next
	MOVQ g_m(R8), R9
	TESTQ R9, R9
	JEQ  next
	CMPQ R8, m_g0(R9)
	JNE  next
	MOVL m_procid(R9), R10
	MOVQ ·busyTable(SB), R11
	MOVQ (R11)(R10*8), R11
	ANDQ $~const_seenMask, R11
	JEQ  next
	CMPL hit_failing(R11), $0
	JNE  next
	MOVQ ·gateLocks(SB), R10
	MOVL (R9)(R10*1), R10
	CMPL R10, hit_locks(R11)
	JNE  next
	MOVQ ·gateMallocing(SB), R10
	MOVL (R9)(R10*1), R10
	CMPL R10, hit_mallocing(R11)
	JNE  next
	MOVQ 200(DX), AX // REG_TRAPNO
	MOVL AX, hit_trap(R11)
	MOVQ 168(DX), AX // REG_RIP
	MOVQ AX, hit_faultPC(R11)
	MOVQ 216(DX), AX // REG_CR2
	MOVQ AX, hit_faultAddr(R11)
	LEAQ ·gateFailed(SB), AX
	MOVQ AX, 168(DX)
	MOVQ R11, 160(DX) // REG_RSP
	RET
next:
	LEAQ ·afterFault(SB), R8
	MOVLQSX DI, R9
	MOVQ (R8)(R9*8), AX
	JMP  AX

// func sigfaultPC() uintptr
TEXT ·sigfaultPC(SB), NOSPLIT, $0-8
	LEAQ ·sigfault(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// The frame that a goroutine waits in while its probe's sleepable handler runs. The assembler
// marks functions of this name, wherever they stand, as what the runtime's debugger calls
// begin with (runtime.debugCallV2), and the garbage collector takes any word of such a frame
// and of the one above it for a pointer. It is entered by a jump from the gate with the
// registers as said there, and left by one.
#define SLEEP const_sleepFrame
#define H const_sleepHit
TEXT runtime·debugCallV2<>(SB), NOSPLIT, $SLEEP-0
	MOVQ BX, (H+R_BX)(SP)
	MOVQ SI, (H+R_SI)(SP)
	MOVQ DI, (H+R_DI)(SP)
	MOVQ R8, (H+R_R8)(SP)
	MOVQ R9, (H+R_R9)(SP)
	MOVQ R10, (H+R_R10)(SP)
	MOVQ R14, (H+R_R14)(SP)
	MOVQ R15, (H+R_R15)(SP)
	LEAQ H(SP), BX
	MOVQ DX, hit_word0(BX)
	MOVQ R11, hit_word1(BX)
	MOVQ CX, hit_frame(BX)
	MOVQ AX, hit_instance(BX)
	LEAQ desc_point(R12), AX
	MOVQ AX, R_POINT(BX) // as in the gate
	MOVQ R12, hit_desc(BX)
	MOVQ R13, hit_resume(BX)
	LEAQ (SLEEP+16)(SP), AX
	MOVQ AX, R_SP(BX)
	MOVQ SLEEP(SP), AX
	MOVQ AX, R_BP(BX)
	SAVE_SLOTS(CX, BX, AX)
	MOVBLZX F_FLAGS(CX), AX
	ANDL $ARITH, AX
	MOVBLZX F_OF(CX), DX
	ANDL $1, DX
	SHLL $OFBIT, DX
	ORL  DX, AX
	ORL  $FIXED, AX
	MOVQ AX, R_FLAGS(BX)
	MOVQ desc_ip(R12), AX
	MOVQ AX, R_IP(BX)
	SAVE_X(BX)
	MOVL $0, hit_direction(BX)
	XORPS X15, X15
	MOVQ (TLS), R14
	MOVQ R14, hit_g(BX)
	MOVQ g_m(R14), AX
	MOVL m_procid(AX), AX
	SHLQ $3, AX
	ADDQ ·busyTable(SB), AX
	MOVQ AX, hit_busy(BX)
	LEAQ const_seenSleep(BX), CX
	MOVQ CX, (AX)
	MOVQ ·sleepDispatch(SB), AX
	MOVQ ·debugCallWrap(SB), CX
	CALL CX // by ABIInternal: AX is the function that the new goroutine calls
	LEAQ H(SP), R11
	MOVQ hit_action(R11), AX
	MOVQ hit_busy(R11), CX
	MOVQ $0, (CX)
	MOVQ R_SP(R11), DX
	MOVQ hit_word0(R11), CX
	MOVQ CX, -8(DX)
	MOVQ hit_word1(R11), CX
	MOVQ CX, -16(DX)
	JMP  ·gateRestore(SB)

// func gateEndPC() uintptr
//
// It stands behind all code of the gate.
TEXT ·gateEndPC(SB), NOSPLIT, $0-8
	LEAQ ·gateEndPC(SB), AX
	MOVQ AX, ret+0(FP)
	RET
