package watchpoint

// Registers in samples of perf events (arch/x86/include/uapi/asm/perf_regs.h), by the number that instructions encode.
var perfRegs = [16]uint{0, 2, 3, 1, 7, 6, 4, 5, 16, 17, 18, 19, 20, 21, 22, 23}

const perfIP, perfFlags = 8, 9
