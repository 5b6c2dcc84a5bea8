package symbol

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// cursor reads little-endian values from untrusted bytes. After a read past the end bad
// is set and every read gives 0.
type cursor struct {
	b   []byte
	pos int
	bad bool
}

// take gives the next n bytes, nil after the end.
func (c *cursor) take(n int) []byte {
	if c.bad || n < 0 || n > len(c.b)-c.pos {
		c.bad = true
		return nil
	}
	p := c.b[c.pos : c.pos+n]
	c.pos += n
	return p
}

func (c *cursor) u8() uint8 {
	if p := c.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if p := c.take(2); p != nil {
		return binary.LittleEndian.Uint16(p)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if p := c.take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if p := c.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

// uleb reads a ULEB128 value of at most 64 bits.
func (c *cursor) uleb() uint64 {
	var v uint64
	for shift := uint(0); shift < 70; shift += 7 {
		b := c.u8()
		if shift < 64 {
			v |= uint64(b&0x7f) << shift
		}
		if b&0x80 == 0 {
			return v
		}
	}
	c.bad = true
	return 0
}

// sleb reads an SLEB128 value of at most 64 bits.
func (c *cursor) sleb() int64 {
	var v int64
	for shift := uint(0); shift < 70; shift += 7 {
		b := c.u8()
		if shift < 64 {
			v |= int64(b&0x7f) << shift
		}
		if b&0x80 == 0 {
			if shift+7 < 64 && b&0x40 != 0 {
				v |= -1 << (shift + 7)
			}
			return v
		}
	}
	c.bad = true
	return 0
}

// cstr reads a string that ends in a NUL.
func (c *cursor) cstr() string {
	if c.bad {
		return ""
	}
	i := bytes.IndexByte(c.b[c.pos:], 0)
	if i < 0 {
		c.bad = true
		return ""
	}
	s := string(c.b[c.pos : c.pos+i])
	c.pos += i + 1
	return s
}

// cstring is the NUL-terminated string at off in s; ok is false if it has no end in s.
func cstring(s string, off uint64) (str string, ok bool) {
	if off >= uint64(len(s)) {
		return "", false
	}
	n := strings.IndexByte(s[off:], 0)
	if n < 0 {
		return "", false
	}
	return s[off : off+uint64(n)], true
}
