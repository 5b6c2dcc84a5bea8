package vars

import (
	"errors"
	"fmt"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/objfile"
	"kprobes.dev/kprobes/internal/debuginfo"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
)

// Scope is what can be named at the entry and at the returns of one function, or at an instruction in it.
type Scope struct {
	inside  *objfile.FrameRule // at an instruction: how its frame is found; nil: at the entry and the returns
	file    *debuginfo.File
	machine *objfile.Machine
	fn      *debuginfo.Func
	sym     *symbol.Func
	runtime func(vaddr uint64) uint64 // run-time address of a link-time one
	symbol  func(name string) (addr uint64, err error)
	params  []place
	results []place
}

// place is where a variable is.
type place struct {
	arch.Placement
	why error // it has none
	abi bool  // the calling convention told, not debug information
}

// Options of a Scope.
type Options struct {
	File    *debuginfo.File
	Machine *objfile.Machine
	ABI     arch.ABI
	Runtime func(vaddr uint64) uint64
	Symbol  func(name string) (addr uint64, err error) // run-time address of a symbol of the file
}

// New describes a function. ErrNone: the file does not tell of it.
func New(fn *symbol.Func, o *Options) (*Scope, error) {
	f, err := o.File.Func(fn.Addr)
	if err != nil {
		return nil, err
	}
	s := &Scope{file: o.File, machine: o.Machine, fn: f, sym: fn, runtime: o.Runtime, symbol: o.Symbol}
	s.locate(o.ABI)
	return s, nil
}

// At describes what can be named at the instruction at a link-time address, whose frame is found by a rule. ErrNone: the file does
// not tell of it.
func At(pc uint64, rule objfile.FrameRule, o *Options) (*Scope, error) {
	f, err := o.File.At(pc)
	if err != nil {
		return nil, err
	}
	s := &Scope{inside: &rule, file: o.File, machine: o.Machine, fn: f, runtime: o.Runtime, symbol: o.Symbol}
	for i := range f.Params {
		s.params = append(s.params, s.told(&f.Params[i], o.ABI))
	}
	return s, nil
}

// locate finds the places of parameters and result.
func (s *Scope) locate(abi arch.ABI) {
	args, outs, err := s.convention(abi)
	for i := range s.fn.Params {
		p := s.told(&s.fn.Params[i], abi)
		if p.why != nil && err == nil {
			p = place{Placement: args[i], abi: true}
		} else if p.why != nil {
			p.why = fmt.Errorf("%w; %w", p.why, err)
		}
		s.params = append(s.params, p)
	}
	for i := range s.fn.Results {
		if err != nil {
			s.results = append(s.results, place{why: err})
			continue
		}
		s.results = append(s.results, place{Placement: outs[i], abi: true})
	}
}

var (
	errRust  = errors.New("no convention of Rust says how functions pass arguments")
	errClone = errors.New("the compiler has changed how this copy of the function takes its arguments")
	errGone  = errors.New("it was optimised out")
	errFrame = errors.New("neither unwind tables nor the code tell where its frame is")
)

// convention asks the calling convention for all places.
func (s *Scope) convention(abi arch.ABI) (args, outs []arch.Placement, err error) {
	switch {
	case s.fn.Changed, isClone(s.sym.Name):
		return nil, nil, errClone
	case s.fn.Lang == debuginfo.LangRust:
		return nil, nil, errRust
	}
	params, err := shapesOf(s.fn.Params)
	if err != nil {
		return nil, nil, err
	}
	results, err := shapesOf(s.fn.Results)
	if err != nil {
		return nil, nil, err
	}
	return abi.Place(params, results)
}

// told is the place that debug information gives.
func (s *Scope) told(p *debuginfo.Param, abi arch.ABI) place {
	if p.Why != nil {
		return place{why: p.Why}
	}
	if len(p.At) == 0 {
		return place{why: errGone}
	}
	var out place
	off := int64(0)
	for _, piece := range p.At {
		part := arch.ValuePart{Off: off, Size: int64(piece.Size), Bits: piece.Bits}
		switch piece.Kind {
		case debuginfo.PieceReg:
			r, vector, ok := s.machine.Register(piece.Reg)
			if !ok {
				return place{why: fmt.Errorf("it is in register %d of DWARF, which is not known here", piece.Reg)}
			}
			part.At, part.Vector = fetch.Base{Kind: fetch.BaseReg, Reg: fetch.Reg(r)}, vector
		case debuginfo.PieceConst:
			part.At = fetch.Base{Kind: fetch.BaseImm, Imm: piece.Value}
		case debuginfo.PieceNone:
			off += int64(piece.Size)
			continue
		case debuginfo.PieceAddr:
			part.At = fetch.Base{Kind: fetch.BaseImm, Imm: s.runtime(piece.Value)}
			return place{Placement: arch.Placement{Parts: []arch.ValuePart{part}, Memory: true}}
		case debuginfo.PieceCFA:
			if s.inside != nil && abi != nil && len(p.At) == 1 {
				return s.inFrame(part, piece.Off)
			}
			if piece.Off < 0 || len(p.At) > 1 || abi == nil {
				return place{why: debuginfo.ErrLocation} // a local copy, which is not stored yet
			}
			part.At = abi.Stack()
			return place{Placement: arch.Placement{Parts: []arch.ValuePart{part}, Memory: true, Off: piece.Off + int64(s.machine.Pushes)}}
		case debuginfo.PieceMem:
			r, vector, ok := s.machine.Register(piece.Reg)
			if !ok || vector || s.inside == nil && piece.Reg == int(s.machine.FrameSP) || len(p.At) > 1 {
				return place{why: debuginfo.ErrLocation}
			}
			part.At = fetch.Base{Kind: fetch.BaseReg, Reg: fetch.Reg(r)}
			return place{Placement: arch.Placement{Parts: []arch.ValuePart{part}, Memory: true, Off: piece.Off}}
		default:
			return place{why: debuginfo.ErrLocation}
		}
		if part.Size == 0 {
			part.Size = 8
		}
		off += part.Size
		out.Parts = append(out.Parts, part)
	}
	return out
}

// inFrame is the place off bytes from the canonical frame address.
func (s *Scope) inFrame(part arch.ValuePart, off int64) place {
	reg := s.machine.FrameSP
	switch s.inside.CFA {
	case objfile.FrameBySP:
	case objfile.FrameByFP:
		reg = s.machine.FramePointer
	default:
		return place{why: errFrame}
	}
	r, _, ok := s.machine.Register(int(reg))
	if !ok {
		return place{why: errFrame}
	}
	part.At = fetch.Base{Kind: fetch.BaseReg, Reg: fetch.Reg(r)}
	return place{Placement: arch.Placement{Parts: []arch.ValuePart{part}, Memory: true, Off: int64(s.inside.Off) + off}}
}

// Failed gives the word that is not 0 at a return of a Go function if its last result is an error; nil: it is no error, or it is not known
// where it is.
func (s *Scope) Failed() *fetch.Var {
	i := len(s.fn.Results) - 1
	if i < 0 || s.fn.Lang != debuginfo.LangGo || s.results[i].why != nil {
		return nil
	}
	sh, err := s.fn.Results[i].Type.Shape()
	if err != nil || sh.Name != "error" || sh.Size != 2*wordSize {
		return nil
	}
	c := cursor{s: s, at: s.results[i], result: true}
	p, err := c.part(0, wordSize)
	if err != nil {
		return nil
	}
	v := &fetch.Var{Base: p.At, Result: true}
	if c.at.Memory {
		v.Derefs = []int64{c.at.Off}
	}
	return v
}

// wordSize is the size of a word of Go's interfaces.
const wordSize = 8

// Inlined lists the parameters of the innermost call that was inlined around the instruction.
func (s *Scope) Inlined() []string { return s.fn.Inner }

// Names lists the parameters that have a name, in their order.
func (s *Scope) Names() []string {
	var out []string
	for i := range s.fn.Params {
		if n := s.fn.Params[i].Name; n != "" {
			out = append(out, n)
		}
	}
	return out
}
