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

// Around is the memory that JumpsOver asks for about an address: n bytes from lo on, of the page that
// the address is in, since no jump of the engine's crosses one.
func Around(ip uint64) (lo uint64, n int) {
	page := ip &^ (pageSize - 1)
	lo = max(ip-JumpLen+1, page)
	return lo, int(min(ip+JumpLen-1, page+pageSize) - lo)
}

// JumpsOver says whether ip is inside the bytes of a jump that goes to generated code, and not its start:
// the jump of another probe than the one whose handler sends a thread there. code is what Around
// says.
func JumpsOver(code []byte, ip uint64, ours func(to uint64) bool) bool {
	lo, _ := Around(ip)
	for at := lo; at < ip && at+JumpLen <= lo+uint64(len(code)); at++ {
		b := code[at-lo:]
		if b[0] == 0xe9 && ours(at+JumpLen+uint64(int64(int32(binary.LittleEndian.Uint32(b[1:]))))) {
			return true
		}
	}
	return false
}
