package codescan

import (
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
)

// Function is one function of the target, with its code as it was read.
type Function struct {
	Name  string
	Start uint64
	Image *symbol.Image
	Code  arch.Function    // its analysis
	Keep  []interval.Range // bytes that must stay where they are

	body  []byte // its code, and a few bytes of what follows
	parts []arch.Part
}

// maxFunction bounds the functions that are analysed, in bytes.
const maxFunction = 4 << 20

// Function reads and analyses the function that holds a place.
func (s *Scanner) Function(r symbol.Resolved) (f Function, err error) {
	m := r.Module
	f = Function{Name: r.Func.Pretty(), Start: m.Runtime(r.Func.Addr), Image: m.Image}
	if r.Func.Size > maxFunction {
		return f, errno.Errorf(unix.EFBIG, "%s has %d bytes: more than the %d that are analysed", r.Func, r.Func.Size, maxFunction)
	}
	x := s.text(m.Image)
	af := new(arch.Func)
	*af = s.around
	af.Name, af.Addr, af.Go, af.ABI0 = f.Name, f.Start, r.Func.Lang == symbol.LangGo, r.Func.ABI0 || r.Func.Asm
	if f.body, err = x.body(r.Func); err != nil {
		return f, fmt.Errorf("code of %s: %w", f.Name, err)
	}
	n := r.Func.Size
	af.Code, af.After = f.body[:n:n], f.body[n:]
	if err := addParts(af, x, r); err != nil {
		return f, err
	}
	if err := addEntries(af, x, r); err != nil {
		return f, err
	}
	f.Keep = af.Keep
	if t := s.can.Describer; t != nil {
		if err := t.Describe(r, af); err != nil {
			return f, err
		}
	}
	f.parts = af.Parts
	f.Code, err = s.t.Arch().Analyse(af)
	return f, err
}

// addParts adds the pieces that the compiler moved away.
func addParts(af *arch.Func, x *text, r symbol.Resolved) error {
	m := r.Module
	parts := m.Image.Parts(r.Func)
	namesakes := len(parts) > 0 && m.Image.Namesakes(r.Func)
	for _, p := range parts {
		code := make([]byte, p.Size)
		if err := x.read(p.Addr, code); err != nil {
			return fmt.Errorf("code of %s: %w", p.Name, err)
		}
		if lo := m.Runtime(p.Addr); namesakes && !native.JumpsInto(af.Code, af.Addr, lo, lo+p.Size) {
			continue // it is another's part
		}
		af.Parts = append(af.Parts, arch.Part{Addr: m.Runtime(p.Addr), Code: code})
	}
	return nil
}

// addEntries adds where code outside enters the function, and the bytes that must stay where they are.
func addEntries(af *arch.Func, x *text, r symbol.Resolved) error {
	m := r.Module
	pads, err := m.Image.LandingPads(r.Func)
	if err != nil {
		return fmt.Errorf("exception table of %s: %w", af.Name, err)
	}
	for _, p := range pads {
		af.Entries = append(af.Entries, m.Runtime(p))
	}
	if x.keepErr != nil {
		return fmt.Errorf("restartable sequences of %s: %w", m.Name, x.keepErr)
	}
	keep, entries := x.kept(m, r.Func)
	af.Keep, af.Entries = keep, append(af.Entries, entries...)
	for _, at := range x.entered(r.Func) {
		af.Entries = append(af.Entries, m.Runtime(at))
	}
	return nil
}

// Text gives n bytes of the function's code as it was when it was analysed. They do not change.
func (f *Function) Text(addr uint64, n int) ([]byte, error) {
	if b, ok := cutOut(f.body, addr-f.Start, n); ok {
		return b, nil
	}
	for _, p := range f.parts {
		if b, ok := cutOut(p.Code, addr-p.Addr, n); ok {
			return b, nil
		}
	}
	return nil, errno.Errorf(unix.EFAULT, "0x%x: %d bytes there are not all of the function", addr, n)
}

func cutOut(code []byte, off uint64, n int) ([]byte, bool) {
	if off >= uint64(len(code)) || uint64(n) > uint64(len(code))-off {
		return nil, false
	}
	return code[off:][:n:n], true
}

// DropCode drops the code and its analysis. What says which function it is stays.
func (f *Function) DropCode() { f.Code, f.body, f.parts = nil, nil, nil }
