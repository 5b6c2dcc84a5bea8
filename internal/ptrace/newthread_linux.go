package ptrace

// NewThread is a thread that the target is to have beside its own. All are addresses in the target.
type NewThread struct {
	Start uint64 // its first instruction
	Stack uint64 // the end of its stack
	Base  uint64 // its FS base, which no other thread has
	Alive uint64 // 32 bits, not 0: the kernel makes them 0, and wakes who waits there (futex(2)), when the thread has ended
}
