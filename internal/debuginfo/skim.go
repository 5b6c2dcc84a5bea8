package debuginfo

import (
	"debug/dwarf"
	"fmt"
)

// abbreviation is how long its entries are, and where the attribute is that skim gives.
type abbreviation struct {
	tag   dwarf.Tag
	forms []uint16 // of its attributes
	// The attribute that refers to the entry that it completes, in forms; -1: it has none.
	origin int
	// How many bytes an entry has behind its code, beside so many addresses, offsets and references of which the unit says how long they are.
	bytes, addrs, offsets, refs int
	varies                      bool // a form has no size
}

// size is how many bytes an entry of the unit has behind its code.
func (a *abbreviation) size(u *unit) uint64 {
	return uint64(a.bytes + a.addrs*u.addrSize + a.offsets*u.offsetSize() + a.refs*u.refSize())
}

// count takes in an attribute's form.
func (a *abbreviation) count(form uint16) {
	switch form {
	case formAddr:
		a.addrs++
	case formRefAddr:
		a.refs++
	case formStrp, formLineStrp, formSecOffset, formStrpSup, formGNURefAlt, formGNUStrpAlt:
		a.offsets++
	default:
		n, fixed := fixedSize(form)
		a.bytes += n
		a.varies = a.varies || !fixed
	}
}

// reference is an entry that completes another one.
type reference struct {
	at, of dwarf.Offset
}

// skim finds the entries with a tag that complete others, in a unit. It reads no other attribute: of large files that is many times faster
// than debug/dwarf. What was read of a damaged unit is used.
func (f *File) skim(w *walk, u *unit, tag dwarf.Tag, found func(reference)) error {
	abbreviations := f.abbreviationsAt(u.abbrev)
	b := f.sect.info[:u.end]
	c := cursor{b: b, pos: int(u.first)}
	for c.pos < len(b) && !c.bad {
		if w.left--; w.left < 0 {
			return fmt.Errorf("more than %d entries: %w", maxEntries, ErrLimit)
		}
		at := c.pos
		code := c.uleb()
		if code == 0 {
			continue
		}
		s, ok := abbreviations[code]
		if !ok {
			break
		}
		switch {
		case s.tag == tag && s.origin >= 0:
			if of, ok := c.origin(u, s); ok {
				found(reference{dwarf.Offset(at), of})
			}
		case !s.varies:
			c.skip(s.size(u))
		default:
			for _, form := range s.forms {
				c.skipForm(u, form)
			}
		}
	}
	return nil
}

// origin passes over the attributes of an entry, and gives the entry that it completes.
func (c *cursor) origin(u *unit, s abbreviation) (of dwarf.Offset, ok bool) {
	for i, form := range s.forms {
		if i == s.origin {
			of, ok = c.reference(u, form)
		} else {
			c.skipForm(u, form)
		}
	}
	return of, ok && !c.bad
}

// reference reads a reference to an entry of the file.
func (c *cursor) reference(u *unit, form uint16) (of dwarf.Offset, ok bool) {
	switch form {
	case formRef1, formRef2, formRef4, formRef8:
		return u.start + dwarf.Offset(c.uint(formSizes[form])), true
	case formRefUdata:
		return u.start + dwarf.Offset(c.uleb()), true
	case formRefAddr:
		return dwarf.Offset(c.uint(u.sizeOf(form))), true
	}
	c.skipForm(u, form)
	return 0, false
}

func (c *cursor) skip(n uint64) {
	if n > uint64(len(c.b)-c.pos) {
		c.bad = true
		return
	}
	c.pos += int(n)
}

// skipForm passes over an attribute.
func (c *cursor) skipForm(u *unit, form uint16) {
	if n := u.sizeOf(form); n >= 0 {
		c.skip(uint64(n))
		return
	}
	switch form {
	case formString:
		c.bytes()
	case formBlock1:
		c.skip(uint64(c.u8()))
	case formBlock2:
		c.skip(uint64(c.u16()))
	case formBlock4:
		c.skip(uint64(c.u32()))
	case formBlock, formExprloc:
		c.skip(c.uleb())
	case formSdata, formUdata, formRefUdata, formStrx, formAddrx, formLoclistx, formRnglistx, formGNUAddrIndex, formGNUStrIndex:
		c.uleb()
	case formIndirect:
		if form = uint16(c.uleb()); form == formIndirect || form == formImplicitConst {
			c.bad = true
			return
		}
		c.skipForm(u, form)
	default:
		c.bad = true
	}
}

// sizeOf is how many bytes an attribute of a form has; -1: it says so itself, or the form is not known.
func (u *unit) sizeOf(form uint16) int {
	one := abbreviation{}
	if one.count(form); one.varies {
		return -1
	}
	return int(one.size(u))
}

func (u *unit) offsetSize() int {
	if u.wide {
		return 8
	}
	return 4
}

// refSize is the size of a reference to an entry of any unit.
func (u *unit) refSize() int {
	if u.version == 2 {
		return u.addrSize
	}
	return u.offsetSize()
}

// fixedSize gives the size of a form that has the same in all units.
func fixedSize(form uint16) (n int, fixed bool) {
	if int(form) < len(formSizes) {
		n = formSizes[form]
	}
	return n, n > 0 || form == formFlagPresent || form == formImplicitConst
}

// formSizes are the sizes of forms that have the same in all units (DWARF 5, 7.5.5).
var formSizes = [...]int{
	formData1: 1, formFlag: 1, formRef1: 1, formStrx1: 1, formAddrx1: 1,
	formData2: 2, formRef2: 2, formStrx2: 2, formAddrx2: 2,
	formStrx3: 3, formAddrx3: 3,
	formData4: 4, formRef4: 4, formRefSup4: 4, formStrx4: 4, formAddrx4: 4,
	formData8: 8, formRef8: 8, formRefSig8: 8, formRefSup8: 8,
	formData16: 16,
}

// abbreviationsAt reads the abbreviations at an offset, once: units share them.
func (f *File) abbreviationsAt(off uint64) map[uint64]abbreviation {
	if all, ok := f.abbrevs[off]; ok {
		return all
	}
	all := map[uint64]abbreviation{}
	if f.abbrevs == nil {
		f.abbrevs = map[uint64]map[uint64]abbreviation{}
	}
	f.abbrevs[off] = all
	if off >= uint64(len(f.sect.abbrev)) {
		return all
	}
	c := cursor{b: f.sect.abbrev, pos: int(off)}
	for {
		code := c.uleb()
		if code == 0 || c.bad {
			return all
		}
		s := abbreviation{tag: dwarf.Tag(c.uleb()), origin: -1}
		c.u8()
		for {
			attr, form := dwarf.Attr(c.uleb()), uint16(c.uleb())
			if form == formImplicitConst {
				c.sleb()
			}
			if c.bad || attr == 0 && form == 0 {
				break
			}
			if attr == dwarf.AttrAbstractOrigin || attr == dwarf.AttrSpecification && s.origin < 0 {
				s.origin = len(s.forms)
			}
			s.forms = append(s.forms, form)
			s.count(form)
		}
		all[code] = s
	}
}
