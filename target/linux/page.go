package linux

import (
	"encoding/binary"
	"fmt"
)

// Types of entries in a page of the ring (include/linux/ring_buffer.h; header_event of
// tracefs tells the same).
const (
	entryMax     = 28 // the most that tells a length by itself, in words
	entryPadding = 29
	entryExtend  = 30
	entryStamp   = 31
)

const (
	pageHeader  = 16 // bytes before the entries: time stamp and length
	pageMissed  = 1 << 31
	pageCounted = 1 << 30
	deltaBits   = 27
)

// walkPage gives each record of a page of the kernel's ring with its time (of the
// instance's clock). data shares memory with the page.
func walkPage(page []byte, f func(nanos uint64, data []byte)) error {
	if len(page) < pageHeader {
		return fmt.Errorf("page of the ring: %d bytes", len(page))
	}
	ts := binary.LittleEndian.Uint64(page)
	n := binary.LittleEndian.Uint64(page[8:]) &^ (pageMissed | pageCounted)
	if n > uint64(len(page)-pageHeader) {
		return fmt.Errorf("page of the ring: %d bytes of entries in %d", n, len(page)-pageHeader)
	}
	for b := page[pageHeader:][:n]; len(b) > 0; {
		size, data, err := entry(b, &ts)
		switch {
		case err != nil:
			return err
		case size == 0:
			return nil // the rest is padding
		case data != nil:
			f(ts, data)
		}
		b = b[size:]
	}
	return nil
}

// entry reads the entry that b begins with: its size, 0 if nothing follows, and its data,
// nil if it has none. It moves the time on.
func entry(b []byte, ts *uint64) (size int, data []byte, err error) {
	if len(b) < 4 {
		return 0, nil, fmt.Errorf("entry of the ring: %d bytes", len(b))
	}
	head := binary.LittleEndian.Uint32(b)
	kind, delta := int(head&31), uint64(head>>5)
	if kind > 0 && kind <= entryMax {
		*ts += delta
		return cut(b, 4, 4+4*kind)
	}
	if kind == entryPadding && delta == 0 {
		return 0, nil, nil
	}
	if len(b) < 8 {
		return 0, nil, fmt.Errorf("entry of the ring: %d bytes of type %d", len(b), kind)
	}
	word := uint64(binary.LittleEndian.Uint32(b[4:]))
	switch kind {
	case entryExtend:
		*ts += word<<deltaBits + delta
		return 8, nil, nil
	case entryStamp:
		const kept = 0x1f << 59 // bits that an absolute time has no room for
		*ts = *ts&kept | word<<deltaBits + delta
		return 8, nil, nil
	}
	*ts += delta
	if word < 4 || word > uint64(len(b)-4) {
		return 0, nil, fmt.Errorf("entry of the ring: length %d in %d bytes", word, len(b))
	}
	size, data, err = cut(b, 8, 4+int(word+3)&^3)
	if kind == entryPadding {
		data = nil
	}
	return size, data, err
}

// cut gives the bytes from one offset to another, and the latter.
func cut(b []byte, from, to int) (int, []byte, error) {
	if to > len(b) {
		return 0, nil, fmt.Errorf("entry of the ring: it ends at %d of %d bytes", to, len(b))
	}
	return to, b[from:to:to], nil
}
