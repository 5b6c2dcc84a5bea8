package symbol

import (
	"encoding/binary"
	"sort"
)

// GoLine is a place in the source of a Go program.
type GoLine struct {
	// Func is the function that was inlined there; "" for what belongs to the function that is asked about.
	Func string
	File string
	Line int
}

// Offsets in _func, from Go 1.20 on.
const (
	funcPcfile = 20
	funcPcln   = 24
	funcCU     = 32

	inlTreeData   = 3  // index of the function's data (internal/abi, FUNCDATA_InlTree)
	inlTreeValue  = 2  // index of its table (PCDATA_InlTreeIndex)
	inlinedCall   = 16 // runtime.inlinedCall: u8 id, 3 bytes, i32 name, i32 offset of the call in the function, i32 line
	inlinedName   = 4
	inlinedParent = 8
	maxGoInlined  = 256
)

// GoLines tells by the pclntab, which stripped programs have too, where in the source the instruction at a link-time address comes
// from: first the place itself, then, outwards, those at which the functions were inlined that it lies in. None: it is not Go's, or
// of a toolchain before Go 1.20.
func (im *Image) GoLines(vaddr uint64) []GoLine {
	t := im.table().goTab
	if t == nil {
		return nil
	}
	i := sort.Search(len(t.funcs), func(i int) bool { return t.textStart+t.funcs[i].entry > vaddr }) - 1
	if i < 0 || vaddr-t.textStart-t.funcs[i].entry >= t.funcs[i].size || t.funcs[i].foreign {
		return nil
	}
	p, err := im.pclnData()
	if err != nil || p.idOff != 40 || i >= p.nfunc {
		return nil
	}
	f := p.at(i)
	if f == nil {
		return nil
	}
	g := goLiner{im: im, p: p, f: f}
	return g.lines(vaddr - t.textStart - t.funcs[i].entry)
}

// goLiner reads what is told of the lines of a function.
type goLiner struct {
	im *Image
	p  *pclnData
	f  []byte // its _func, and what is behind
}

// lines tells of the instruction at an offset in the function.
func (g *goLiner) lines(pc uint64) (out []GoLine) {
	tree, hasTree := g.tree()
	for range maxGoInlined {
		l, ok := g.line(pc)
		if !ok {
			return nil
		}
		out = append(out, l)
		n := int64(-1)
		if hasTree {
			n = g.data(inlTreeValue, pc)
		}
		if n < 0 {
			return out
		}
		name, parent, ok := g.im.inlinedCallAt(tree, n)
		if !ok {
			return out
		}
		out[len(out)-1].Func, ok = cstring(g.p.names, uint64(name))
		if !ok {
			return nil
		}
		pc = uint64(parent)
	}
	return out
}

// line is the file and the line of an instruction.
func (g *goLiner) line(pc uint64) (l GoLine, ok bool) {
	le := binary.LittleEndian
	file, okFile := g.p.value(le.Uint32(g.f[funcPcfile:]), pc)
	line, okLine := g.p.value(le.Uint32(g.f[funcPcln:]), pc)
	if !okFile || !okLine || file < 0 || line <= 0 {
		return l, false
	}
	at := 4 * (uint64(le.Uint32(g.f[funcCU:])) + uint64(file))
	if at+4 > uint64(len(g.p.cus)) {
		return l, false
	}
	l.File, ok = cstring(g.p.files, uint64(le.Uint32(g.p.cus[at:])))
	l.Line = int(line)
	return l, ok
}

// data is a value of one of the function's tables; -1: there is none.
func (g *goLiner) data(table int, pc uint64) int64 {
	le := binary.LittleEndian
	at := funcSize + 4*uint64(table)
	if uint32(table) >= le.Uint32(g.f[funcNpcdata:]) || at+4 > uint64(len(g.f)) {
		return -1
	}
	if v, ok := g.p.value(le.Uint32(g.f[at:]), pc); ok {
		return v
	}
	return -1
}

// tree is the link-time address of the calls that were inlined in the function.
func (g *goLiner) tree() (uint64, bool) {
	le := binary.LittleEndian
	at := funcSize + 4*uint64(le.Uint32(g.f[funcNpcdata:])) + 4*inlTreeData
	if g.f[funcSize-1] <= inlTreeData || at+4 > uint64(len(g.f)) {
		return 0, false
	}
	off := le.Uint32(g.f[at:])
	base := g.im.funcdataBase()
	return base + uint64(off), off != noFuncdata && base != 0
}

// inlinedCallAt reads an entry of a tree.
func (im *Image) inlinedCallAt(tree uint64, n int64) (name, parent uint32, ok bool) {
	b, err := im.elf.vaddrBytes(tree+uint64(n)*inlinedCall, inlinedCall, "inlined calls")
	if err != nil {
		return 0, 0, false
	}
	le := binary.LittleEndian
	return le.Uint32(b[inlinedName:]), le.Uint32(b[inlinedParent:]), true
}

// value reads what a pc-value table (see pcEnd) has for an offset in its function.
func (p *pclnData) value(off uint32, target uint64) (int64, bool) {
	if off == 0 || uint64(off) >= uint64(len(p.pctab)) {
		return 0, false
	}
	c := &cursor{b: p.pctab, pos: int(off)}
	v, pc := int64(-1), uint64(0)
	for first := true; ; first = false {
		d := c.uleb()
		if d == 0 && !first || c.bad {
			return 0, false
		}
		v += int64(d>>1) ^ -int64(d&1)
		if pc += c.uleb() * p.quantum; c.bad {
			return 0, false
		}
		if target < pc {
			return v, true
		}
	}
}
