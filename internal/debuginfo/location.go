package debuginfo

import (
	"debug/dwarf"
	"errors"
	"fmt"
	mathbits "math/bits"
)

// PieceKind says where a piece of a value is.
type PieceKind uint8

// Kinds of pieces.
const (
	PieceNone  PieceKind = iota // optimised out
	PieceReg                    // in register Reg
	PieceCFA                    // in memory, Off bytes from the canonical frame address
	PieceMem                    // in memory, Off bytes from what register Reg holds
	PieceAddr                   // in memory at the link-time address Value
	PieceConst                  // the constant Value
)

// Piece is where a part of a value is at an instruction. Registers have DWARF's numbers.
type Piece struct {
	Kind  PieceKind
	Reg   int
	Off   int64
	Value uint64
	Bits  int // PieceReg: the low ones that are the value's, the rest is to be taken for 0; 0: all are
	Size  int // bytes; 0: all of the value
}

// ErrLocation says that a place is told in a way that can not be used: by a computation, or for another moment.
var ErrLocation = errors.New("its place is computed")

// Operations of expressions (DWARF 5, 7.7.1).
const (
	opAddr       = 0x03
	opConst1u    = 0x08 // to opConst8s = 0x0f: sizes 1, 2, 4, 8, of each the unsigned one first
	opConstu     = 0x10
	opConsts     = 0x11
	opAnd        = 0x1a
	opPlusUconst = 0x23
	opLit0       = 0x30
	opReg0       = 0x50
	opBreg0      = 0x70
	opRegx       = 0x90
	opFbreg      = 0x91
	opBregx      = 0x92
	opPiece      = 0x93
	opCFA        = 0x9c
	opBitPiece   = 0x9d
	opImplicit   = 0x9e
	opStackValue = 0x9f
	opAddrx      = 0xa1
	opConstx     = 0xa2
	opEntryValue = 0xa3
	opGNUEntry   = 0xf3
)

// maxPieces bounds the pieces of one value.
const maxPieces = 64

// frame is where an expression is read.
type frame struct {
	base   []byte // the function's DW_AT_frame_base
	inside bool   // not when the function is entered: registers hold other values than then
}

// place reads an expression.
func (f *File) place(u *unit, expr []byte, in frame) ([]Piece, error) {
	c := &cursor{b: expr}
	var out []Piece
	for c.pos < len(c.b) {
		if len(out) == maxPieces {
			return nil, fmt.Errorf("more than %d pieces: %w", maxPieces, ErrLimit)
		}
		p, err := f.piece(u, c, in)
		if err != nil {
			return nil, err
		}
		if c.pos < len(c.b) {
			if c.u8() != opPiece {
				return nil, ErrLocation
			}
			size := c.uleb()
			if c.bad || size == 0 || size > 1<<20 {
				return nil, ErrLocation
			}
			p.Size = int(size)
		}
		out = append(out, p)
	}
	if c.bad {
		return nil, ErrLocation
	}
	return out, nil
}

// piece reads up to what ends a piece.
func (f *File) piece(u *unit, c *cursor, in frame) (Piece, error) {
	if c.b[c.pos] == opPiece {
		return Piece{}, nil
	}
	var p Piece
	switch op := c.u8(); {
	case op >= opReg0 && op < opReg0+32:
		return Piece{Kind: PieceReg, Reg: int(op - opReg0)}, nil
	case op == opRegx:
		return Piece{Kind: PieceReg, Reg: int(c.uleb() & 0xffff)}, nil
	case op >= opBreg0 && op < opBreg0+32:
		p = Piece{Kind: PieceMem, Reg: int(op - opBreg0), Off: c.sleb()}
	case op == opBregx:
		p = Piece{Kind: PieceMem, Reg: int(c.uleb() & 0xffff)}
		p.Off = c.sleb()
	case op == opFbreg:
		off := c.sleb()
		switch {
		case len(in.base) == 1 && in.base[0] == opCFA:
			p = Piece{Kind: PieceCFA, Off: off}
		case len(in.base) == 1 && in.inside && in.base[0] >= opReg0 && in.base[0] < opReg0+32:
			p = Piece{Kind: PieceMem, Reg: int(in.base[0] - opReg0), Off: off}
		default:
			return p, ErrLocation // what the frame's register holds at the entry is the caller's
		}
	case op == opCFA:
		p = Piece{Kind: PieceCFA}
	case op == opAddr:
		p = Piece{Kind: PieceAddr, Value: c.u64()}
	case op == opAddrx, op == opConstx:
		v, err := f.address(u, c.uleb())
		if err != nil {
			return p, err
		}
		p = Piece{Kind: PieceAddr, Value: v}
	case op == opEntryValue, op == opGNUEntry:
		if in.inside {
			return p, ErrLocation
		}
		return f.entryValue(u, c)
	case op == opImplicit:
		n := c.uleb()
		if n > 8 {
			return p, ErrLocation
		}
		b := make([]byte, 8)
		copy(b, c.take(int(n)))
		return Piece{Kind: PieceConst, Value: (&cursor{b: b}).u64()}, nil
	default:
		v, ok := constant(op, c)
		if !ok {
			return p, ErrLocation
		}
		return constantPiece(c, v)
	}
	return p.rest(c)
}

// rest reads what follows the place of a piece: what is added, and whether the place is the value itself.
func (p Piece) rest(c *cursor) (Piece, error) {
	for c.pos < len(c.b) && c.b[c.pos] == opPlusUconst {
		c.u8()
		n := int64(c.uleb())
		p.Off += n
		p.Value += uint64(n)
	}
	bits, err := maskOf(c)
	if err != nil {
		return p, err
	}
	if c.pos < len(c.b) && c.b[c.pos] == opStackValue {
		c.u8()
		p, err := valueOf(p)
		if p.Bits = bits; bits != 0 && p.Kind != PieceReg {
			return p, ErrLocation
		}
		return p, err
	}
	if bits != 0 {
		return p, ErrLocation
	}
	return p, nil
}

// maskOf reads the constants that a value is masked with: how many of its low bits are left, 0 where it is not masked. So
// LLVM tells of what is narrower than its register.
func maskOf(c *cursor) (bits int, err error) {
	for c.pos < len(c.b) {
		at := *c
		v, ok := constant(at.u8(), &at)
		if !ok || at.pos == len(at.b) || at.u8() != opAnd {
			break
		}
		n := mathbits.Len64(v)
		if v == 0 || v&(v+1) != 0 {
			return 0, ErrLocation
		}
		if bits == 0 || n < bits {
			bits = n
		}
		*c = at
	}
	if bits == 64 {
		bits = 0
	}
	return bits, nil
}

// valueOf makes what is an address the value itself.
func valueOf(p Piece) (Piece, error) {
	switch {
	case p.Kind == PieceMem && p.Off == 0:
		return Piece{Kind: PieceReg, Reg: p.Reg}, nil
	case p.Kind == PieceAddr:
		return Piece{Kind: PieceConst, Value: p.Value}, nil // a link-time address
	}
	return Piece{}, ErrLocation
}

// entryValue reads what a register held when the function was entered, which it still does.
func (f *File) entryValue(u *unit, c *cursor) (Piece, error) {
	n := c.uleb()
	if n > 16 {
		return Piece{}, ErrLocation
	}
	b := c.take(int(n))
	if len(b) == 0 {
		return Piece{}, ErrLocation
	}
	in := &cursor{b: b}
	switch op := b[0]; {
	case op >= opReg0 && op < opReg0+32, op == opRegx:
	default:
		return Piece{}, ErrLocation
	}
	p, err := f.piece(u, in, frame{})
	if err != nil || in.pos != len(b) || c.u8() != opStackValue {
		return Piece{}, ErrLocation
	}
	return p, nil
}

// constant reads the operand of an operation that pushes a constant.
func constant(op uint8, c *cursor) (uint64, bool) {
	switch {
	case op >= opConst1u && op < opConstu:
		size := 1 << ((op - opConst1u) / 2)
		if op&1 != 0 {
			return uint64(c.sint(size)), true
		}
		return c.uint(size), true
	case op == opConstu:
		return c.uleb(), true
	case op == opConsts:
		return uint64(c.sleb()), true
	case op >= opLit0 && op < opReg0:
		return uint64(op - opLit0), true
	}
	return 0, false
}

// constantPiece is a constant that is the value.
func constantPiece(c *cursor, v uint64) (Piece, error) {
	if c.pos == len(c.b) || c.u8() != opStackValue {
		return Piece{}, ErrLocation
	}
	return Piece{Kind: PieceConst, Value: v}, nil
}

// address reads the table of addresses (DWARF 5, .debug_addr).
func (f *File) address(u *unit, i uint64) (uint64, error) {
	if u.root == nil {
		return 0, ErrLocation
	}
	base, ok := u.root.Val(dwarf.AttrAddrBase).(int64)
	size := uint64(len(f.sect.addr))
	if !ok || base < 0 || uint64(base) > size || i >= (size-uint64(base))/8 {
		return 0, ErrLocation
	}
	c := cursor{b: f.sect.addr, pos: int(base) + int(8*i)}
	return c.u64(), nil
}
