package debuginfo

import (
	"errors"
	"reflect"
	"testing"
)

// TestPlace reads expressions as they stand at the entry of a function.
func TestPlace(t *testing.T) {
	f := &File{sect: sections{addr: []byte{8: 0x40, 0x10, 0, 0, 0, 0, 0, 0}}}
	u := &unit{version: 5}
	cfa := []byte{opCFA}
	for _, c := range []struct {
		name string
		expr []byte
		base []byte
		want []Piece
	}{
		{"register", []byte{opReg0 + 5}, nil, []Piece{{Kind: PieceReg, Reg: 5}}},
		{"register by number", []byte{opRegx, 33}, nil, []Piece{{Kind: PieceReg, Reg: 33}}},
		{"two registers", []byte{opReg0, opPiece, 8, opReg0 + 3, opPiece, 8}, nil, []Piece{{Kind: PieceReg, Size: 8}, {Kind: PieceReg, Reg: 3, Size: 8}}},
		{"the first half is gone", []byte{opPiece, 4, opReg0 + 1, opPiece, 4}, nil, []Piece{{Size: 4}, {Kind: PieceReg, Reg: 1, Size: 4}}},
		{"above the frame", []byte{opFbreg, 16}, cfa, []Piece{{Kind: PieceCFA, Off: 16}}},
		{"below the frame", []byte{opFbreg, 0x70}, cfa, []Piece{{Kind: PieceCFA, Off: -16}}},
		{"the frame itself", []byte{opCFA}, nil, []Piece{{Kind: PieceCFA}}},
		{"memory at a register", []byte{opBreg0 + 7, 8}, nil, []Piece{{Kind: PieceMem, Reg: 7, Off: 8}}},
		{"a register's value", []byte{opBreg0 + 5, 0, opStackValue}, nil, []Piece{{Kind: PieceReg, Reg: 5}}},
		{"memory at an address", []byte{opAddr, 0x10, 0x40, 0, 0, 0, 0, 0, 0}, nil, []Piece{{Kind: PieceAddr, Value: 0x4010}}},
		{"and more", []byte{opAddr, 0x10, 0x40, 0, 0, 0, 0, 0, 0, opPlusUconst, 8}, nil, []Piece{{Kind: PieceAddr, Value: 0x4018, Off: 8}}},
		{"value at the entry", []byte{opEntryValue, 1, opReg0 + 4, opStackValue}, nil, []Piece{{Kind: PieceReg, Reg: 4}}},
		{"the same of GNU", []byte{opGNUEntry, 1, opReg0 + 4, opStackValue}, nil, []Piece{{Kind: PieceReg, Reg: 4}}},
		{"small constant", []byte{opLit0 + 7, opStackValue}, nil, []Piece{{Kind: PieceConst, Value: 7}}},
		{"negative constant", []byte{opConst1u + 1, 0xfe, opStackValue}, nil, []Piece{{Kind: PieceConst, Value: ^uint64(1)}}},
		{"constant of 2 bytes", []byte{opConst1u + 2, 0xfe, 0xff, opStackValue}, nil, []Piece{{Kind: PieceConst, Value: 0xfffe}}},
		{"bytes of a constant", []byte{opImplicit, 4, 1, 2, 3, 4}, nil, []Piece{{Kind: PieceConst, Value: 0x04030201}}},
		{"nothing", nil, nil, nil},
	} {
		got, err := f.place(u, c.expr, frame{base: c.base})
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
	for name, expr := range map[string][]byte{
		"a local of a frame register":    {opFbreg, 0x70},
		"a sum":                          {opBreg0, 0, opBreg0 + 1, 0, 0x22},
		"a register's value and more":    {opBreg0, 8, opStackValue},
		"an operand that is cut off":     {opAddr, 1, 2},
		"pieces of bits":                 {opReg0, opBitPiece, 8, 0},
		"a piece of no bytes":            {opReg0, opPiece, 0},
		"a piece without an end":         {opReg0, opPiece},
		"a constant that is an address":  {opLit0 + 1},
		"a large constant":               {opImplicit, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9},
		"an entry value of memory":       {opEntryValue, 2, opBreg0, 0, opStackValue},
		"an entry value without an end":  {opEntryValue, 200, opReg0},
		"an entry value that is a place": {opEntryValue, 1, opReg0},
		"an unknown operation":           {0xe0},
		"an index without a table":       {opAddrx, 1},
	} {
		if got, err := f.place(u, expr, frame{base: []byte{opBreg0 + 6, 0}}); !errors.Is(err, ErrLocation) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	many := make([]byte, 0, 400)
	for range 130 {
		many = append(many, opReg0, opPiece, 1)
	}
	if _, err := f.place(u, many, frame{}); !errors.Is(err, ErrLimit) {
		t.Errorf("130 pieces: %v", err)
	}
}

// at is a section that is there.
func at(b []byte) *late { return newLate(func(string) ([]byte, error) { return b, nil }, "") }

// TestLists reads location lists of both forms.
func TestLists(t *testing.T) {
	u64 := func(v uint64) []byte {
		b := make([]byte, 8)
		for i := range b {
			b[i] = byte(v >> (8 * i))
		}
		return b
	}
	join := func(bs ...[]byte) (out []byte) {
		for _, b := range bs {
			out = append(out, b...)
		}
		return out
	}
	old := join(
		u64(0), u64(4), []byte{1, 0, opReg0 + 5},
		u64(1<<64-1), u64(0x1000),
		u64(4), u64(9), []byte{1, 0, opReg0 + 3},
		u64(0), u64(0))
	list := join(
		[]byte{lleViewPair, 0, 1},
		[]byte{lleOffsetPair, 0, 4, 1, opReg0 + 5},
		[]byte{lleBase}, u64(0x1000),
		[]byte{lleOffsetPair, 4, 9, 1, opReg0 + 3},
		[]byte{lleStartEnd}, u64(0x2000), u64(0x2004), []byte{1, opReg0 + 2},
		[]byte{lleStartLength}, u64(0x3000), []byte{8, 1, opReg0 + 1},
		[]byte{lleDefault, 1, opReg0},
		[]byte{lleEnd})
	f := &File{sect: sections{loc: at(old), loclists: at(list)}}
	for _, c := range []struct {
		version int
		pc      uint64
		want    int
	}{
		{4, 0, opReg0 + 5},
		{4, 3, opReg0 + 5},
		{4, 4, 0},
		{4, 0x1004, opReg0 + 3},
		{4, 0x1009, 0},
		{5, 0, opReg0 + 5},
		{5, 3, opReg0 + 5},
		{5, 0x1004, opReg0 + 3},
		{5, 0x1009, opReg0},
		{5, 0x2003, opReg0 + 2},
		{5, 0x3007, opReg0 + 1},
		{5, 0x3008, opReg0},
	} {
		u := &unit{version: c.version}
		read := f.list
		if c.version < 5 {
			read = f.oldList
		}
		b, err := read(u, 0, c.pc)
		if err != nil || c.want == 0 && b != nil || c.want != 0 && (len(b) != 1 || int(b[0]) != c.want) {
			t.Errorf("version %d at 0x%x: % x, %v; want %x", c.version, c.pc, b, err, c.want)
		}
	}
	for n := range len(list) {
		g := &File{sect: sections{loc: at(old[:min(n, len(old)-1)]), loclists: at(list[:n])}}
		if b, err := g.list(&unit{version: 5}, 0, 0x9000); err == nil {
			t.Errorf("%d bytes of a list: % x", n, b)
		}
		if b, err := g.oldList(&unit{version: 4}, 0, 0x9000); err == nil {
			t.Errorf("%d bytes of an old list: % x", n, b)
		}
	}
	for _, off := range []int64{-1, 1 << 40} {
		if _, err := f.list(&unit{}, off, 0); err == nil {
			t.Errorf("a list at %d", off)
		}
		if _, err := f.oldList(&unit{}, off, 0); err == nil {
			t.Errorf("an old list at %d", off)
		}
	}
}
