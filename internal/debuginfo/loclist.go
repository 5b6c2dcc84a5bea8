package debuginfo

import (
	"debug/dwarf"
	"math"
)

// Entries of location lists (DWARF 5, 7.7.3).
const (
	lleEnd         = 0
	lleBasex       = 1
	lleStartxEndx  = 2
	lleStartxLen   = 3
	lleOffsetPair  = 4
	lleDefault     = 5
	lleBase        = 6
	lleStartEnd    = 7
	lleStartLength = 8
	lleViewPair    = 9 // GNU: two numbers of views, of the next entry
)

// maxList bounds the entries of one list that are read.
const maxList = 1 << 12

// exprAt gives the expression of a location attribute that holds at a link-time address; nil: there is none.
func (f *File) exprAt(u *unit, field *dwarf.Field, pc uint64) ([]byte, error) {
	switch v := field.Val.(type) {
	case []byte:
		return v, nil
	case int64:
		if u.version < 5 {
			return f.oldList(u, v, pc)
		}
		return f.list(u, v, pc)
	case uint64: // an index (DW_FORM_loclistx)
		off, err := f.listOffset(u, v)
		if err != nil {
			return nil, err
		}
		return f.list(u, off, pc)
	}
	return nil, ErrLocation
}

// lowpc is the address that lists of a unit count from.
func (u *unit) lowpc() uint64 {
	if u.root == nil {
		return 0
	}
	v, _ := u.root.Val(dwarf.AttrLowpc).(uint64)
	return v
}

// listOffset gives where the list with an index is.
func (f *File) listOffset(u *unit, i uint64) (int64, error) {
	if u.root == nil {
		return 0, ErrLocation
	}
	base, ok := u.root.Val(dwarf.AttrLoclistsBase).(int64)
	size := int64(4)
	if u.wide {
		size = 8
	}
	if !ok {
		return 0, ErrLocation
	}
	c, err := f.sect.loclists.at(base, ErrLocation)
	if err != nil {
		return 0, err
	}
	n := int64(len(c.b))
	if i >= uint64((n-base)/size) {
		return 0, ErrLocation
	}
	c.pos += int(int64(i) * size)
	off := c.offset(u.wide)
	if c.bad || off > uint64(n) {
		return 0, ErrLocation
	}
	return base + int64(off), nil
}

// list reads a location list of DWARF 5.
func (f *File) list(u *unit, off int64, pc uint64) ([]byte, error) {
	at, err := f.sect.loclists.at(off, ErrLocation)
	if err != nil {
		return nil, err
	}
	c := &at
	base := u.lowpc()
	var fallback []byte
	for range maxList {
		kind := c.u8()
		if kind == lleEnd && !c.bad {
			return fallback, nil
		}
		start, end, located, err := f.listRange(u, c, kind, &base)
		if c.bad {
			err = ErrLocation
		}
		if err != nil {
			return nil, err
		}
		if !located {
			continue
		}
		n := c.uleb()
		if n > uint64(len(c.b)) {
			return nil, ErrLocation
		}
		b := c.take(int(n))
		switch {
		case c.bad:
			return nil, ErrLocation
		case kind == lleDefault:
			fallback = b
		case start <= pc && pc < end:
			return b, nil
		}
	}
	return nil, ErrLimit
}

// listRange reads an entry of a location list but for its location, which follows if located is true, and holds from start to end.
// Other entries may change the base of those behind them.
func (f *File) listRange(u *unit, c *cursor, kind byte, base *uint64) (start, end uint64, located bool, err error) {
	switch kind {
	case lleBasex:
		*base, err = f.address(u, c.uleb())
		return 0, 0, false, err
	case lleBase:
		*base = c.u64()
		return 0, 0, false, nil
	case lleViewPair:
		c.uleb()
		c.uleb()
		return 0, 0, false, nil
	case lleStartxEndx, lleStartxLen:
		if start, err = f.address(u, c.uleb()); err != nil {
			return 0, 0, false, err
		}
		if end = c.uleb(); kind == lleStartxLen {
			end += start
		} else if end, err = f.address(u, end); err != nil {
			return 0, 0, false, err
		}
	case lleOffsetPair:
		start = *base + c.uleb()
		end = *base + c.uleb()
	case lleDefault:
	case lleStartEnd:
		start = c.u64()
		end = c.u64()
	case lleStartLength:
		start = c.u64()
		end = start + c.uleb()
	default:
		return 0, 0, false, ErrLocation
	}
	return start, end, true, nil
}

// oldList reads a location list of DWARF 2 to 4 (DWARF 4, 2.6.2).
func (f *File) oldList(u *unit, off int64, pc uint64) ([]byte, error) {
	at, err := f.sect.loc.at(off, ErrLocation)
	if err != nil {
		return nil, err
	}
	c := &at
	base := u.lowpc()
	for range maxList {
		start, end := c.u64(), c.u64()
		switch {
		case c.bad:
			return nil, ErrLocation
		case start == 0 && end == 0:
			return nil, nil
		case start == math.MaxUint64:
			base = end
			continue
		}
		b := c.take(int(c.u16()))
		switch {
		case c.bad:
			return nil, ErrLocation
		case base+start <= pc && pc < base+end:
			return b, nil
		}
	}
	return nil, ErrLimit
}
