package goabi

import (
	"strconv"
	"strings"
)

// Layout is the layout of one Go version's runtime: offsets in bytes from the start of
// its structs g, m and p (runtime/runtime2.go; read from the debug information that the
// toolchain writes).
type Layout struct {
	Minor int32 // of the version: 26 for Go 1.26

	// In g.
	StackLo, StackHi, StackGuard0 int32
	M                             int32 // *m
	SchedSP, SchedPC, SchedBP     int32 // where a goroutine that does not run goes on
	Status                        int32 // uint32
	GoID                          int32

	// In m.
	G0, ProcID, GSignal, CurG int32
	P, ID                     int32
	Mallocing, Locks          int32 // int32

	IsExtra  int32 // bool: of a thread that C has made
	NCgoCall int32 // uint64: how often it has called C
	NCgo     int32 // int32: such calls in progress

	WBNext int32 // in p: wbBuf.next, 0 while the buffer of write barriers is being emptied

	Panic   int32 // in g: *_panic, the innermost panic
	PanicSP int32 // in _panic: where the stack ends of who has deferred what runs
}

// layouts lists the versions whose layout is known, newest first.
var layouts = []Layout{
	{26, 0, 8, 16, 48, 56, 64, 96, 144, 152, 0, 64, 72, 184, 208, 232, 240, 264, 281, 320, 328, 9552, 32, 40},
	{25, 0, 8, 16, 48, 56, 64, 96, 144, 152, 0, 64, 72, 184, 200, 224, 232, 256, 273, 312, 320, 5272, 32, 48},
	{24, 0, 8, 16, 48, 56, 64, 104, 152, 160, 0, 72, 80, 192, 208, 232, 240, 264, 281, 320, 328, 4720, 32, 48},
	{23, 0, 8, 16, 48, 56, 64, 104, 152, 160, 0, 72, 80, 192, 208, 232, 240, 264, 281, 320, 328, 4720, 32, 48},
}

// Layouts gives the layouts that a program of a toolchain's version may have: one, or none if
// the version is not known, or all, newest first, if it says nothing. A version reads as
// runtime.Version gives it: "go1.26.8", "go1.26rc1", "go1.26.8 X:nodwarf5",
// "devel go1.27-4f5c3d Thu…". Layouts are to be validated before they are used.
func Layouts(version string) []Layout {
	if version == "" {
		return append([]Layout(nil), layouts...)
	}
	minor, ok := minorOf(version)
	if !ok {
		return nil
	}
	for _, l := range layouts {
		if int(l.Minor) == minor {
			return []Layout{l}
		}
	}
	return nil
}

// minorOf finds the 26 in "go1.26.8".
func minorOf(version string) (int, bool) {
	for word := range strings.FieldsSeq(version) {
		rest, ok := strings.CutPrefix(word, "go1.")
		if !ok {
			continue
		}
		digits := 0
		for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
			digits++
		}
		n, err := strconv.Atoi(rest[:digits])
		return n, err == nil
	}
	return 0, false
}
