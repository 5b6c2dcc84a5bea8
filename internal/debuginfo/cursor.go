package debuginfo

import (
	"bytes"
	"encoding/binary"
)

// cursor reads little-endian values from bytes that may be anything. After a read past the end bad is set and every read gives 0.
type cursor struct {
	b   []byte
	pos int
	bad bool
}

func (c *cursor) take(n int) []byte {
	if c.bad || n < 0 || n > len(c.b)-c.pos {
		c.bad = true
		return nil
	}
	c.pos += n
	return c.b[c.pos-n : c.pos]
}

// uint reads a value of 1, 2, 4 or 8 bytes.
func (c *cursor) uint(size int) uint64 {
	var b [8]byte
	copy(b[:], c.take(size))
	return binary.LittleEndian.Uint64(b[:])
}

func (c *cursor) u8() uint8   { return uint8(c.uint(1)) }
func (c *cursor) u16() uint16 { return uint16(c.uint(2)) }
func (c *cursor) u32() uint32 { return uint32(c.uint(4)) }
func (c *cursor) u64() uint64 { return c.uint(8) }

// sint reads a signed value of 1, 2, 4 or 8 bytes.
func (c *cursor) sint(size int) int64 {
	shift := 64 - 8*size
	return int64(c.uint(size)<<shift) >> shift
}

// offset reads an offset into a section.
func (c *cursor) offset(wide bool) uint64 {
	if wide {
		return c.u64()
	}
	return uint64(c.u32())
}

// bytes reads a string that ends in a NUL. The bytes are those of the cursor.
func (c *cursor) bytes() []byte {
	if c.bad {
		return nil
	}
	n := bytes.IndexByte(c.b[c.pos:], 0)
	if n < 0 {
		c.bad = true
		return nil
	}
	s := c.b[c.pos : c.pos+n]
	c.pos += n + 1
	return s
}

// uleb reads a ULEB128 value of at most 64 bits.
func (c *cursor) uleb() uint64 { v, _ := c.leb(); return v }

// sleb reads an SLEB128 value of at most 64 bits.
func (c *cursor) sleb() int64 {
	v, bits := c.leb()
	if bits < 64 && bits > 0 && v>>(bits-1)&1 != 0 {
		v |= ^uint64(0) << bits
	}
	return int64(v)
}

// leb reads a LEB128 value, and tells how many bits it has.
func (c *cursor) leb() (v uint64, bits uint) {
	for bits < 70 {
		b := c.u8()
		if bits < 64 {
			v |= uint64(b&0x7f) << bits
		}
		bits += 7
		if b&0x80 == 0 {
			return v, bits
		}
	}
	c.bad = true
	return 0, 0
}
