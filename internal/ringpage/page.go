package ringpage

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The layout of pages.
const (
	PageSize   = 4096 // bytes of a page
	headerSize = 16   // timestamp and commit
	dataSize   = PageSize - headerSize
	commitMask = 1<<20 - 1 // bytes of records (RB_WRITE_MASK)
	missed     = 1 << 31   // RB_MISSED_EVENTS
	counted    = 1 << 30   // RB_MISSED_STORED
)

// The layout of records.
const (
	typePadding = 29
	typeExtend  = 30
	typeStamp   = 31

	deltaBits = 27
	maxDelta  = 1<<deltaBits - 1
	maxSmall  = 4 * 28                // bytes of data that type_len tells of (RB_MAX_SMALL_DATA)
	stampMask = 1<<(deltaBits+32) - 1 // the bits of a time that typeStamp has
	extension = 8                     // bytes of typeExtend

	// MaxRecord is the most bytes of data that a record has: the page keeps room for its time, its length and the number of lost records.
	MaxRecord = dataSize - 8 - 8 - 8
)

// Numbers of the kernel's own events (enum trace_type in kernel/trace/trace.h, Linux 6.18).
const (
	StackID = 4  // kernel_stack, which Packer makes of callers
	PrintID = 5  // print, which Packer makes of text
	FirstID = 20 // is above all of them
)

// HeaderPage is the text of events/header_page.
const HeaderPage = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n" +
	"\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n" +
	"\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n" +
	"\tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n"

// HeaderEvent is the text of events/header_event.
const HeaderEvent = "# compressed entry header\n" +
	"\ttype_len    :    5 bits\n" +
	"\ttime_delta  :   27 bits\n" +
	"\tarray       :   32 bits\n" +
	"\n" +
	"\tpadding     : type == 29\n" +
	"\ttime_extend : type == 30\n" +
	"\ttime_stamp : type == 31\n" +
	"\tdata max type_len  == 28\n"

// size is the bytes that a record of n bytes of data takes (rb_calculate_event_length).
func size(n int) int {
	n = max(n, 1)
	if n > maxSmall {
		n += 4
	}
	return (n + 4 + 3) &^ 3
}

// putHeader writes the header of a record of n bytes of data, and gives its length.
func putHeader(b []byte, delta uint64, n int) int {
	all := size(n) - 4
	word := uint32(delta) << 5
	if all <= maxSmall {
		binary.LittleEndian.PutUint32(b, word|uint32(all/4))
		return 4
	}
	binary.LittleEndian.PutUint32(b, word)
	binary.LittleEndian.PutUint32(b[4:], uint32(all))
	return 8
}

// ErrPage is a page whose contents are not those of a page.
var ErrPage = errors.New("page damaged")

// Lost is what a page says of records that were lost before it.
type Lost struct {
	Any   bool
	Known bool // N is how many
	N     uint64
}

// Read hands over the records of a page in their order, with their times in nanoseconds. The data are those of the page. It ends at the
// first record that f does not want, and gives its error. Else the errors wrap ErrPage.
func Read(page []byte, f func(nanos uint64, data []byte) error) (lost Lost, err error) {
	if len(page) < headerSize {
		return lost, fmt.Errorf("%w: %d bytes are no page", ErrPage, len(page))
	}
	nanos, commit := binary.LittleEndian.Uint64(page), binary.LittleEndian.Uint64(page[8:])
	used, page := commit&commitMask, page[headerSize:]
	if used > uint64(len(page)) {
		return lost, fmt.Errorf("%w: %d bytes of records, in a page that has room for %d", ErrPage, used, len(page))
	}
	lost.Any = commit&missed != 0
	if behind := page[used:]; lost.Any && commit&counted != 0 && len(behind) >= 8 {
		lost.Known, lost.N = true, binary.LittleEndian.Uint64(behind)
	}
	for b := page[:used]; len(b) > 0; {
		r, n, err := parse(b)
		switch {
		case err != nil:
			return lost, fmt.Errorf("byte %d of the page: %w", headerSize+int(used)-len(b), err)
		case n == 0:
			return lost, nil
		case r.absolute:
			nanos = nanos&^stampMask | r.delta
		default:
			nanos += r.delta
		}
		if r.data != nil {
			if err := f(nanos, r.data); err != nil {
				return lost, err
			}
		}
		b = b[n:]
	}
	return lost, nil
}

// record is a record as it stands in a page.
type record struct {
	delta    uint64
	absolute bool   // delta is the time itself
	data     []byte // nil: there is none
}

// parse reads the record at the start of b, and gives its length; 0: nothing follows.
func parse(b []byte) (r record, n int, err error) {
	if len(b) < 4 {
		return r, 0, fmt.Errorf("%w: %d bytes are no record", ErrPage, len(b))
	}
	word := binary.LittleEndian.Uint32(b)
	kind := word & 31
	r.delta = uint64(word >> 5)
	if kind >= 1 && kind < typePadding {
		n = 4 + 4*int(kind)
		if n > len(b) {
			return r, 0, fmt.Errorf("%w: a record of %d bytes, where %d are left", ErrPage, n, len(b))
		}
		r.data = b[4:n:n]
		return r, n, nil
	}
	if kind == typePadding && r.delta == 0 {
		return r, 0, nil
	}
	if len(b) < 8 {
		return r, 0, fmt.Errorf("%w: %d bytes of a record of type %d", ErrPage, len(b), kind)
	}
	next := binary.LittleEndian.Uint32(b[4:])
	switch kind {
	case typeExtend, typeStamp:
		r.delta |= uint64(next) << deltaBits
		r.absolute = kind == typeStamp
		return r, 8, nil
	}
	if next < 4 || next > uint32(len(b)-4) {
		return r, 0, fmt.Errorf("%w: a record of type %d and %d bytes, where %d are left", ErrPage, kind, next, len(b)-4)
	}
	n = 4 + int(next)
	if kind == 0 {
		r.data = b[8:n:n]
	}
	return r, n, nil
}
