package symbol

import (
	"fmt"
	"path"
	"strings"
)

// Answers says whether MOD may name a file with a base name that is not mapped: by that, or by it
// without version, as Module has it.
func Answers(base, mod string) bool {
	return base == mod || withoutVersion(base, true) == mod || withoutVersion(base, false) == mod
}

// withoutVersion takes the version off the name of a shared object, NAME[-VERSION].so[.VERSION],
// and .so too unless keepSo. Another name stays as it is.
func withoutVersion(name string, keepSo bool) string {
	for at := 1; at < len(name); at++ {
		if !strings.HasPrefix(name[at:], ".so") || !isSoVersion(name[at+len(".so"):]) {
			continue
		}
		bare := name[:at]
		if i := strings.LastIndexByte(bare, '-'); i > 0 && isVersion(bare[i+1:]) {
			bare = bare[:i]
		}
		if keepSo {
			return bare + ".so"
		}
		return bare
	}
	return name
}

// isSoVersion says whether s is empty or numbers with a dot before each: .1.2.3.
func isSoVersion(s string) bool {
	for s != "" {
		rest := strings.TrimLeft(s[1:], digits)
		if s[0] != '.' || len(rest) == len(s)-1 {
			return false
		}
		s = rest
	}
	return true
}

// isVersion says whether s begins with a digit, and has digits and dots only.
func isVersion(s string) bool {
	return s != "" && s[0] != '.' && strings.Trim(s, digits+".") == ""
}

const digits = "0123456789"

// meant says which objects somebody may mean by a name or a path: those with a name like it, or
// all that are mapped.
func meant(name string, mods []*Module) string {
	isPath := strings.Contains(name, "/")
	base := path.Base(name)
	var names []string
	for _, m := range mods {
		whole := m.Name
		if isPath {
			whole = m.Image.Path()
		}
		if len(Nearest(base, []string{m.Name, withoutVersion(m.Name, true)})) > 0 {
			names = append(names, whole)
		}
	}
	if len(names) > 0 {
		return DidYouMean(names[:min(len(names), MaxNearest)])
	}
	return "; mapped: " + modNames(mods)
}

func modNames(mods []*Module) string {
	var names []string
	for i, m := range mods {
		if i == maxListed {
			names = append(names, fmt.Sprintf("… (%d in all)", len(mods)))
			break
		}
		names = append(names, fmt.Sprintf("%q", m.Name))
	}
	return strings.Join(names, ", ")
}
