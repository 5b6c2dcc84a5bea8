package fetch

// Reg is a register by a number that means the same on every instruction set: 0 to 31
// are the general registers by the number that instructions encode; the others stand
// above them.
type Reg uint8

// Registers that instructions do not encode by number.
const (
	RegIP    Reg = 32 + iota // address of the probed instruction
	RegFlags                 // flags register
	RegConst                 // a register whose value a program can not change (segment selectors, orig_ax): Base.Imm holds it
)

// BaseKind says where the value of an argument starts.
type BaseKind uint8

// Kinds of bases.
const (
	BaseReg      BaseKind = iota // a register's value at the probe point
	BaseStack                    // word N (8 bytes each) above the stack pointer at the probe point: the value at sp+8*N
	BaseImm                      // a constant: an immediate, or the address of @ADDR and @SYM
	BaseComm                     // the thread's name
	BaseImmStr                   // a string literal: nothing is recorded
	BaseDuration                 // the time since the entry, in nanoseconds: the entry saves its clock
	BaseEntered                  // the clock at the entry, which saves it
	// How many bytes below the high end of its goroutine's stack the stack pointer, which is Reg, is; where there is no goroutine its value,
	// negated.
	BaseDepth
	// Word N of what StoreSpan has of argument Imm: the entry of a return probe saves it, since nothing keeps the context until the return.
	// It reads Reg.
	BaseSpan
)

// Base is where the value of an argument starts.
type Base struct {
	Kind BaseKind
	Reg  Reg    // BaseReg, BaseDepth, BaseSpan
	N    int    // BaseStack, BaseSpan
	Imm  uint64 // BaseImm, BaseSpan
	Str  string // BaseImmStr
}

// Store says in which form the value goes into the record.
type Store uint8

// Forms in a record. Every argument that is recorded has a slot of 8 bytes in the fixed
// part, an array as many as it needs. All words are little-endian.
const (
	StoreNone    Store = iota // nothing is recorded (string literal, comm where the reader knows it)
	StoreValue                // Size bytes (1, 2, 4 or 8: one instruction loads them) zero-extended to 8
	StoreArray                // Count elements of Size bytes from consecutive memory, the slot rounded up to 8 bytes
	StoreString               // slot: bits 0-31 length with its NUL (0: fault), bits 32-63 offset of the bytes from the record's start
	StorePtrs                 // Count slots as StoreString, for the Count char pointers in memory (string[N])
	StoreCounted              // as StoreString, without NUL, for a pointer and a length (gostring); length 0xffffffff: fault
	StoreComm                 // the thread's name as the kernel has it, 16 bytes with NULs behind it; all 0: it could not be asked for
	StoreSpan                 // the span that a context of Go carries, as DecodeSpan reads it
)

// Arg is one argument of a probe, compiled.
//
// The value is found so: v = Base; for each d in Derefs but the last, v = the 8-byte
// word at v+d; for the last d, the address a = v+d is what is read: a value of Size
// bytes (StoreValue), the array (StoreArray), the string itself (StoreString). Without
// Derefs v itself is the value. A load that faults gives 0 and ends the chain; a string
// that faults has length 0.
//
// A counted string (StoreCounted) without Derefs takes its pointer from Base and its
// length from Len; with Derefs the pointer is the word at a and the length the word
// at a+8. The two words of a context (StoreSpan) are found likewise.
//
// All Checks are made first, in their order. Where one does not hold the value is that of a load that faults.
type Arg struct {
	Name   string
	Text   string // the argument as written
	Type   Type
	Base   Base
	Len    Base   // StoreCounted and StoreSpan without Derefs
	Saved  []Base // what the entry saves, if it is not Base and Len
	Derefs []int64
	Checks []Check
	// User tells which loads read a user's memory whatever the address (+u, ustring), where
	// the program runs in a kernel: bit i is the load of Derefs[i], and bit len(Derefs) is
	// that of the strings of StorePtrs. Elsewhere it says nothing.
	User  uint32
	Store Store
	Size  int // bytes of one element as stored: 1, 2, 4, 8
	Count int // elements of an array; 0 if it is none
	// AtEntry: the value is the one that the function was entered with
	// (return probes): it is saved by the entry half of the probe.
	AtEntry bool
	// Result: the value comes from $retval.
	Result bool
	// Failed: the value says whether the call has failed (event.ExprFailed).
	Failed bool
	Off    int // offset of the slot from the start of the argument area, in bytes
	// Chain generates the code of StoreSpan. The package of the instruction set makes it of a Chain; who takes no contexts is linked without
	// both.
	Chain any
}

// Check is a type assertion of Go: the word that Base and Derefs lead to, as those of an argument of 8 bytes do, must be Want, the run-time
// address of the type's descriptor. The word 0 leads nowhere: nothing is read through a nil interface.
type Check struct {
	Base   Base
	Derefs []int64
	Want   uint64
}

// Program is what a probe records at its point, compiled from a definition.
type Program struct {
	Args    []Arg
	Fixed   int  // bytes of the argument area's fixed part, a multiple of 8
	Dynamic bool // it holds strings: records vary in size
	// Stack is the most return addresses that a record holds of the calls in progress; 0: none. They lie StackOff bytes into
	// the argument area: a word of which the low half is how many there are, and the high half a StackEnd, then they.
	Stack    int
	StackOff int
	Kernel   bool // they are a kernel's, none of which is marked as Interrupted
	Return   bool // it runs when a function returns; the record starts with the return address
	LeftOut  []LeftOut
}

// LeftOut is a parameter that $arg* does not record.
type LeftOut struct{ Name, Why string }

// MaxString is the most bytes a string takes in a record, its NUL included. The
// kernel's limit is MAX_STRING_SIZE, which is PATH_MAX (kernel/trace/trace_probe.h).
const MaxString = 4096
