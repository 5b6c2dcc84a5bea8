package ringpage

import (
	"encoding/binary"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// layout is where a record has the fields of an event: as hit.Format tells.
type layout struct {
	ev       *hit.Event
	id       uint16
	copies   []copied
	numbers  []numbered
	texts    []text
	fixed    int // bytes of all fields, without what texts point to
	argsSize int // bytes of the fixed part of the hit's record from ArgsOff on
}

// copied is a field that is made of the same bytes of the hit's record.
type copied struct {
	from, to int // from ArgsOff on; in the record
	size     int
	array    bool
	symbol   bool // an address that is shown by its name
	result   bool // it is hidden where the hit is Unknown
}

// numbered is a field of numbers that are no whole bytes in the hit's record.
type numbered struct {
	arg   int // of the program
	to    int
	size  int
	count int
}

// text is a field, or an element of one, that points to a string behind the fields.
type text struct {
	arg  int
	elem int // of an array; -1: it is none
	to   int
}

// newLayout makes the layout of an event.
func newLayout(e *hit.Event, id uint16) *layout {
	l := &layout{ev: e, id: id, fixed: commonSize + 8}
	if e.Return {
		l.fixed += 8
	}
	if e.Prog == nil {
		return l
	}
	l.argsSize = e.Prog.Fixed
	for i := range e.Prog.Args {
		l.add(i, &e.Prog.Args[i])
	}
	return l
}

// commonSize is the bytes that all records begin with: type, flags, preemption count, thread.
const commonSize = 8

// add adds the field of an argument.
func (l *layout) add(i int, a *fetch.Arg) {
	size, count := a.Type.Size, max(a.Count, 1)
	switch {
	case a.Type.IsString() || a.Type.Kind == event.SymStr || a.Store == fetch.StoreNone || a.Store == fetch.StoreComm:
		size = 4
		for k := range count {
			elem := k
			if a.Count == 0 {
				elem = -1
			}
			l.texts = append(l.texts, text{arg: i, elem: elem, to: l.fixed + 4*k})
		}
	case a.Type.Width > 0:
		l.numbers = append(l.numbers, numbered{arg: i, to: l.fixed, size: size, count: a.Count})
	default:
		l.copies = append(l.copies, copied{from: a.Off, to: l.fixed, size: size * count, array: a.Count > 0, symbol: a.Type.Kind == event.Symbol, result: a.Result})
	}
	l.fixed += size * count
}

// head writes what is in front of the arguments.
func (l *layout) head(dst []byte, h *hit.Hit) {
	common(dst, h, l.id)
	binary.LittleEndian.PutUint64(dst[8:], h.Addr())
	if l.ev.Return {
		binary.LittleEndian.PutUint64(dst[16:], h.Caller)
	}
}

// common writes the fields that all events have.
func common(dst []byte, h *hit.Hit, id uint16) {
	binary.LittleEndian.PutUint16(dst, id)
	dst[2], dst[3] = 0, 0
	if h.Context[0] != 0 {
		dst[2], dst[3] = context(&h.Context)
	}
	binary.LittleEndian.PutUint32(dst[4:], uint32(h.TID))
}

// plain writes the fields that are copied. Precondition: dst has l.fixed bytes, args l.argsSize.
func (l *layout) plain(dst, args []byte, unknown bool) {
	for i := range l.copies {
		c := &l.copies[i]
		to, from := dst[c.to:], args[c.from:]
		switch {
		case unknown && c.result:
			clear(to[:c.size])
		case c.array:
			copy(to, from[:c.size])
		case c.size == 8:
			binary.LittleEndian.PutUint64(to, binary.LittleEndian.Uint64(from))
		case c.size == 4:
			binary.LittleEndian.PutUint32(to, binary.LittleEndian.Uint32(from))
		default:
			copy(to, from[:c.size])
		}
	}
}

// addresses changes the addresses in a record that are shown by their names. Precondition: dst has the fields.
func (l *layout) addresses(dst []byte, change func(uint64) uint64) {
	one := func(at int) {
		binary.LittleEndian.PutUint64(dst[at:], change(binary.LittleEndian.Uint64(dst[at:])))
	}
	one(8)
	if l.ev.Return {
		one(16)
	}
	for i := range l.copies {
		c := &l.copies[i]
		for at := 0; c.symbol && at+8 <= c.size; at += 8 {
			one(c.to + at)
		}
	}
}

// rest appends the strings behind the fields, and writes the fields that are not copied. Precondition: dst has the fields. Strings are cut
// so that the record fits: each may take what those before it leave.
func (l *layout) rest(dst []byte, h *hit.Hit, vs []fetch.Value, n hit.Namer) []byte {
	for i := range l.numbers {
		f := &l.numbers[i]
		v := &vs[f.arg]
		if f.count == 0 {
			number(dst[f.to:], f.size, v.Arg.Type, v.Num, v.Unknown)
		}
		for k := range f.count {
			number(dst[f.to+k*f.size:], f.size, v.Arg.Type, v.Elems[k].Num, v.Unknown)
		}
	}
	for i := range l.texts {
		t := &l.texts[i]
		v := &vs[t.arg]
		e := fetch.Elem{Num: v.Num, Str: v.Str, Fault: v.Fault}
		if t.elem >= 0 {
			e = v.Elems[t.elem]
		}
		at := len(dst)
		switch room := MaxRecord - at; {
		case e.Fault || room <= 0:
		case v.Unknown:
			dst = appendString(dst, []byte(unknownText), room)
		case v.Arg.Type.Kind == event.SymStr:
			dst = appendString(dst, fetch.AppendSym(nil, e.Num, n.Symbol), room)
		default:
			dst = appendString(dst, e.Str, room)
		}
		// make_data_loc: nothing at all is (fault).
		binary.LittleEndian.PutUint32(dst[t.to:], uint32(len(dst)-at)<<16|uint32(at))
	}
	return dst
}

// unknownText stands for a string that is the result of a return probe, where the hit does not know it.
const unknownText = "(unknown)"

// appendString appends a string with its NUL, in a room of bytes that is not empty. A NUL in it ends it, as everywhere in the kernel.
func appendString(dst, s []byte, room int) []byte {
	for i, c := range s {
		if c == 0 || i == room-1 {
			s = s[:i]
			break
		}
	}
	return append(append(dst, s...), 0)
}

// number writes a number of the type.
func number(dst []byte, size int, t fetch.Type, v uint64, unknown bool) {
	n := uint64(t.Int(v))
	if unknown {
		n = 0
	}
	switch size {
	case 1:
		dst[0] = byte(n)
	case 2:
		binary.LittleEndian.PutUint16(dst, uint16(n))
	case 4:
		binary.LittleEndian.PutUint32(dst, uint32(n))
	default:
		binary.LittleEndian.PutUint64(dst, n)
	}
}

// Bits of common_flags (include/linux/trace_events.h).
const (
	FlagIRQsOff = 1 << 0
	FlagResched = 1 << 2
	FlagHardIRQ = 1 << 3
	FlagSoftIRQ = 1 << 4
	FlagNMI     = 1 << 6
	FlagBHOff   = 1 << 7
)

// context makes common_flags and common_preempt_count of what a line has behind the CPU (hit.Hit's Context): interrupts, need-resched,
// hardirq, preempt-depth, and others behind; with PREEMPT_RT there is another column before hardirq.
func context(c *[8]byte) (flags, preempt byte) {
	depth := 3
	if c[5] != 0 {
		depth = 4
	}
	switch c[0] {
	case 'd':
		flags = FlagIRQsOff
	case 'b':
		flags = FlagBHOff
	case 'D':
		flags = FlagIRQsOff | FlagBHOff
	}
	if c[1] == 'N' {
		flags |= FlagResched
	}
	switch c[depth-1] {
	case 'h':
		flags |= FlagHardIRQ
	case 's':
		flags |= FlagSoftIRQ
	case 'H':
		flags |= FlagHardIRQ | FlagSoftIRQ
	case 'z':
		flags |= FlagNMI
	case 'Z':
		flags |= FlagNMI | FlagHardIRQ
	}
	switch d := c[depth]; {
	case d >= '1' && d <= '9':
		preempt = d - '0'
	case d >= 'a' && d <= 'f':
		preempt = d - 'a' + 10
	}
	return flags, preempt
}
