package symbol

import (
	"debug/dwarf"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"kprobes.dev/kprobes/internal/errno"
)

// Signature is what a file tells about the parameters of one of its Go functions.
type Signature struct {
	// Params are the parameters in the order of the declaration, a method's receiver
	// first, and Results the results; nil where the file has no debug information.
	Params, Results []Param
	// Typed says that there was debug information: Params and Results are complete.
	Typed bool
	// Frame is the number of bytes that a caller reserves for the call above the return
	// address: arguments and results on the stack, and the area for spilled registers. It
	// is known without debug information too; -1 if it is not (assembly).
	Frame int
	// Args describes the parameters as tracebacks need them (ArgsEnd and so on), where there is no
	// debug information; ArgsKnown: it was found.
	Args      []byte
	ArgsKnown bool
	// Problem tells why debug information that is there could not be used, nil else.
	Problem error
}

// Param is a parameter or a result of a Go function.
type Param struct {
	Name string // as declared; the compiler names those without a name ~p0, ~r0 and so on
	// Type is the type's name as the Go linker writes it: with whole import paths, in whose
	// last element a dot is %2e, with uint8 for byte and int32 for rune, with struct tags,
	// and ·N after the name of a type that is declared in a function.
	Type string
	Kind reflect.Kind // Invalid if the file does not tell
	Size int64        // in bytes
}

// Limits on debug information. The entries of one unit share few abbreviations: those of
// the Go toolchain itself take 1,200 bytes.
const (
	maxAbbrev   = 4 << 20   // bytes of .debug_abbrev
	maxAttrs    = 200 << 20 // attributes that are read in search of one function
	maxTypedefs = 8         // typedefs of typedefs; Go writes at most three
	maxParams   = 1 << 12
	maxFuncs    = 4 << 20 // in all units that were searched; chrome has a million
)

// Attributes of Go's own (cmd/internal/dwarf).
const (
	attrGoKind      = dwarf.Attr(0x2900)
	attrGoDictIndex = dwarf.Attr(0x2906)
)

// GoSignature gives what is known of a Go function's parameters: from DWARF (4 or 5, of the
// file or of its separate debug file), else no more than the size of its argument frame.
// Functions of other languages, and instances of generic functions, which take a dictionary
// that is no parameter, give an error that is EOPNOTSUPP.
//
// The debug information is read at the first call and kept until the next garbage
// collection after the last one.
func (im *Image) GoSignature(fn *Func) (*Signature, error) {
	switch {
	case fn.Lang != LangGo:
		return nil, errno.Errorf(syscall.EOPNOTSUPP, "function %q: it is no Go function (%v): the types of its parameters are not Go's", fn, fn.Lang)
	case genericName(fn.Name):
		return nil, genericError(fn)
	}
	sig := &Signature{Frame: im.table().goTab.frame(fn.Addr)}
	dw, err := im.goDWARF()
	if err != nil || dw == nil {
		sig.Problem = err
		sig.Args, sig.ArgsKnown = im.GoArgs(fn)
		return sig, nil
	}
	err = dw.signature(fn, sig)
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return nil, err
	}
	if err != nil {
		*sig = Signature{Frame: sig.Frame, Problem: fmt.Errorf("file %q: debug information of function %q: %w", im.elf.path, fn, err)}
		sig.Args, sig.ArgsKnown = im.GoArgs(fn)
	}
	return sig, nil
}

// genericName tells the names of instances of generic functions: F[...] in the pclntab,
// F[go.shape.int] in symbol tables.
func genericName(name string) bool {
	return strings.Contains(name, "[...]") || strings.Contains(name, "[go.shape.")
}

func genericError(fn *Func) error {
	return errno.Errorf(syscall.EOPNOTSUPP, "function %q: it is an instance of a generic function, which takes a dictionary before its parameters: no Go function has its signature", fn)
}

// frame gives the size of the argument frame of the function at a link-time address, -1 if
// it is not known.
func (t *goTable) frame(addr uint64) int {
	f := t.at(addr)
	if f == nil || f.asm || f.args < 0 {
		return -1
	}
	return int(f.args)
}

// at gives the function that begins at a link-time address; nil: none does.
func (t *goTable) at(addr uint64) *goFunc {
	if t == nil || addr < t.textStart {
		return nil
	}
	i, ok := slices.BinarySearchFunc(t.funcs, addr-t.textStart, func(f goFunc, off uint64) int { return cmpU64(f.entry, off) })
	if !ok {
		return nil
	}
	return &t.funcs[i]
}
