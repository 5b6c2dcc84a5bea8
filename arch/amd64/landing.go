package amd64

import "encoding/binary"

// A handler may have its thread go on at another instruction (arch.ActionLeave). Where that is one
// of the region that the detour stands for, it is not in the program's code any more: the jump has
// taken its place, or work of a probe is to be done at it. The thread lands in the detour then, where
// that instruction begins. The word before the address at which the gate goes back to a detour holds
// the address of a table in the detour, 0 if there is none (a breakpoint takes one byte, and
// nobody's place):
//
//	 0  the region's start, where the jump stands
//	 8  the number of the entries
//	16  entries of 16 bytes: an instruction of the region behind the first, and where it begins
//	    in the detour, with the work at it
//
// What a thread is to go on at is looked up in the detour that it came from: that one stays where it
// is while a thread is in its gate, whatever has become of the probe.

// landing gathers the entries of a table.
type landing struct {
	start uint64
	steps []stepAt
	table *Label // nil: no call needs it
}

// stepAt is where an instruction begins in the detour.
type stepAt struct {
	orig uint64
	at   Label
}

// landings emits the word that leads to the table, in an instruction that is never run, so that the
// code can be read through: mov $word, %r11.
func (e *emitter) landings() {
	e.Raw(0x49, 0xbb)
	if e.land == nil {
		e.Data64(0)
		return
	}
	if e.land.table == nil {
		l := e.Label()
		e.land.table = &l
	}
	e.DataAddr(*e.land.table)
}

// landingTable emits the table, if a call needs it.
func (e *emitter) landingTable() {
	if e.land == nil || e.land.table == nil {
		return
	}
	e.Align(8)
	e.Bind(*e.land.table)
	e.Data64(e.land.start)
	e.Data64(uint64(len(e.land.steps) - 1))
	for _, s := range e.land.steps[1:] {
		e.Data64(s.orig)
		e.DataAddr(s.at)
	}
}

// Sizes of a table of landings, in bytes, and the most entries that are believed.
const (
	LandingHead  = 16
	LandingEntry = 16
	maxLandings  = maxBack + JumpLen + MaxLen
)

// LandingWord is where the word stands that leads to the table of the detour in which resume is
// where the gate goes back to.
func LandingWord(resume uint64) uint64 { return resume - 8 }

// LandingSize is the number of bytes of a table that begins with head.
func LandingSize(head []byte) (n int, ok bool) {
	entries := binary.LittleEndian.Uint64(head[8:])
	return LandingHead + int(entries)*LandingEntry, entries <= maxLandings
}

// Land finds where a thread goes on that a handler sends to ip. inside: nowhere, for it is no
// instruction and the jump stands there.
func Land(table []byte, ip uint64) (to uint64, inside bool) {
	for b := table[LandingHead:]; len(b) >= LandingEntry; b = b[LandingEntry:] {
		if binary.LittleEndian.Uint64(b) == ip {
			return binary.LittleEndian.Uint64(b[8:]), false
		}
	}
	start := binary.LittleEndian.Uint64(table)
	return ip, ip > start && ip-start < JumpLen
}
