package arch

// Sample has a hit decide whether the trace of its call is kept: one in so many is. Of a call whose trace is not kept nothing is recorded.
type Sample struct {
	_    [0]func() // nobody compares it: the linker leaves out how
	Role SampleRole
	// Table is the address of the counter of decisions and of the table of who is in a call. It has SampleBytes, which are 0 at first.
	Table uint64
	// Every is how many traces one is kept of. 1: calls are all recorded, and what happens to goroutines only if they are in one. A call that there
	// is no room for in the table is counted as unsampled, and recorded too.
	Every uint64
	// Func tells the functions of the table apart: the address of the one that is entered or left.
	Func uint64
	// Always: a SampleEnter of a call that is in no other keeps its trace, and the counter does not count it.
	Always bool
	// Paired: of a SampleLeave, a SampleEnter of its function comes before its RoleEntry. Then calls that are dropped have no instance where
	// nothing else needs one.
	Paired bool
	// Code is native.SampleCode: a program that samples nothing is linked without it.
	Code any
}

// SampleRole is what a hit says of calls.
type SampleRole uint8

// The roles. The arguments of the last three are those of the work's program.
const (
	SampleEnter   SampleRole = iota // a function is entered
	SampleLeave                     // it returns
	SampleEnded                     // the goroutine ends
	SampleCreated                   // a goroutine was created: what begins with the creator's g, and what begins with the new one
	// A goroutine has recovered from a panic: what Left has.
	SampleRecovered
)

// Loads says whether the work loads arguments.
func (r SampleRole) Loads() bool { return r == SampleCreated || r == SampleRecovered }

// SampleSlots is log2 of the slots of a table. A quarter of them can be taken without anybody finding none (internal/arch/amd64/instance.go).
const SampleSlots = 17
