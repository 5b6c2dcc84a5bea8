package amd64

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
)

// Vector registers that pass floating-point numbers.
const (
	sysVVectors       = 8
	sysVVectorResults = 2
	goVectors         = 15
)

// regsLeft counts the registers that a convention has given away, and the bytes of the stack above the return address.
type regsLeft struct {
	abi           *abi
	ints, vectors int
	stack         int64
}

// Place tells where values are.
func (a *abi) Place(params, results []arch.Shape) (args, outs []arch.Placement, err error) {
	r := &regsLeft{abi: a}
	switch {
	case a != sysV:
		args = r.placeGo(params)
		r.ints, r.vectors, r.stack = 0, 0, alignUp(r.stack, 8)
		return args, r.placeGo(results), nil
	case len(results) > 1:
		return nil, nil, errno.Errorf(unix.EINVAL, "%d results: %s has one at most", len(results), a.name)
	}
	for i := range results {
		outs = append(outs, r.result(&results[i]))
		if outs[i].Memory {
			r.ints++ // the caller says where it is to be
		}
	}
	for i := range params {
		args = append(args, r.argument(&params[i]))
	}
	return args, outs, nil
}

// placeGo places values as Go does (cmd/compile/abi-internal.md, Function call argument and result passing): all numbers of a
// value in registers, or the value on the stack.
func (r *regsLeft) placeGo(values []arch.Shape) (out []arch.Placement) {
	for i := range values {
		s := &values[i]
		p, ok := r.scalars(s)
		if !ok {
			r.stack = alignUp(r.stack, max(1, s.Align))
			p = arch.Placement{Parts: []arch.ValuePart{{At: r.abi.Stack(), Size: 8}}, Memory: true, Off: 8 + r.stack}
			r.stack += s.Size
		}
		out = append(out, p)
	}
	return out
}

// scalars gives each number of a value a register, if as many are left.
func (r *regsLeft) scalars(s *arch.Shape) (p arch.Placement, ok bool) {
	ints, vs := r.ints, r.vectors
	vectors := goVectors
	if r.abi == goABI {
		vectors = 0
	}
	for _, c := range s.Scalars {
		part := arch.ValuePart{Off: c.Off, Size: c.Size, Vector: c.Float}
		if c.Float {
			vs++
		} else {
			if ints < len(r.abi.args) {
				part.At = fetch.Base{Kind: fetch.BaseReg, Reg: fetch.Reg(r.abi.args[ints])}
			}
			ints++
		}
		p.Parts = append(p.Parts, part)
	}
	if s.Array || ints > len(r.abi.args) || vs > vectors {
		return p, false
	}
	r.ints, r.vectors = ints, vs
	return p, true
}

// class is that of 8 bytes of a value (psABI 3.2.3).
type class uint8

const (
	classNone class = iota // padding
	classInt
	classVector
)

// eightbytes classifies a value; nil: it is passed in memory.
func eightbytes(s *arch.Shape) []class {
	if s.Size > 16 {
		return nil
	}
	cs := make([]class, (s.Size+7)/8)
	for _, c := range s.Scalars {
		if c.Size == 0 || c.Off < 0 || c.Off+c.Size > s.Size || c.Off%c.Size != 0 || c.Float && c.Size > 8 {
			return nil // x87 numbers; what is not aligned
		}
		for i := c.Off / 8; i <= (c.Off+c.Size-1)/8; i++ {
			switch {
			case !c.Float:
				cs[i] = classInt
			case cs[i] == classNone:
				cs[i] = classVector
			}
		}
	}
	return cs
}

// parts places a value in registers, if as many are left.
func (r *regsLeft) parts(s *arch.Shape, words []Reg, vectors int) (p arch.Placement, ok bool) {
	ints, vs := r.ints, r.vectors
	cs := eightbytes(s)
	for n, c := range cs {
		part := arch.ValuePart{Off: int64(8 * n), Size: min(8, s.Size-int64(8*n)), Vector: c == classVector}
		switch c {
		case classNone:
			continue
		case classVector:
			vs++
		default:
			if ints < len(words) {
				part.At = fetch.Base{Kind: fetch.BaseReg, Reg: fetch.Reg(words[ints])}
			}
			ints++
		}
		p.Parts = append(p.Parts, part)
	}
	if cs == nil || ints > len(words) || vs > vectors {
		return p, false
	}
	r.ints, r.vectors = ints, vs
	return p, true
}

// address is the shape of what is passed by its address.
var address = arch.Shape{Size: 8, Align: 8, Scalars: []arch.Scalar{{Size: 8}}}

func (r *regsLeft) argument(s *arch.Shape) arch.Placement {
	switch {
	case s.ByRef:
		p := r.argument(&address)
		p.Memory = true
		return p
	case len(s.Scalars) == 0:
		return arch.Placement{} // an empty class takes no room
	}
	if p, ok := r.parts(s, sysVWords, sysVVectors); ok {
		return p
	}
	return r.onStack(s)
}

// onStack gives a value the next words of the stack.
func (r *regsLeft) onStack(s *arch.Shape) arch.Placement {
	r.stack = alignUp(r.stack, max(8, min(s.Align, 64)))
	at := r.stack
	r.stack += alignUp(s.Size, 8)
	if s.Size > 8 {
		return arch.Placement{Parts: []arch.ValuePart{{At: r.abi.Stack(), Size: 8}}, Memory: true, Off: 8 + at}
	}
	return arch.Placement{Parts: []arch.ValuePart{{At: fetch.Base{Kind: fetch.BaseStack, N: r.abi.stack + int(at/8)}, Size: s.Size}}}
}

func alignUp(n, to int64) int64 { return (n + to - 1) / to * to }

// result places what a function returns. What is in memory is at the address in RAX.
func (r *regsLeft) result(s *arch.Shape) arch.Placement {
	if !s.ByRef {
		if p, ok := (&regsLeft{abi: r.abi}).parts(s, r.abi.results, sysVVectorResults); ok {
			return p
		}
	}
	return arch.Placement{Parts: []arch.ValuePart{{At: fetch.Base{Kind: fetch.BaseReg, Reg: fetch.Reg(r.abi.results[0])}, Size: 8}}, Memory: true}
}
