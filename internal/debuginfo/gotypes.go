package debuginfo

import (
	"debug/dwarf"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// unitOfTypes is the unit that Go's linker puts the types of all packages in.
const unitOfTypes = "runtime"

// GoTypes finds types of a Go program by their names, as the linker writes them: with whole import paths, and a * before what they point to. It
// gives those that the program describes to itself too, since it has them in interfaces.
func (f *File) GoTypes(names []string) (map[string]GoType, error) {
	want := map[string]bool{}
	for _, n := range names {
		want[n] = true
	}
	found := map[string]GoType{}
	err := f.inUnits(unitOfTypes, func(e *dwarf.Entry) bool {
		at, ok := e.Val(attrGoRuntimeType).(uint64)
		if name, _ := e.Val(dwarf.AttrName).(string); ok && want[name] {
			found[name] = GoType{Type: Type{f: f, off: e.Offset, known: true}, Descriptor: at}
		}
		return len(found) == len(want)
	})
	return found, err
}

// GoStructs gives the names of the struct types of a Go program that have a member with one of the given names.
func (f *File) GoStructs(members ...string) (names []string, err error) {
	in := ""
	err = f.inUnits(unitOfTypes, func(e *dwarf.Entry) bool {
		switch e.Tag {
		case dwarf.TagMember:
			if name, _ := e.Val(dwarf.AttrName).(string); in != "" && slices.Contains(members, name) {
				names, in = append(names, in), ""
			}
		case dwarf.TagStructType:
			in, _ = e.Val(dwarf.AttrName).(string)
		case 0:
		default:
			in = ""
		}
		return false
	})
	return names, err
}

// GoConst gives the value of a constant of a Go package that is an integer. ErrNone: the file does not tell of it.
func (f *File) GoConst(name string) (v int64, err error) {
	pkg := name
	if i := strings.LastIndexByte(name, '.'); i > strings.LastIndexByte(name, '/') {
		pkg = name[:i]
	}
	found := false
	err = f.inUnits(pkg, func(e *dwarf.Entry) bool {
		if e.Tag == dwarf.TagConstant && e.Val(dwarf.AttrName) == name {
			v, found = e.Val(dwarf.AttrConstValue).(int64)
		}
		return found
	})
	if err == nil && !found {
		err = fmt.Errorf("constant %q: %w", name, ErrNone)
	}
	return v, err
}

// inUnits visits the entries of the Go units of a name, but for what is in functions, until visit says that it has all. Tag 0 ends the members of a type.
// What is damaged of a unit is passed over.
func (f *File) inUnits(name string, visit func(*dwarf.Entry) bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.walk()
	if err := f.indexUnits(w); err != nil {
		return err
	}
	for i := range f.units {
		u := &f.units[i]
		if u.root == nil || u.lang() != LangGo || u.root.Val(dwarf.AttrName) != name {
			continue
		}
		_, r, err := w.at(u.first)
		for err == nil {
			var e *dwarf.Entry
			if e, err = w.next(r); err != nil || e == nil || e.Offset >= u.end {
				break
			}
			if visit(e) {
				return nil
			}
			if e.Tag == dwarf.TagSubprogram && e.Children {
				r.SkipChildren()
			}
		}
		if errors.Is(err, ErrLimit) {
			return err
		}
	}
	return nil
}
