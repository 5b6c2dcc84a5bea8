package native

import (
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/arch/objfile"
)

// Unwind tables, by which generated code walks over the stack.
type (
	UnwindTable  = amd64.UnwindTable
	UnwindObject = amd64.UnwindObject
)

// UnwindRule is the number for a rule; 0: the walk can not follow it.
func UnwindRule(r objfile.FrameRule) uint32 { return amd64.UnwindRule(r) }

// NewUnwindTable makes the table of code of size bytes.
func NewUnwindTable(size uint64, each func(add func(off uint64, r objfile.FrameRule))) UnwindTable {
	return amd64.NewUnwindTable(size, each)
}

// UnwindList is the size of a list with room for n objects, UnwindEntryAt where the nth of them stands, and UnwindCount what a
// list of n objects begins with.
func UnwindList(n int) int       { return amd64.UnwindList(n) }
func UnwindEntryAt(n int) uint64 { return amd64.UnwindEntryAt(n) }
func UnwindCount(n int) []byte   { return amd64.UnwindCount(n) }
