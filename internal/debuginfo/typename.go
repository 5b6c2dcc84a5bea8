package debuginfo

import "fmt"

// Name is the type as C writes it before a variable's name, without qualifiers: int, char*. A function's is "func",
// one without a name "struct", "union" or "?".
func (t Type) Name() (string, error) {
	suffix := ""
	for range maxPeel {
		s, err := t.Shape()
		switch {
		case err != nil:
			return "", err
		case s.Name != "":
			return s.Name + suffix, nil
		}
		switch s.Kind {
		case Pointer:
			suffix = "*" + suffix
		case Reference:
			suffix = "&" + suffix
		case Array:
			if suffix = "[]" + suffix; s.Count >= 0 {
				suffix = fmt.Sprintf("[%d]%s", s.Count, suffix[2:])
			}
		default:
			return s.Kind.word() + suffix, nil
		}
		t = s.Elem
	}
	return "?" + suffix, nil
}

// word is what stands for a type without a name.
func (k Kind) word() string {
	switch k {
	case Void:
		return "void"
	case Struct:
		return "struct"
	case Union:
		return "union"
	case Enum:
		return "enum"
	case Function:
		return "func"
	}
	return "?"
}
