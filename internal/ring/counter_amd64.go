package ring

// Now is the CPU's time stamp counter, read after everything before it in program order
// has been done (SDM vol. 2, RDTSC: LFENCE before it).
func Now() uint64
