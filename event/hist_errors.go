package event

import (
	"fmt"
	"strings"
	"syscall"
)

// HistCode is one of the kernel's errors in a hist trigger (kernel/trace/trace_events_hist.c, Linux 6.18).
type HistCode uint8

// The errors; HistErrno stands for those that the kernel has no text for.
const (
	HistErrno HistCode = iota
	HistDuplicateVar
	HistVarNotUnique
	HistTooManyVars
	HistMalformedAssignment
	HistNamedMismatch
	HistTriggerExists
	HistNoSuchTrigger
	HistSetClockFail
	HistBadFieldModifier
	HistTooManySubexpr
	HistTimestampMismatch
	HistEventFileNotFound
	HistHistNotFound
	HistHistCreateFail
	HistSynthEventNotFound
	HistSynthTypeMismatch
	HistSynthCountMismatch
	HistVarCreateFindFail
	HistOnxNotVar
	HistOnxVarNotFound
	HistOnxVarCreateFail
	HistTooManyParams
	HistParamNotFound
	HistInvalidParam
	HistActionNotFound
	HistTooManySaveActions
	HistActionMismatch
	HistNoClosingParen
	HistSubsysNotFound
	HistInvalidSubsysEvent
	HistInvalidRefKey
	HistVarNotFound
	HistFieldNotFound
	HistEmptyAssignment
	HistInvalidSortModifier
	HistEmptySortField
	HistTooManySortFields
	HistInvalidSortField
	HistInvalidStrOperand
	HistExpectNumber
	HistUnaryMinusSubexpr
	HistDivisionByZero
	HistNeedVal
	HistUnsupported
)

var histTexts = [...]string{
	HistErrno:               "Invalid argument",
	HistDuplicateVar:        "Variable already defined",
	HistVarNotUnique:        "Variable name not unique, need to use fully qualified name (subsys.event.var) for variable",
	HistTooManyVars:         "Too many variables defined",
	HistMalformedAssignment: "Malformed assignment",
	HistNamedMismatch:       "Named hist trigger doesn't match existing named trigger (includes variables)",
	HistTriggerExists:       "Hist trigger already exists",
	HistNoSuchTrigger:       "Can't clear or continue a nonexistent hist trigger",
	HistSetClockFail:        "Couldn't set trace_clock",
	HistBadFieldModifier:    "Invalid field modifier",
	HistTooManySubexpr:      "Too many subexpressions (3 max)",
	HistTimestampMismatch:   "Timestamp units in expression don't match",
	HistEventFileNotFound:   "Event file not found",
	HistHistNotFound:        "Matching event histogram not found",
	HistHistCreateFail:      "Couldn't create histogram for field",
	HistSynthEventNotFound:  "Couldn't find synthetic event",
	HistSynthTypeMismatch:   "Param type doesn't match synthetic event field type",
	HistSynthCountMismatch:  "Param count doesn't match synthetic event field count",
	HistVarCreateFindFail:   "Couldn't create or find variable",
	HistOnxNotVar:           "For onmax(x) or onchange(x), x must be a variable",
	HistOnxVarNotFound:      "Couldn't find onmax or onchange variable",
	HistOnxVarCreateFail:    "Couldn't create onmax or onchange variable",
	HistTooManyParams:       "Too many action params",
	HistParamNotFound:       "Couldn't find param",
	HistInvalidParam:        "Invalid action param",
	HistActionNotFound:      "No action found",
	HistTooManySaveActions:  "Can't have more than one save() action per hist",
	HistActionMismatch:      "Handler doesn't support action",
	HistNoClosingParen:      "No closing paren found",
	HistSubsysNotFound:      "Missing subsystem",
	HistInvalidSubsysEvent:  "Invalid subsystem or event name",
	HistInvalidRefKey:       "Using variable references in keys not supported",
	HistVarNotFound:         "Couldn't find variable",
	HistFieldNotFound:       "Couldn't find field",
	HistEmptyAssignment:     "Empty assignment",
	HistInvalidSortModifier: "Invalid sort modifier",
	HistEmptySortField:      "Empty sort field",
	HistTooManySortFields:   "Too many sort fields (Max = 2)",
	HistInvalidSortField:    "Sort field must be a key or a val",
	HistInvalidStrOperand:   "String type can not be an operand in expression",
	HistExpectNumber:        "Expecting numeric literal",
	HistUnaryMinusSubexpr:   "Unary minus not supported in sub-expressions",
	HistDivisionByZero:      "Division by zero",
	HistNeedVal:             "Non-hitcount value is required for 'nohitcount'",
	HistUnsupported:         "Not supported",
}

// Text is the kernel's text of the error.
func (c HistCode) Text() string { return histTexts[c] }

// Errno is the error number that the kernel gives for the error.
func (c HistCode) Errno() syscall.Errno {
	switch c {
	case HistTriggerExists:
		return syscall.EEXIST
	case HistNoSuchTrigger:
		return syscall.ENOENT
	}
	return syscall.EINVAL
}

// HistError is a histogram that was refused. It answers errors.Is with the error number of its code.
type HistError struct {
	Code  HistCode
	Event string // the event whose it would be, GROUP:EVENT; "": it is not known
	Hist  string // its text
	Pos   int    // byte that is wrong
	Why   string // what to do instead, beyond the code's own text; may be empty
}

// Error gives the error in one line.
func (e *HistError) Error() string {
	s := fmt.Sprintf("histogram %q, column %d: %s", e.Hist, e.Pos+1, e.Code.Text())
	if e.Why != "" {
		s += ": " + e.Why
	}
	return s
}

// Detail gives the error as the kernel's error_log does (without its time): the text, the trigger, and a caret below what is wrong.
func (e *HistError) Detail() string {
	at := histLocation
	if e.Event != "" {
		at += ":" + e.Event
	}
	return fmt.Sprintf("%s: error: %s\n  Command: %s\n%*s^\n", at, e.Code.Text(), e.Hist, len("  Command: ")+e.Pos, "")
}

// LogEntry is Detail where the kernel logs the error, else "".
func (e *HistError) LogEntry() string {
	if e.Code == HistErrno || e.Code == HistUnsupported {
		return ""
	}
	return e.Detail()
}

// Is says whether target is the error number of the code.
func (e *HistError) Is(target error) bool { return target == e.Code.Errno() }

// Refuse makes the error for what turned out later about a histogram. The caret stands where the kernel puts it: below the first place
// of the histogram's text that reads as part does, or below its start.
func (h *Hist) Refuse(c HistCode, part, why string) *HistError {
	return &HistError{Code: c, Hist: h.Text, Pos: max(strings.Index(h.Text, part), 0), Why: why}
}
