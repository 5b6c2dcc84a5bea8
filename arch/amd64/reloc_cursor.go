package amd64

import "fmt"

// Reloc walks over code and moves it, instruction by instruction, to where its Asm
// writes. It is for one goroutine.
type Reloc struct {
	asm   *Asm
	code  []byte
	addr  uint64
	off   int
	opt   RelocOptions
	pairs []AddrPair
	call  bool // an emulated call was written: the region is over
}

// NewReloc starts at the first byte of code, which stands at addr in the target. opt may
// be nil.
func NewReloc(a *Asm, code []byte, addr uint64, opt *RelocOptions) *Reloc {
	r := &Reloc{asm: a, code: code, addr: addr}
	if opt != nil {
		r.opt = *opt
	}
	return r
}

// Addr is the original address of the next instruction.
func (r *Reloc) Addr() uint64 { return r.addr + uint64(r.off) }

// Read is the number of bytes passed so far.
func (r *Reloc) Read() int { return r.off }

// Pairs ties what was written so far to the original.
func (r *Reloc) Pairs() []AddrPair { return r.pairs }

// Peek decodes the next instruction. The error is Decode's.
func (r *Reloc) Peek() (Inst, error) {
	in, err := Decode(r.code[r.off:])
	if err != nil {
		return Inst{}, fmt.Errorf("code at %#x: %w", r.Addr(), err)
	}
	return in, nil
}

// Skip passes the next instruction without writing it. The error is Decode's.
func (r *Reloc) Skip() error {
	in, err := r.Peek()
	r.off += int(in.Len)
	return err
}

// Write moves the next instruction. On an error, Decode's or Relocate's, nothing is
// written and the instruction is not passed.
func (r *Reloc) Write() error {
	in, err := r.Peek()
	if err != nil {
		return err
	}
	code := r.code[r.off : r.off+int(in.Len)]
	if r.call {
		return fmt.Errorf("code at %#x: %w", r.Addr(), &RelocError{code, ErrAfterCall, "an emulated call returns to it"})
	}
	pairs, err := Relocate(r.asm, &in, code, r.Addr(), &r.opt)
	if err != nil {
		return fmt.Errorf("code at %#x: %w", r.Addr(), err)
	}
	r.pairs = append(r.pairs, pairs...)
	r.off += len(code)
	r.call = r.emulated(&in)
	return nil
}

// emulated says whether in was moved as a call that returns to the original code.
func (r *Reloc) emulated(in *Inst) bool {
	if r.opt.RealCalls {
		return false
	}
	return in.Kind == KindCallInd || in.Kind == KindCall && in.Rel != 0
}

// Take says how many bytes can be moved from here without writing anything: whole
// instructions, as many as cover need bytes. If they are fewer than need, why says what
// is against the next one.
func (r *Reloc) Take(need int) (n int, why error) {
	try := *r
	try.asm = NewAsm(r.asm.Addr())
	try.pairs = nil
	for try.off-r.off < need {
		if err := try.Write(); err != nil {
			return try.off - r.off, err
		}
	}
	return try.off - r.off, nil
}
