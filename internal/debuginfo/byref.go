package debuginfo

import (
	"debug/dwarf"
	"strings"
)

// Values of attributes (DWARF 5, 7.14 and 7.26).
const (
	ccNoCall         = 3 // DW_CC_nocall
	ccByReference    = 4 // DW_CC_pass_by_reference
	ccByValue        = 5
	defaultedInClass = 1
)

const (
	attrDefaulted = dwarf.Attr(0x8b)
	attrDeleted   = dwarf.Attr(0x8a)
)

// maxNested bounds the classes within one another that are looked at.
const maxNested = 16

// ByReference says whether a value of the type is passed by its address in C++: a class that is not trivial to copy (Itanium C++ ABI,
// 3.1.2.3). Some compilers tell; else the members of the class do.
func (t Type) ByReference() (bool, error) {
	if !t.known {
		return false, nil
	}
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	return t.f.walk().byReference(t, 0)
}

func (w *walk) byReference(t Type, depth int) (bool, error) {
	off, ok := t.off, t.known
	for range maxPeel {
		if !ok {
			return false, nil
		}
		e, r, err := w.at(off)
		if err != nil {
			return false, err
		}
		switch e.Tag {
		case dwarf.TagStructType, dwarf.TagClassType, dwarf.TagUnionType:
			return w.classByReference(e, r, depth)
		case dwarf.TagPointerType, dwarf.TagReferenceType, dwarf.TagRvalueReferenceType, dwarf.TagSubroutineType:
			return false, nil
		}
		off, ok = e.Val(dwarf.AttrType).(dwarf.Offset)
	}
	return false, ErrLimit
}

func (w *walk) classByReference(class *dwarf.Entry, r *dwarf.Reader, depth int) (bool, error) {
	switch cc, _ := class.Val(dwarf.AttrCalling).(int64); cc {
	case ccByReference:
		return true, nil
	case ccByValue:
		return false, nil
	}
	if !class.Children || depth > maxNested {
		return false, nil
	}
	name, _ := class.Val(dwarf.AttrName).(string)
	name, _, _ = strings.Cut(name, "<")
	by := false
	var parts []Type
	err := w.children(r, func(e *dwarf.Entry) error {
		switch e.Tag {
		case dwarf.TagInheritance:
			by = by || e.Val(dwarf.AttrVirtuality) != nil
			parts = append(parts, w.typ(e))
		case dwarf.TagMember:
			if ext, _ := e.Val(dwarf.AttrExternal).(bool); !ext {
				parts = append(parts, w.typ(e))
			}
		case dwarf.TagSubprogram:
			if v, _ := e.Val(dwarf.AttrVirtuality).(int64); v != 0 {
				by = true
				return nil
			}
			special, err := w.copies(e, class, name)
			by = by || special
			return err
		}
		return nil
	})
	for _, p := range parts {
		if by || err != nil {
			break
		}
		by, err = w.byReference(p, depth+1)
	}
	return by, err
}

// copies says whether a member function is a destructor, or a constructor that copies or moves, that the program itself has.
func (w *walk) copies(e, class *dwarf.Entry, name string) (bool, error) {
	if artificial, _ := e.Val(dwarf.AttrArtificial).(bool); artificial {
		return false, nil
	}
	if d, _ := e.Val(attrDefaulted).(int64); d == defaultedInClass {
		return false, nil
	}
	if deleted, _ := e.Val(attrDeleted).(bool); deleted {
		return false, nil
	}
	own, _ := e.Val(dwarf.AttrName).(string)
	own, _, _ = strings.Cut(own, "<")
	if own == "~"+name {
		return true, nil
	}
	if own != name || name == "" || !e.Children {
		return false, nil
	}
	_, r, err := w.at(e.Offset)
	if err != nil {
		return false, err
	}
	params, same := 0, false
	err = w.children(r, func(p *dwarf.Entry) error {
		artificial, _ := p.Val(dwarf.AttrArtificial).(bool)
		if p.Tag != dwarf.TagFormalParameter || artificial {
			return nil
		}
		if params++; params == 1 {
			same = w.refersTo(w.typ(p), class.Offset)
		}
		return nil
	})
	return same, err
}

// refersTo says whether a type is a reference to a class.
func (w *walk) refersTo(t Type, class dwarf.Offset) bool {
	off, ok, ref := t.off, t.known, false
	for range maxPeel {
		if !ok {
			return false
		}
		if off == class {
			return ref
		}
		e, _, err := w.at(off)
		if err != nil {
			return false
		}
		switch e.Tag {
		case dwarf.TagReferenceType, dwarf.TagRvalueReferenceType:
			ref = true
		case dwarf.TagConstType, dwarf.TagVolatileType, dwarf.TagTypedef:
		default:
			return false
		}
		off, ok = e.Val(dwarf.AttrType).(dwarf.Offset)
	}
	return false
}
