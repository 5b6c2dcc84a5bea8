package event

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"unicode/utf8"
)

// What the kernel's error_log calls the parsers of probe definitions.
const (
	Location       = "trace_kprobe"
	uprobeLocation = "trace_uprobe"
)

// Error is a definition that was refused: by the parser, or later, when its place was
// looked up or its arguments compiled. It answers errors.Is with the error number of its
// code and with whatever caused it.
type Error struct {
	Code Code
	Text string // why and what to do instead, beyond the code's own text; may be empty
	Line int    // line in the file, from 1; 0 if it was not read from one
	Cmd  string // the definition, its words joined by single spaces
	Pos  int    // byte of Cmd that is wrong; len(Cmd)+1 where a word is missing
	Err  error  // what caused it, or nil

	uprobe bool // Cmd is of Def.Uprobe
}

// Error gives the error in one line.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d, ", e.Line)
	}
	fmt.Fprintf(&b, "column %d: %s", e.column()+1, e.Code.Text())
	if e.Text != "" {
		b.WriteString(": " + e.Text)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// Detail gives the error as the kernel's error_log does (without its time): the text,
// the definition, and a caret below what is wrong.
func (e *Error) Detail() string {
	at := Location
	if e.uprobe {
		at = uprobeLocation
	}
	return fmt.Sprintf("%s: error: %s\n  Command: %s\n%*s^\n",
		at, e.Code.Text(), e.Cmd, len("  Command: ")+e.column(), "")
}

// Logged says whether the kernel's error_log tells of it. What is no definition, a line that is too long, and deletions have an error
// number only (create_or_delete_trace_kprobe and dyn_event_release, Linux 6.18).
func (e *Error) Logged() bool {
	switch e.Code {
	case BadCommand:
		return e.Pos > 0 && !e.deletes() && strings.Contains(e.Cmd, " ") // pNAME PLACE, which the kernel takes for p PLACE
	case NoPlace, LineTooLong:
		return false
	}
	return !e.deletes()
}

// deletes says whether the definition is a deletion.
func (e *Error) deletes() bool { return strings.HasPrefix(e.Cmd, "-") }

// Errno is the error number that a write of the definition to kprobe_events gives: that of what caused the error, or of its code. A place
// that is not there is EINVAL, whatever the cause, and a deletion of a name that no event can have ENOENT.
func (e *Error) Errno() syscall.Errno {
	var no syscall.Errno
	switch {
	case e.deletes() && e.Code != NoEventName && e.Code != BadCommand:
		return syscall.ENOENT
	case e.Code != BadProbeAddr && errors.As(e.Err, &no):
		return no
	}
	return e.Code.Errno()
}

// Unwrap gives what caused the error.
func (e *Error) Unwrap() error { return e.Err }

// Is says whether target is the error number of the code.
func (e *Error) Is(target error) bool {
	no, ok := target.(syscall.Errno)
	return ok && no == e.Code.Errno()
}

// column counts the characters before Pos.
func (e *Error) column() int {
	if e.Pos > len(e.Cmd) {
		return utf8.RuneCountInString(e.Cmd) + e.Pos - len(e.Cmd)
	}
	return utf8.RuneCountInString(e.Cmd[:max(e.Pos, 0)])
}

// HasCode says whether err is, or wraps, an Error with this code.
func HasCode(err error, c Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == c
}

// Refuse makes the error for what turned out later about the definition: a place that
// does not exist, an argument that the target cannot give. pos is Place.Pos, Arg.Pos or
// Expr.Pos; text says why and what to do instead; cause may be nil.
func (d *Def) Refuse(c Code, pos int, text string, cause error) *Error {
	return &Error{Code: c, Text: text, Line: d.Line, Cmd: d.Text, Pos: pos, Err: cause, uprobe: d.Uprobe}
}
