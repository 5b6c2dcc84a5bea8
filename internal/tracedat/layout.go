package tracedat

import "kprobes.dev/kprobes/internal/ringpage"

// The parts of a file.
const (
	magic       = "\x17\x08\x44tracing"
	version     = "6\x00"
	headerPage  = "header_page\x00"
	headerEvent = "header_event\x00"
	optionsMark = "options  \x00"
	pagesMark   = "flyrecord\x00"
	longSize    = 8
	pageSize    = ringpage.PageSize
)

// Options (include/private/trace-cmd-private.h of trace-cmd 3.1).
const (
	optionEnd        = 0
	optionTraceClock = 4
	optionUname      = 5
	optionCPUCount   = 8
	optionVersion    = 9
)

// Symbol is a function, or another thing with a name, in the program that was traced.
type Symbol struct {
	Addr, Size uint64 // Size 0: it is not known
	Name       string
	Module     string // the object; "": the program itself
}
