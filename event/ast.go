// Package event is the language of probe definitions: the kernel's kprobe_events
// (Documentation/trace/kprobetrace.rst) with the places of a user-space program.
package event

// Kind is what a command does.
type Kind uint8

// Kinds of commands.
const (
	Probe  Kind = iota // p: a probe at an instruction
	Return             // r, or %return: a probe at a function's return
	Delete             // -:
)

// Def is a parsed command.
type Def struct {
	Text      string // the words, joined by single spaces; columns of errors count in it
	Line      int    // in its file, from 1; 0 if it has none
	Kind      Kind
	MaxActive int    // r only; 0: the default
	Group     string // "" if none was given
	Name      string // "" if none was given
	Place     Place  // of Probe and Return; a Delete may have none
	Args      []Arg
}

// PlaceKind says how a place is written.
type PlaceKind uint8

// Kinds of places.
const (
	PlaceNone   PlaceKind = iota // a Delete without a place
	PlaceSymbol                  // [MOD:]SYM[+OFFS][%return]
	PlaceGlob                    // [MOD:]PATTERN: one event for each function that matches
	PlaceAddr                    // [MOD:]ADDR
	PlaceFile                    // PATH:0xOFFSET, an offset in a mapped file
	PlaceLine                    // FILE.go:LINE
)

// Place is where a probe stands.
type Place struct {
	Kind   PlaceKind
	Module string // MOD; "" if none
	Path   string // PlaceFile, PlaceLine
	Symbol string // PlaceSymbol, PlaceGlob: without quotes
	Offset uint64 // PlaceSymbol: bytes from the symbol
	Addr   uint64 // PlaceAddr: the address; PlaceFile: the file offset; PlaceLine: the line
	Return bool   // %return was written
	Pos    int    // column in Def.Text
	Text   string // as written
}

// Arg is one fetch argument.
type Arg struct {
	Name string // "" if none was given (see G31 for the generated one); unique in the Def
	Text string // as written, without NAME= and :TYPE
	Expr *Expr
	Type TypeSpec
	Pos  int // column of the argument's word in Def.Text
}

// ExprKind is a kind of fetch expression.
type ExprKind uint8

// Kinds of expressions.
const (
	ExprReg    ExprKind = iota // %NAME
	ExprMem                    // @ADDR: memory at a link-time or run-time address
	ExprSym                    // @SYM[+|-OFFS]: memory at a symbol
	ExprStack                  // $stack: the stack pointer
	ExprStackN                 // $stackN: the Nth word of the stack
	ExprArgN                   // $argN, from 1
	ExprRetVal                 // $retval
	ExprComm                   // $comm
	ExprDeref                  // +|-[u]OFFS(Inner)
	ExprImm                    // \NUMBER
	ExprImmStr                 // \"STRING"
	ExprName                   // a parameter's name: needs debug information
)

// Expr is a fetch expression.
type Expr struct {
	Kind  ExprKind
	Name  string // ExprReg, ExprSym, ExprName, ExprImmStr (the string)
	N     int    // ExprStackN, ExprArgN
	Value uint64 // ExprMem: the address; ExprImm: the value (two's complement)
	Off   int64  // ExprSym, ExprDeref
	User  bool   // ExprDeref: the u prefix (no difference in a user program)
	Inner *Expr  // ExprDeref
	Pos   int    // column in Def.Text
}

// TypeKind is the base of a type.
type TypeKind uint8

// Bases of types.
const (
	TypeDefault TypeKind = iota // none was given: x64, or string for $comm and literals
	TypeUnsigned
	TypeSigned
	TypeHex
	TypeChar
	TypeString
	TypeUString
	TypeSymbol
	TypeSymStr
	TypeGoString // ours: a Go string, pointer and length
	TypeBitfield
)

// TypeSpec is the type that follows an argument's colon.
type TypeSpec struct {
	Kind  TypeKind
	Bits  int // TypeUnsigned, TypeSigned, TypeHex: 8 to 64; TypeBitfield: the container's
	Width int // TypeBitfield: bits
	Shift int // TypeBitfield: offset in bits
	Count int // elements of an array; 0: none
	Text  string
	Pos   int // column in Def.Text
}
