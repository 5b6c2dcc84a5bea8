package engine

import (
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
)

// Bounds of the search for where a function went.
const (
	inlinedStep  = 4 // bytes: few inlined bodies are shorter
	inlinedMost  = 4 // functions that are named
	inlinedLimit = 5 * time.Second
)

// inlined says where a Go function of this program went that exists only inlined; err is
// the error for a name that no function has. The runtime's own tables tell, which it takes
// an address at a time; for other processes nothing is known.
func (c *Core) inlined(name string, err error) error {
	main := c.t.Space().Main()
	if main == nil || !c.can.Own {
		return err
	}
	var into []string
	end := time.Now().Add(inlinedLimit)
	fns := main.Image.Funcs()
	own := func(fn *symbol.Func) bool { return strings.HasPrefix(fn.Name, packageOf(name)) }
	for _, fn := range append(matching(fns, own, true), matching(fns, own, false)...) {
		if isGo(fn) && holdsInlined(main, fn, name) {
			into = append(into, printable(fn.Pretty()))
		}
		if len(into) == inlinedMost || time.Now().After(end) {
			break
		}
	}
	if len(into) == 0 {
		return err
	}
	return errno.Errorf(unix.ENOENT, "%s exists only inlined, in %s: probe there, or mark it //go:noinline", printable(name), strings.Join(slices.Compact(into), ", "))
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
