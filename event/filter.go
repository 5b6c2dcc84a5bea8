package event

import (
	"fmt"
	"strings"
	"syscall"
)

// Filter is a condition on what an event records, in the language of the kernel's filter files
// (Documentation/trace/events.rst, section 5; Linux 6.18).
type Filter struct {
	Text string
	Root *FilterTerm
}

// FilterTerm is a test, or several of which all (And) or one (Or) must hold.
type FilterTerm struct {
	Kind  TermKind
	Not   bool
	Terms []*FilterTerm // TermAnd, TermOr
	Test  *FilterTest   // TermTest
}

// TermKind says what a term is.
type TermKind uint8

// Kinds of terms.
const (
	TermTest TermKind = iota
	TermAnd
	TermOr
)

// FilterTest compares one field.
type FilterTest struct {
	Field FilterField
	Op    FilterOp
	Kind  TestKind
	Not   bool   // a glob that begins with `!`
	Num   uint64 // TestNumber: of the field's size; TestRange: the first address
	End   uint64 // TestRange: the first address behind it
	Str   string // TestString: the string; TestGlob: the pattern
	CPUs  []bool // TestCPUs: by the CPU's number
}

// TestKind says what a test compares with.
type TestKind uint8

// Kinds of tests.
const (
	TestNumber TestKind = iota
	TestString
	TestGlob
	TestRange // .function: the addresses of a function
	TestCPUs  // CPUS{list}
)

// FilterOp is an operator.
type FilterOp uint8

// Operators.
const (
	FilterGlob FilterOp = iota // ~
	FilterNE
	FilterEQ
	FilterLE
	FilterLT
	FilterGE
	FilterGT
	FilterAnd // &
)

// filterOps are the operators as they are written: one that begins with another comes first.
var filterOps = [...]string{"~", "!=", "==", "<=", "<", ">=", ">", "&"}

// String gives the operator as it is written.
func (o FilterOp) String() string { return filterOps[o] }

// FilterField is a field that a filter may name.
type FilterField struct {
	Kind   FieldKind
	Arg    int  // FieldArg: its index
	Size   int  // of a number, bytes: 1, 2, 4 or 8; 0 of an array, which is compared with nothing
	Signed bool // of a number
	Text   bool // its values are strings
}

// FieldKind says what a field has.
type FieldKind uint8

// Kinds of fields.
const (
	FieldArg  FieldKind = iota // an argument of the event
	FieldIP                    // __probe_ip, __probe_func: the probed address
	FieldRet                   // __probe_ret_ip: where the function returns to
	FieldPID                   // common_pid: the thread
	FieldCPU                   // CPU, cpu, common_cpu
	FieldComm                  // COMM, comm: the thread's name
	FieldZero                  // common_flags, common_preempt_count, common_type: what has no meaning for a program, 0
)

// FilterScope says what the names in a filter stand for.
type FilterScope interface {
	// Field finds a field.
	Field(name string) (FilterField, bool)
	// Function finds the function that has a name, or that an address lies in where name is "".
	Function(name string, addr uint64) (start, end uint64, ok bool)
}

// FilterCode is one entry of the kernel's table of errors in a filter (kernel/trace/trace_events_filter.c, Linux 6.18).
type FilterCode uint8

// The errors.
const (
	FilterErrno FilterCode = iota
	FilterInvalidOp
	FilterTooManyOpen
	FilterTooManyClose
	FilterMissingQuote
	FilterMissingBraceOpen
	FilterMissingBraceClose
	FilterOperandTooLong
	FilterExpectString
	FilterExpectDigit
	FilterIllegalFieldOp
	FilterFieldNotFound
	FilterIllegalIntval
	FilterTooManyPreds
	FilterInvalidCPUList
	FilterInvalidValue
	FilterNoFunction
	FilterNoFilter
	FilterBadGroup // the filter of a group does not fit one of its events
)

var filterTexts = [...]string{
	FilterErrno:             "Error",
	FilterInvalidOp:         "Invalid operator",
	FilterTooManyOpen:       "Too many '('",
	FilterTooManyClose:      "Too few '('",
	FilterMissingQuote:      "Missing matching quote",
	FilterMissingBraceOpen:  "Missing '{'",
	FilterMissingBraceClose: "Missing '}'",
	FilterOperandTooLong:    "Operand too long",
	FilterExpectString:      "Expecting string field",
	FilterExpectDigit:       "Expecting numeric field",
	FilterIllegalFieldOp:    "Illegal operation for field type",
	FilterFieldNotFound:     "Field not found",
	FilterIllegalIntval:     "Illegal integer value",
	FilterTooManyPreds:      "Too many terms in predicate expression",
	FilterInvalidCPUList:    "Invalid cpulist",
	FilterInvalidValue:      "Invalid value (did you forget quotes)?",
	FilterNoFunction:        "Function not found",
	FilterNoFilter:          "No filter found",
	FilterBadGroup:          "Couldn't find or set field in one of a subsystem's events",
}

// Text is the kernel's text of the error.
func (c FilterCode) Text() string { return filterTexts[c] }

// FilterError is a filter that was refused. It answers errors.Is with EINVAL.
type FilterError struct {
	Code   FilterCode
	Filter string
	Pos    int    // where the kernel's parser stood, bytes from the start: behind what is wrong, for most errors
	Why    string // what to do instead, beyond the code's own text; may be empty

	noField bool // FilterErrno: where the name of a field is wanted
}

// Error gives the error in one line.
func (e *FilterError) Error() string {
	s := fmt.Sprintf("filter %q, column %d: %s", e.Filter, e.column(), e.Code.Text())
	if e.Why != "" {
		s += ": " + e.Why
	}
	return s
}

// column is where the caret stands, from 1.
func (e *FilterError) column() int {
	n := min(e.Pos, len(e.Filter))
	return max(n+1, 1)
}

// Detail gives the error as the kernel's filter file does: the filter, a caret, and the text.
func (e *FilterError) Detail() string {
	if e.Code == FilterErrno {
		return e.Filter + "\nError: (0)\n"
	}
	return fmt.Sprintf("%s\n%s^\nparse_error: %s\n", e.Filter, strings.Repeat(" ", e.column()-1), e.Code.Text())
}

// LogEntry gives the error as the kernel's error_log does, without the time.
func (e *FilterError) LogEntry() string {
	pos := max(e.Pos, 0)
	if e.Code == FilterErrno {
		pos = 0
	}
	return fmt.Sprintf("event filter parse error: error: %s\n  Command: %s\n%*s^\n", e.Code.Text(), e.Filter, len("  Command: ")+pos, "")
}

// Errno is the error number that a write of the filter to the kernel's file gives. Some are its parser's own numbers, negated (calc_stack,
// parse_pred and predicate_parse, Linux 6.18).
func (e *FilterError) Errno() syscall.Errno {
	switch e.Code {
	case FilterTooManyClose, FilterTooManyPreds:
		return syscall.EPERM
	case FilterTooManyOpen:
		return syscall.ENOENT
	case FilterMissingQuote:
		return syscall.ESRCH
	case FilterErrno:
		if e.noField {
			return syscall.EPERM
		}
	}
	return syscall.EINVAL
}

// Is says whether target is EINVAL.
func (e *FilterError) Is(target error) bool { return target == syscall.EINVAL }
