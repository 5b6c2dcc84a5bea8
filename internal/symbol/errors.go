package symbol

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// Reasons that a caller may want to tell apart.
var (
	// ErrFormat is in the chain of every error about a file that is not a usable ELF
	// file: foreign, truncated, or contradicting itself.
	ErrFormat = errors.New("not a usable ELF file")
	// ErrLimit is in the chain when a table is larger than Options.MaxSize.
	ErrLimit = errors.New("larger than the limit")
	// ErrNotMapped is in the chain when an address belongs to no loadable segment, or to
	// none that is executable where code is asked for.
	ErrNotMapped = errors.New("address not mapped")
	// ErrNoModule is in the chain when no mapped object has the name asked for.
	ErrNoModule = errors.New("no such mapped object")
)

// FormatError tells what is wrong with a file, and where.
type FormatError struct {
	Path string // as given to Open
	Off  uint64 // file offset or link-time address of the part that is wrong
	What string // the part
	Why  string // what is wrong with it
	Err  error  // ErrFormat, ErrLimit, or an error of the reader
}

// Error implements error.
func (e *FormatError) Error() string {
	s := fmt.Sprintf("file %q: %s at 0x%x: %s", e.Path, e.What, e.Off, e.Why)
	if e.Err != nil && e.Err != ErrFormat {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap gives the class of the error and ENOEXEC, the kernel's word for such files.
func (e *FormatError) Unwrap() []error {
	if e.Err == nil || e.Err == ErrFormat {
		return []error{ErrFormat, syscall.ENOEXEC}
	}
	return []error{ErrFormat, e.Err, syscall.ENOEXEC}
}

// NotFoundError says that no symbol has a name. It satisfies errors.Is with ENOENT.
type NotFoundError struct {
	Name     string
	Where    string   // the file or module searched, "" for all of a Space
	Reason   string   // why a symbol of that name does not count; "" if there is none
	Variable bool     // Reason: it is a variable
	Similar  []string // at most 5 names that may be meant
	Problems []error  // tables that could not be read, where the name might have been
}

// Error implements error.
func (e *NotFoundError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "symbol %q not found", e.Name)
	if e.Where != "" {
		fmt.Fprintf(&b, " in %q", e.Where)
	}
	if e.Reason != "" {
		b.WriteString(": " + e.Reason)
	}
	b.WriteString(DidYouMean(e.Similar))
	for _, p := range e.Problems {
		fmt.Fprintf(&b, "; not searched: %v", p)
	}
	return b.String()
}

// Unwrap makes errors.Is(err, ENOENT) true.
func (e *NotFoundError) Unwrap() error { return syscall.ENOENT }

// Candidate is one of several symbols that a name may mean.
type Candidate struct {
	Name   string // raw name
	File   string // source file where the table tells it
	Module string // base name of the ELF file
	Addr   uint64 // link-time address
	Size   uint64 // bytes
}

// AmbiguousError says that a name stands for several addresses. It satisfies errors.Is
// with EADDRNOTAVAIL and EINVAL, what the kernel says for a symbol that is not unique.
type AmbiguousError struct {
	Name       string
	Candidates []Candidate // sorted by address
}

// maxListed bounds the candidates that an error's text lists.
const maxListed = 20

// Error implements error.
func (e *AmbiguousError) Error() string {
	var b strings.Builder
	several := len(e.Candidates) > 0 && e.Candidates[0].Module != e.Candidates[len(e.Candidates)-1].Module
	how := "one of its addresses"
	if several {
		how = "MODULE:SYMBOL or MODULE:ADDRESS"
	}
	fmt.Fprintf(&b, "symbol %q is not unique, give %s instead:", e.Name, how)
	for i, c := range e.Candidates {
		if i == maxListed {
			fmt.Fprintf(&b, " and %d more", len(e.Candidates)-i)
			break
		}
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteByte(' ')
		if several {
			b.WriteString(c.Module + ":")
		}
		fmt.Fprintf(&b, "0x%x (%q, %d bytes", c.Addr, c.Name, c.Size)
		if c.File != "" {
			fmt.Fprintf(&b, ", %q", c.File)
		}
		b.WriteString(")")
	}
	return b.String()
}

// Unwrap gives the errnos.
func (e *AmbiguousError) Unwrap() []error { return []error{syscall.EADDRNOTAVAIL, syscall.EINVAL} }

// PlaceError says why a place does not name an instruction of the address space. It
// satisfies errors.Is with EINVAL and with Err.
type PlaceError struct {
	Place string
	Why   string
	Err   error // nil, ErrNotMapped or ErrNoModule
}

// Error implements error.
func (e *PlaceError) Error() string { return fmt.Sprintf("place %q: %s", e.Place, e.Why) }

// Unwrap gives the class of the error and EINVAL.
func (e *PlaceError) Unwrap() []error {
	if e.Err == nil {
		return []error{syscall.EINVAL}
	}
	return []error{e.Err, syscall.EINVAL}
}

// notFound makes the error for a name without function.
func (im *Image) notFound(name string) error {
	t := im.table()
	e := &NotFoundError{Name: name, Where: im.elf.path, Problems: slices.Clone(t.problems)}
	if _, kind, of := splitSuffix(name); kind >= suffixPart && len(t.named(name)) > 0 {
		e.Reason = fmt.Sprintf("it is a part of %q, not a function: give an address in it instead", of)
		return e
	}
	im.dataOnce.Do(im.indexData)
	if found := im.objects(name); len(found) > 0 {
		e.Reason = fmt.Sprintf("it is a variable of %d bytes, not a function: @%s reads it, as an argument of a probe on code", found[0].size, name)
		e.Variable = true
		return e
	}
	e.Similar = t.similar(name)
	switch {
	case native.Load() == nil && strings.Contains(name, "::"):
		e.Reason = "demangled C++ and Rust names are known only to a program that imports _ \"" + nativePath + "\""
	case len(t.names) == 0:
		e.Reason = "the file has no names of functions: give an address instead"
	}
	return e
}
