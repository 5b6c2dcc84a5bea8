package arch

// A thread of our own in a target runs the start or the end of a module, and asks the tracer for probes. Both talk by words in memory that they
// share; each is 64 bits, but for the first two. The target's threads can write to all of it.
const (
	ThreadState = 0 // 32 bits, a futex: one of the states below
	ThreadAlive = 4 // 32 bits, a futex: the kernel makes it 0, and wakes who waits, when the thread is gone (CLONE_CHILD_CLEARTID)
	// ThreadUnserved is in its place in a kernel: 32 bits, not 0 once nobody answers the task any more, so that it waits in vain only once.
	ThreadUnserved = 4

	ThreadFunc   = 8  // the function that it calls; 0: it ends at once
	ThreadAsked  = 16 // three words that it asks with
	ThreadAnswer = 40
	ThreadResult = 48 // what the function has returned, sign-extended
	ThreadSize   = 64
)

// The states of the thread.
//
//	Waits ──► Runs ──► Ended      the tracer has it begin; it has returned
//	  │       ▲  │
//	  │       │  ▼
//	  │       │ Asks ──► Answered ──► Runs
//	  ▼       └──┘ it has waited in vain
//	Ended   it has waited in vain
//
// The tracer makes Runs of Waits, and Answered of Asks; all else the thread makes.
const (
	ThreadWaits = iota
	ThreadRuns
	ThreadAsks
	ThreadAnswered
	ThreadEnded
)
