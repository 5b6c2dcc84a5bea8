package amd64

import "encoding/binary"

// signed reads a little-endian number of up to 8 bytes.
func signed(b []byte) int64 {
	switch len(b) {
	case 1:
		return int64(int8(b[0]))
	case 2:
		return int64(int16(binary.LittleEndian.Uint16(b)))
	case 3:
		return int64(binary.LittleEndian.Uint16(b)) | int64(int8(b[2]))<<16
	case 4:
		return int64(int32(binary.LittleEndian.Uint32(b)))
	}
	return int64(binary.LittleEndian.Uint64(b))
}

// immediate reads the bytes at the end.
func (d *decoder) immediate(form layout) bool {
	if form == immNone {
		return true
	}
	off, n := d.pos, d.immLen(form)
	if d.pos += int(n); d.pos > len(d.code) {
		return false
	}
	if form == immMoffs {
		d.DispOff, d.DispLen = uint8(off), n
		return true
	}
	d.ImmOff, d.ImmLen = uint8(off), n
	d.Imm = signed(d.code[off:d.pos])
	switch {
	case form >= immRel8:
		d.relative(d.ImmOff, n)
	case d.Map == Map3DN:
		d.Opcode = byte(d.Imm)
	}
	return true
}

// immSizes has the size of each form for an operand size of 32, 16 and 64 bits.
var immSizes = [16][3]uint8{
	immByte:  {1, 1, 1},
	immWord:  {2, 2, 2},
	immLong:  {4, 4, 4},
	immZ:     {4, 2, 4},
	immV:     {4, 2, 8},
	immEnter: {3, 3, 3},
	immPair:  {2, 2, 2},
	immAbs:   {8, 8, 8},
	immRel8:  {1, 1, 1},
	immRel32: {4, 4, 4},
	immRelZ:  {4, 2, 4},
}

func (d *decoder) immLen(form layout) uint8 {
	switch {
	case form == immMoffs && d.Prefix&PrefixAddrSize != 0:
		return 4
	case form == immMoffs:
		return 8
	case d.Rex&8 != 0:
		return immSizes[form][2]
	case d.Prefix&PrefixOpSize != 0:
		return immSizes[form][1]
	}
	return immSizes[form][0]
}
