package codescan

import (
	"runtime"
	"slices"
	"strings"
	"time"

	"kprobes.dev/kprobes/internal/symbol"
)

// Bounds of the search for where a function went.
const (
	inlinedStep  = 4 // bytes: few inlined bodies are shorter
	inlinedMost  = 4 // functions that are named
	inlinedLimit = 5 * time.Second
)

// InlinedInto names functions that have code of another one, a Go function of this program that exists only inlined. The
// runtime's own tables tell, which it takes an address at a time; for other processes nothing is known.
func (s *Scanner) InlinedInto(name string) (into []string) {
	main := s.t.Space().Main()
	if main == nil || !s.can.Own {
		return nil
	}
	end := time.Now().Add(inlinedLimit)
	fns := main.Image.Funcs()
	own := func(fn *symbol.Func) bool { return strings.HasPrefix(fn.Name, packageOf(name)) }
	for _, fn := range append(matching(fns, own, true), matching(fns, own, false)...) {
		if fn.Lang == symbol.LangGo && holdsInlined(main, fn, name) {
			into = append(into, fn.Pretty())
		}
		if len(into) == inlinedMost || time.Now().After(end) {
			break
		}
	}
	return slices.Compact(into)
}

// packageOf is the part of a Go function's name up to its package's end.
func packageOf(name string) string {
	i := strings.LastIndexByte(name, '/') + 1
	if j := strings.IndexByte(name[i:], '.'); j >= 0 {
		return name[:i+j+1]
	}
	return name
}

// matching gives the functions of which is says yes, or no.
func matching(fns []*symbol.Func, is func(*symbol.Func) bool, yes bool) []*symbol.Func {
	return slices.DeleteFunc(slices.Clone(fns), func(fn *symbol.Func) bool { return is(fn) != yes })
}

// holdsInlined says whether a function's code has some of another's, inlined.
func holdsInlined(m *symbol.Module, fn *symbol.Func, name string) bool {
	if fn.Name == name {
		return false
	}
	for at := m.Runtime(fn.Addr); at < m.Runtime(fn.End()); at += inlinedStep {
		if f := runtime.FuncForPC(uintptr(at)); f != nil && f.Name() == name {
			return true
		}
	}
	return false
}
