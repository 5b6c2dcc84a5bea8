package kernel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
)

// Layouts of the kallsyms tables, as scripts/kallsyms.c writes them. Each table begins at a
// multiple of 8, or of 4 in later kernels (7.2 has it so). They are told apart by shape, since
// distributions carry parts of later kernels:
//
//	6.1:  offsets relative_base num_syms names markers token_table token_index
//	6.2:  the same with seqs_of_names before token_table
//	6.4:  num_syms names markers token_table token_index offsets relative_base seqs_of_names
//	6.15: the same; per-CPU symbols are addresses as all others (no ABSOLUTE_PERCPU)
//	later: the same without relative_base; each offset is relative to its own place
const (
	tokens     = 256
	perMarker  = 256
	maxSymbols = 1 << 20
	maxToken   = 128     // bytes of one token
	maxName    = 1 << 12 // bytes of one name, expanded (KSYM_NAME_LEN is 512)
)

var digits = []byte("0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00")

// offsetMode is how an entry of kallsyms_offsets gives an address.
type offsetMode uint8

const (
	modePercpu offsetMode = iota // not negative: the address itself; else relative_base-1-offset
	modeBase                     // relative_base+offset
	modePC                       // the entry's own address+offset
)

// tables are the places of the kallsyms tables in one range of RAM, as indices into it.
type tables struct {
	ram         []byte
	align       int // each table begins at a multiple of it: 8 or 4
	tokenTable  int
	tokenIndex  int
	names       int
	namesEnd    int
	num         int
	offsets     int
	mode        offsetMode
	base        uint64
	basePlace   int
	tokenLayout string
}

// padded rounds up to where the next table begins.
func (t *tables) padded(n int) int { return (n + t.align - 1) &^ (t.align - 1) }

// tokensAt looks for the token table around the place of its digits, with tables that begin at
// multiples of align.
func tokensAt(ram []byte, at, align int) (t tables, ok bool) {
	t.ram, t.align = ram, align
	end := min(len(ram)-tokens*2, at+tokens*maxToken)
	for i := t.padded(at + 2*len("0123456789")); i <= end; i += align {
		if le16(ram, i) != 0 || le16(ram, i+2*'1')-le16(ram, i+2*'0') != 2 {
			continue
		}
		start := at - int(le16(ram, i+2*'0'))
		if start < 0 || start != t.padded(start) || !t.tokensFit(start, i) {
			continue
		}
		t.tokenTable, t.tokenIndex = start, i
		return t, true
	}
	return t, false
}

// tokensFit checks that the index describes the table, which ends where the index begins.
func (t *tables) tokensFit(table, index int) bool {
	ram := t.ram
	prev := 0
	for n := 1; n < tokens; n++ {
		off := int(le16(ram, index+2*n))
		if off <= prev || off-prev > maxToken || table+off > index || ram[table+off-1] != 0 {
			return false
		}
		prev = off
	}
	last := bytes.IndexByte(ram[table+prev:index], 0)
	return last >= 0 && t.padded(table+prev+last+1) == index
}

// locate finds the other tables from the token table.
func (t *tables) locate() error {
	for _, gap := range []int{0, 3, 4} {
		if t.markersBefore(gap) {
			if gap != 0 {
				t.tokenLayout = "6.2"
			}
			return t.locateOffsets(gap)
		}
	}
	return fmt.Errorf("no table of markers before the token table at index 0x%x", t.tokenTable)
}

// markersBefore looks for the markers before the token table, with a table of gap bytes a
// symbol between them (seqs_of_names), and for the names before the markers.
func (t *tables) markersBefore(gap int) bool {
	top := t.tokenTable
	for end := top; end > 16 && top-end <= gap*maxSymbols; end -= t.align {
		if gap == 0 {
			return t.markersEnd(end, 1, maxSymbols)
		}
		lo, hi := max((top-end-(t.align-1)+gap-1)/gap, 1), (top-end)/gap
		if lo <= hi && t.markersEnd(end, lo, hi) {
			return true
		}
	}
	return false
}

// markersEnd looks for markers that end at an index (padded), for between lo and hi symbols.
func (t *tables) markersEnd(end, lo, hi int) bool {
	if lo == hi || (lo+perMarker-1)/perMarker == (hi+perMarker-1)/perMarker {
		n := (lo + perMarker - 1) / perMarker
		return t.markersAt(end-t.padded(4*n), n, lo, hi)
	}
	if hi-lo < perMarker {
		mid := (lo + perMarker - 1) / perMarker * perMarker
		return t.markersEnd(end, lo, mid) || t.markersEnd(end, mid+1, hi)
	}
	// The number is open: walk back to the 0 that begins the table.
	for pad := 0; pad < t.align; pad += 4 {
		at := end - pad - 4
		for at >= 8 && le32(t.ram, at) != 0 && le32(t.ram, at-4) < le32(t.ram, at) {
			at -= 4
		}
		n := (end - pad - at) / 4
		if at == t.padded(at) && t.markersAt(at, n, (n-1)*perMarker+1, n*perMarker) {
			return true
		}
	}
	return false
}

// markersAt checks n markers, and looks for names before them and their number, between lo
// and hi, before the names.
func (t *tables) markersAt(at, n, lo, hi int) bool {
	if at < 16 || n < 1 || n > maxSymbols/perMarker || le32(t.ram, at) != 0 {
		return false
	}
	prev := uint32(0)
	for i := 1; i < n; i++ {
		m := le32(t.ram, at+4*i)
		if m < prev+2*perMarker || m-prev > perMarker*(maxName+2) {
			return false
		}
		prev = m
	}
	// The names end less than align bytes before the markers; the last marker's symbols have at
	// least 2 bytes each.
	last := int(prev)
	for names := (at - last - 2) &^ (t.align - 1); names >= 8 && at-names-last <= perMarker*512+8; names -= t.align {
		num := uint64(le32(t.ram, names-t.align)) // and 4 bytes of 0 behind it where align is 8
		if num < uint64(lo) || num > uint64(hi) || int(num) <= (n-1)*perMarker || int(num) > n*perMarker {
			continue
		}
		if t.skipNames(names+last, int(num)-(n-1)*perMarker, at) {
			t.names, t.namesEnd, t.num = names, at, int(num)
			return true
		}
	}
	return false
}

// skipNames checks that n names end where the table after them begins.
func (t *tables) skipNames(at, n, end int) bool {
	for range n {
		size, skip := t.nameLen(at, end)
		if size == 0 {
			return false
		}
		at += skip + size
	}
	return at <= end && t.padded(at) == end
}

// nameLen reads the length of a name (ULEB128 of one or two bytes); 0 where it is none.
func (t *tables) nameLen(at, end int) (size, skip int) {
	if at+2 > end {
		return 0, 0
	}
	size = int(t.ram[at])
	if size&0x80 == 0 {
		return size, 1
	}
	return size&0x7f | int(t.ram[at+1])<<7, 2
}

// locateOffsets finds kallsyms_offsets: before the names (6.1, 6.2) or behind the token
// index.
func (t *tables) locateOffsets(gap int) error {
	size := t.padded(4 * t.num)
	if base := t.names - t.padded(4) - 8; base-size >= 0 && t.tryOffsets(base-size, base) {
		if gap == 0 {
			t.tokenLayout = "6.1"
		}
		return nil
	}
	at := t.tokenIndex + 2*tokens
	if at+size+8 <= len(t.ram) && t.tryOffsets(at, at+size) {
		t.tokenLayout = "6.4"
		if t.mode == modeBase {
			t.tokenLayout = "6.15"
		}
		return nil
	}
	if at+size <= len(t.ram) && t.tryPC(at) {
		t.tokenLayout = "relative to the place"
		return nil
	}
	return fmt.Errorf("%d names, but no table of as many ascending addresses before them or behind the token index", t.num)
}

// tryOffsets takes a table of offsets and relative_base if the addresses ascend.
func (t *tables) tryOffsets(at, base int) bool {
	b := le64(t.ram, base)
	if b < lowestText {
		return false
	}
	mode := modeBase
	for i := range t.num {
		if int32(le32(t.ram, at+4*i)) < 0 {
			mode = modePercpu
			break
		}
	}
	old := *t
	t.offsets, t.mode, t.base, t.basePlace = at, mode, b, base
	if !t.ascending() {
		*t = old
		return false
	}
	return true
}

// tryPC takes a table of offsets each relative to its own place. Their own address is not
// known yet; 0 stands for it.
func (t *tables) tryPC(at int) bool {
	old := *t
	t.offsets, t.mode, t.base = at, modePC, 0
	if !t.ascending() || t.addr(0) == t.addr(t.num-1) || t.addr(t.num-1)-t.addr(0) > 1<<30 {
		*t = old
		return false
	}
	return true
}

func (t *tables) ascending() bool {
	prev := t.addr(0)
	for i := 1; i < t.num; i++ {
		a := t.addr(i)
		if t.mode != modePC && a < prev || t.mode == modePC && int64(a-prev) < 0 {
			return false
		}
		prev = a
	}
	return true
}

// addr gives the address of a symbol. In modePC base is the address of the table itself.
func (t *tables) addr(i int) uint64 {
	off := int32(le32(t.ram, t.offsets+4*i))
	switch {
	case t.mode == modePC:
		return t.base + uint64(4*i) + uint64(int64(off))
	case t.mode == modeBase:
		return t.base + uint64(uint32(off))
	case off >= 0:
		return uint64(off)
	}
	return t.base - 1 - uint64(int64(off))
}

// Symbol is a line of /proc/kallsyms.
type Symbol struct {
	Name string
	Addr uint64
	Type byte // as nm prints it: t and T are text, lower case is local
}

// symbols expands all names.
func (t *tables) symbols() ([]Symbol, error) {
	var token [tokens][]byte
	for i := range token {
		b := t.ram[t.tokenTable+int(le16(t.ram, t.tokenIndex+2*i)) : t.tokenIndex]
		token[i] = b[:max(bytes.IndexByte(b, 0), 0)]
	}
	type piece struct{ from, to uint32 }
	pieces := make([]piece, t.num)
	buf := make([]byte, 0, t.num*24)
	at := t.names
	for i := range pieces {
		size, skip := t.nameLen(at, t.namesEnd)
		if size == 0 || at+skip+size > t.namesEnd {
			return nil, fmt.Errorf("symbol %d of %d: its name has no end", i, t.num)
		}
		from := len(buf)
		for _, c := range t.ram[at+skip : at+skip+size] {
			buf = append(buf, token[c]...)
		}
		if n := len(buf) - from; n < 2 || n > maxName || len(buf) > math.MaxInt32 {
			return nil, fmt.Errorf("symbol %d of %d: a name of %d bytes", i, t.num, n-1)
		}
		pieces[i] = piece{uint32(from), uint32(len(buf))}
		at += skip + size
	}
	all := string(buf)
	syms := make([]Symbol, t.num)
	for i, p := range pieces {
		syms[i] = Symbol{Name: all[p.from+1 : p.to], Type: all[p.from], Addr: t.addr(i)}
	}
	return syms, nil
}

func le16(b []byte, i int) uint16 { return binary.LittleEndian.Uint16(b[i:]) }
func le32(b []byte, i int) uint32 { return binary.LittleEndian.Uint32(b[i:]) }
func le64(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[i:]) }
