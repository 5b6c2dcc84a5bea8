package debuginfo

import (
	"debug/dwarf"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// attrGoRuntimeType is where the descriptor of a type of Go is, in bytes from the symbol runtime.types (DW_AT_go_runtime_type,
// cmd/internal/dwarf).
const attrGoRuntimeType = dwarf.Attr(0x2904)

// GoType is a type of a Go program, and where what an interface has of it is.
type GoType struct {
	Type
	Descriptor uint64 // bytes from runtime.types; never 0
}

// NoTypeError says that no type of Go has a name, and which types have one that ends alike.
type NoTypeError struct {
	Name    string
	Similar []string // at most maxSimilar
}

func (e *NoTypeError) Error() string {
	if len(e.Similar) > 0 {
		return fmt.Sprintf("no type is called %q; there is %s", e.Name, strings.Join(e.Similar, ", "))
	}
	return fmt.Sprintf("no value of a type that is called %q is ever in an interface; a name begins with the path of its package, as in *net/http.response", e.Name)
}

const (
	maxSimilar = 6
	// maxGoTypes bounds the types of Go that a File remembers.
	maxGoTypes = 1 << 12
)

// GoType finds a type of Go that values in interfaces may have, by its name with the path of its package: "*net/http.response",
// "main.Pair[int,string]". Dots of a path may stand as they are, or as %2e, as in symbols. Errors: *NoTypeError, ErrLimit.
func (f *File) GoType(name string) (GoType, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t, ok := f.goTypes[name]; ok {
		return t, nil
	}
	w := f.walk()
	if err := f.indexUnits(w); err != nil {
		return GoType{}, err
	}
	s := goSearch{w: w, name: name, base: baseName(name)}
	for _, first := range []bool{true, false} { // the linker puts all types into the unit of package runtime
		for i := range f.units {
			u := &f.units[i]
			if u.lang() != LangGo || !u.root.Children || first != (u.root.Val(dwarf.AttrName) == "runtime") {
				continue
			}
			if err := s.unit(u); err != nil {
				return GoType{}, err
			}
			if s.found.known {
				if f.goTypes == nil || len(f.goTypes) >= maxGoTypes {
					f.goTypes = map[string]GoType{}
				}
				f.goTypes[name] = s.found
				return s.found, nil
			}
		}
	}
	return GoType{}, &NoTypeError{Name: name, Similar: s.similar}
}

// goSearch looks for a type of Go.
type goSearch struct {
	w          *walk
	name, base string
	found      GoType
	similar    []string
}

// unit looks at the types of a unit.
func (s *goSearch) unit(u *unit) error {
	_, r, err := s.w.at(u.first)
	if err != nil {
		return nil // this one is damaged
	}
	err = s.w.children(r, func(e *dwarf.Entry) error {
		at, _ := e.Val(attrGoRuntimeType).(uint64)
		name, ok := e.Val(dwarf.AttrName).(string)
		if at == 0 || !ok {
			return nil
		}
		switch plain := strings.ReplaceAll(name, "%2e", "."); {
		case name == s.name || plain == s.name:
			s.found = GoType{Type: Type{f: s.w.f, off: e.Offset, known: true}, Descriptor: at}
			return errFound
		case len(s.similar) < maxSimilar && baseName(plain) == s.base && !slices.Contains(s.similar, plain):
			s.similar = append(s.similar, plain)
		}
		return nil
	})
	if errors.Is(err, ErrLimit) {
		return err
	}
	return nil
}

// baseName is a type's name without its package and what is made of it: response of *net/http.response.
func baseName(name string) string {
	name, _, _ = strings.Cut(name, "[")
	return name[strings.LastIndexAny(name, "./*")+1:]
}

// Interface says whether a type is an interface of Go, and whether it has methods: its first word then leads to a table (runtime.iface),
// else to the type (runtime.eface).
func (t Type) Interface() (is, methods bool, err error) {
	sh, err := t.Shape()
	if err != nil || sh.GoKind != reflect.Interface || sh.Kind != Struct || sh.Size != 16 {
		return false, false, err
	}
	fs, err := t.Fields()
	if err != nil || len(fs) != 2 {
		return false, false, err
	}
	return true, fs[0].Name == "tab", nil
}

// maxDirect bounds structs and arrays around a pointer.
const maxDirect = 16

// ErrUnsure says that versions of Go have a value in an interface in different ways: itself, or its address.
var ErrUnsure = errors.New("a pointer beside members without a size")

// Direct says whether an interface has the value itself, which is one pointer, and not the value's address (IsDirectIface of
// cmd/compile/internal/types). Errors: ErrUnsure, ErrLimit.
func (t Type) Direct() (bool, error) {
	for range maxDirect {
		sh, err := t.Shape()
		switch {
		case err != nil:
			return false, err
		case sh.Kind == Pointer || sh.Kind == Function:
			return true, nil
		case sh.Size != 8:
			return false, nil
		case sh.Kind == Array && sh.Count == 1:
			t = sh.Elem
			continue
		case sh.Kind != Struct:
			return false, nil
		}
		fs, err := t.Fields()
		if err != nil || len(fs) == 0 {
			return false, err
		}
		if len(fs) > 1 {
			return false, besides(fs)
		}
		t = fs[0].Type
	}
	return false, ErrLimit
}

// besides gives ErrUnsure if one of several members is a pointer and the others have no size.
func besides(fs []Field) error {
	for _, f := range fs {
		sh, err := f.Type.Shape()
		if err != nil {
			return err
		}
		if sh.Size != 8 {
			continue
		}
		direct, err := f.Type.Direct()
		if direct {
			err = ErrUnsure
		}
		return err
	}
	return nil
}
