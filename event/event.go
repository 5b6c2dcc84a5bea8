package event

// Limits of a definition (Linux 6.18).
const (
	MaxArgs      = 128  // arguments of a probe
	MaxName      = 63   // bytes of a group's or an event's name
	MaxArgName   = 32   // bytes of an argument's name
	MaxArgText   = 63   // bytes of an argument's expression with its type, without the types of assertions
	MaxArray     = 64   // elements of an array
	MaxMaxActive = 4096 // instances of a return probe
	MaxStack     = 127  // callers in a record (kernel.perf_event_max_stack)
	MaxStackNum  = 2048 // N of $stackN and $argN: words of the kernel's 16 KiB stack
	maxLines     = 1 << 20
)

// Groups of events that name none.
const (
	DefaultGroup  = "kprobes"
	FunctionGroup = "fprobes" // of Def.Function
)

// Kind says what a definition does.
type Kind uint8

// Kinds of definitions.
const (
	Probe  Kind = iota // p: records when a place is reached
	Return             // r, or p with %return: records when a function returns
	Delete             // -: takes out events
	Watch              // w: records when memory is accessed
)

// Def is one definition.
type Def struct {
	Text      string // the words, joined by single spaces; positions count from its start
	Line      int    // line in the file, from 1; 0 if it was not read from one
	Kind      Kind
	MaxActive int // instances of a return probe; 0: the default
	// Function: it was written as f (Documentation/trace/fprobetrace.rst, Linux 6.18). It stands at a function's entry or return, and
	// with a pattern at those of all functions that match, which are one event. Its arguments are no registers.
	Function bool
	// Uprobe: it is one of uprobe_events (Documentation/trace/uprobetracer.rst, Linux 6.18), whose place is an offset in a file. Name is never "".
	Uprobe  bool
	Counter uint64 // of Uprobe: the offset in the file of a counter of 16 bits that is above 0 while the event is armed; 0: there is none
	Group   string // DefaultGroup, FunctionGroup, UprobeGroup or WatchGroup if the definition names none; of a deletion "" then
	Name    string // "" if the definition names none: see Namer
	Place   Place
	Watched Watched // of a watchpoint
	Args    []Arg
	Filter  string   // what a hit must pass to be recorded, in the language of ParseFilter; "": nothing. No part of Text.
	Stack   int      // callers that a record is to hold, at most MaxStack; 0: none. No part of Text.
	Hist    *Hist    // what hits are counted in, in place of records, where the code at the hit can do that; nil: nothing. No part of Text.
	Copy    uint64   // tells events apart that are else the same, as those of several trace instances. No part of Text.
	User    uint32   // who has defined it, where several share a target: names are each user's own. No part of Text.
	kernel  bool     // see Parser
	match   []string // of a deletion: what must match the definition, beyond its name
}

// Arg is one argument of a definition.
type Arg struct {
	Name string // as given, else the expression if it is an identifier, else argN
	Text string // expression and type, as written
	Expr *Expr
	Type TypeSpec
	Pos  int
}

// PlaceKind says how a place is named.
type PlaceKind uint8

// Kinds of places.
const (
	PlaceSymbol PlaceKind = iota // [MOD:]SYM[+OFFSET]
	PlaceAddr                    // [MOD:]ADDR
	PlaceFile                    // PATH:OFFSET, an offset in a file
	PlaceLine                    // FILE:LINE, a line of source
)

// Place is where a probe stands.
//
// A word is taken so, in this order; what stands in double quotes separates nothing:
//
//   - a trailing %return makes a return probe of it;
//   - all of it a number: an address;
//   - the first single `:` (`::` never splits) parts it. FILE.go:LINE, with the suffix of
//     a source file before it and a decimal number behind, is a line; PATH:NUMBER with a
//     `/` before it an offset in a file; MOD:NUMBER an address of an object; all else
//     MOD:SYM;
//   - a symbol's last `+` or `-` begins its offset if a digit follows; else it belongs to
//     the name (operator+, github.com/x/go-y.F). A `/` in a symbol belongs to the path of
//     a Go package.
//
// So names of Go and C++ go without quotes unless they hold spaces, a `#` or a number
// behind a `+` or `-`.
type Place struct {
	Kind   PlaceKind
	Module string // the object that Symbol or Addr belongs to; "": any
	Path   string // PlaceFile, PlaceLine
	Symbol string // PlaceSymbol: a name, or a pattern
	Glob   bool   // Symbol is a pattern: one event for each function that matches, under generated names; with Def.Function one event
	Offset uint64 // PlaceSymbol: bytes from the symbol, at most 1<<32-1; of a watchpoint they may be negative
	Addr   uint64 // PlaceAddr: the address; PlaceFile: the offset in the file
	Line   int    // PlaceLine: from 1
	Return bool   // it was written with %return
	Pos    int
}

// ExprKind says what an expression is.
type ExprKind uint8

// Kinds of expressions.
const (
	ExprReg      ExprKind = iota // %Name
	ExprAddr                     // @ADDR: what is in memory at Num
	ExprSymbol                   // @SYM[+-OFFSET]: what is in memory at Name plus Off
	ExprStack                    // $stack: the stack pointer
	ExprStackN                   // $stackN: word Num of the stack
	ExprArg                      // $argN: argument Num of the function, from 1
	ExprRetVal                   // $retval; with fields behind it Name is all of it
	ExprComm                     // $comm: the thread's name
	ExprDeref                    // +OFFSET(Sub), +uOFFSET(Sub): what is in memory at Sub plus Off
	ExprImm                      // \NUMBER
	ExprString                   // \"Name"
	ExprName                     // a variable of the program, with fields behind -> and ., elements in brackets, and type assertions .(TYPE)
	ExprAllArgs                  // $arg*: all parameters
	ExprAllVars                  // $vars: all variables that can be named at the place
	ExprDuration                 // $duration: nanoseconds from the call of the function to its return
	ExprWatched                  // $addr: the address that is watched
	ExprFile                     // @+OFFSET: what is in memory where the byte at Off of the file is mapped that is probed; with Def.Uprobe
	// No text has these: kprobe spans adds them to definitions.
	ExprDepth   // where on its stack a call is: the same at its entry and its return
	ExprEntered // of a return: the clock of the records, when the function was entered
	ExprFailed  // of a return: what is not 0 if the last result is an error of Go; 0 if it is none, or that is not known
)

// Expr says where a value comes from.
type Expr struct {
	Kind ExprKind
	Name string // register, symbol, string, or variable with its fields
	Num  uint64 // address, number of a word or argument (from 0, from 1), immediate
	Off  int64  // bytes added to a symbol or before a dereference
	User bool   // ExprDeref with u: memory of the program (all of it here is)
	Sub  *Expr  // ExprDeref
	Cast *Cast  // ExprName: the fields belong to what its address points to, and Name has no variable; nil: they belong to a variable
	Pos  int
}

// Cast is a typecast, in the words of Linux 7: (STRUCT)ADDRESS->MEMBER, or (STRUCT,FIELD)ADDRESS->MEMBER, where the address is that of the
// struct's field.
type Cast struct {
	Struct, Field string
	Address       *Expr
	Pos           int // of Struct
}

// TypeKind says how a value is taken and shown.
type TypeKind uint8

// Kinds of types.
const (
	Unsigned TypeKind = iota // u8 to u64: decimal
	Signed                   // s8 to s64: decimal
	Hex                      // x8 to x64
	Char                     // a character
	Bits                     // b<w>@<o>/<c>: w bits from bit o of a container of c bits, decimal
	Symbol                   // an address, shown as SYM+0xOFF/0xSIZE
	SymStr                   // the same as a string
	String                   // a string of bytes up to a NUL
	UString                  // the same, named so for memory of a program
	GoString                 // a pointer and a length
	// No text has it: kprobe spans gives it to an argument without a type. Of a context.Context of Go it is the span that the context
	// carries, of any other value what the value's type says.
	TraceContext
)

// TypeSpec is the type of an argument.
type TypeSpec struct {
	Kind  TypeKind
	Size  int    // bytes of one value: 1, 2, 4 or 8; 8 of an address; of a string 0
	Width int    // Bits: how many
	Shift int    // Bits: the first, 0 is the lowest of the container
	Count int    // elements of an array, 1 to 64; 0 if it is none
	Text  string // as written, "" if left out
	Pos   int    // of the type, or of the expression if left out
}

// IsString says whether a value of the type is a string that is copied into the record.
func (t TypeSpec) IsString() bool {
	return t.Kind == String || t.Kind == UString || t.Kind == GoString
}

// Access is what a watchpoint waits for.
type Access uint8

// Accesses.
const (
	ReadWrite Access = iota // rw, or nothing
	Read                    // r: some kernels know it, no program's watchpoint does
	Write                   // w
	Execute                 // x
)

var accesses = [...]string{"rw", "r", "w", "x"}

// String is the access as a definition has it.
func (a Access) String() string {
	if int(a) >= len(accesses) {
		return "?"
	}
	return accesses[a]
}

// Watched is what a watchpoint watches, beside its Place.
type Watched struct {
	Access Access
	Len    int // bytes: 1, 2, 4 or 8; 0: none is given
}
