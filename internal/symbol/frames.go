package symbol

import (
	"slices"

	"kprobes.dev/kprobes/internal/arch/objfile"
)

// Frame is a piece of code with the rule for the frames of calls that it makes.
type Frame struct {
	Start uint64 // link-time address; it ends where the next one starts
	Rule  objfile.FrameRule
}

// Frames gives, in the order of their addresses, the rules by which a walk over the stack finds the callers of the file's code:
// those of .eh_frame and, for what Go's compiler and assembler made, Go's frame pointers. What no table tells of has
// FrameUnknown. lo and hi are the bounds of the code. There is none for a processor whose frames are not known.
func (im *Image) Frames(f func(Frame)) (lo, hi uint64) {
	if len(im.exec) == 0 || im.elf.machine.FramePointer == 0 {
		return 0, 0
	}
	lo, hi = im.exec[0].Start, im.exec[0].End
	for _, r := range im.exec {
		lo, hi = min(lo, r.Start), max(hi, r.End)
	}
	t := im.table()
	w := frameWriter{f: f, m: im.elf.machine, at: lo, g: t.goTab}
	eh := im.ehBytes()
	cies := map[int]*frameCIE{}
	for i := range t.fdes {
		d := &t.fdes[i]
		if d.start < w.at || d.end > hi || d.pos+4 > len(eh.b) { // a double
			continue
		}
		w.gap(d.start)
		w.describe(eh, d, cies)
		w.at = d.end
	}
	w.gap(hi)
	return lo, hi
}

// FrameAt gives the rule that holds at an instruction.
func (im *Image) FrameAt(vaddr uint64) (r objfile.FrameRule) {
	t := im.table()
	if im.elf.machine.FramePointer == 0 {
		return r
	}
	d, ok := t.fdeAt(vaddr)
	if !ok {
		return r
	}
	eh := im.ehBytes()
	if d.pos+4 > len(eh.b) {
		return r
	}
	w := frameWriter{m: im.elf.machine, f: func(f Frame) {
		if f.Start <= vaddr {
			r = f.Rule
		}
	}}
	w.describe(eh, &d, map[int]*frameCIE{})
	return r
}

// ehTable is the contents of .eh_frame.
type ehTable struct {
	b     []byte
	bases ehBases
}

// ehBytes gives them; no bytes where there are none, or they can not be read.
func (im *Image) ehBytes() *ehTable {
	t, err := im.eh.Get(func() (*ehTable, error) {
		b, bases, err := im.elf.ehFrameBytes()
		return &ehTable{b, bases}, err
	})
	if err != nil {
		return &ehTable{}
	}
	return t
}

// SignalFrame says whether an address is in code that the kernel's frames of signals return to.
func (im *Image) SignalFrame(vaddr uint64) bool {
	d, ok := im.table().fdeAt(vaddr)
	return ok && d.signal
}

// frameWriter gives frames out.
type frameWriter struct {
	f    func(Frame)
	m    *objfile.Machine
	g    *goTable
	at   uint64 // everything before is told
	last objfile.FrameRule
	told bool
}

// row gives out the rule that holds from an address on.
func (w *frameWriter) row(at uint64, r objfile.FrameRule) {
	if w.told && r == w.last {
		return
	}
	w.told, w.last = true, r
	w.f(Frame{at, r})
}

// gap tells of code that .eh_frame does not, up to end.
func (w *frameWriter) gap(end uint64) {
	if w.g == nil || w.g.text.Start >= end || w.g.text.End <= w.at {
		if end > w.at {
			w.row(w.at, objfile.FrameRule{})
		}
		return
	}
	if w.g.text.Start > w.at {
		w.row(w.at, objfile.FrameRule{})
	}
	lo := max(w.at, w.g.text.Start)
	w.goRows(lo, min(end, w.g.text.End))
	if end > w.g.text.End {
		w.row(w.g.text.End, objfile.FrameRule{})
	}
}

// goRows tells of Go's code: all that it calls from keeps frame pointers (cmd/compile since Go 1.7, cmd/internal/obj since
// Go 1.21), but not what the linker has taken in.
func (w *frameWriter) goRows(lo, hi uint64) {
	fns := w.g.funcs
	i, _ := slices.BinarySearchFunc(fns, lo-w.g.textStart, func(g goFunc, off uint64) int { return cmpU64(g.entry+g.size, off+1) })
	for ; i < len(fns) && w.g.textStart+fns[i].entry < hi; i++ {
		r := objfile.FrameRule{CFA: objfile.FrameLink}
		if fns[i].foreign {
			r = objfile.FrameRule{}
		}
		w.row(max(lo, w.g.textStart+fns[i].entry), r)
	}
}

// frameCIE is what the rules of a CIE's frame descriptions begin with.
type frameCIE struct {
	cie
	code  uint64 // alignment factors
	data  int64
	start frameState
}

// frameState is what call frame instructions have told so far.
type frameState struct {
	reg  uint64 // the CFA's register
	off  int64
	expr string // the CFA's expression; "": it has a register
	fp   frameReg
	ret  frameReg
}

// frameReg is where a register of the caller is.
type frameReg struct {
	kind regKind
	off  int64
	expr string
}

type regKind uint8

const (
	regSame      regKind = iota // where it is
	regUndefined                // it is lost
	regOffset                   // at off from the CFA
	regExpr                     // at what the expression gives
	regOther
)

// describe gives out the rules of a frame description.
func (w *frameWriter) describe(eh *ehTable, d *fde, cies map[int]*frameCIE) {
	rec, idPos, next := ehRecord(eh.b, d.pos)
	if next == 0 {
		w.row(d.start, objfile.FrameRule{})
		return
	}
	c := &cursor{b: rec, pos: idPos}
	at := idPos - int(c.u32())
	ci := cies[at]
	if ci == nil {
		ci = w.parseCIE(eh.b, at)
		cies[at] = ci
	}
	c.encoded(ci.enc, eh.bases)
	c.encodedValue(ci.enc & 0x0f)
	if ci.hasAug {
		c.take(int(c.uleb()))
	}
	if !ci.ok || c.bad {
		w.row(d.start, objfile.FrameRule{})
		return
	}
	p := frameProgram{c: c, ci: ci, m: w.m, s: ci.start, at: d.start, bases: eh.bases}
	p.run(func(at uint64, s *frameState) {
		if at < d.end {
			w.row(at, s.rule(w.m))
		}
	})
	if p.c.bad && p.at < d.end {
		w.row(p.at, objfile.FrameRule{})
	}
}

// parseCIE takes the CIE at pos with its first instructions.
func (w *frameWriter) parseCIE(b []byte, pos int) *frameCIE {
	if pos < 0 {
		return &frameCIE{}
	}
	ci := &frameCIE{}
	var c *cursor
	if ci.cie, c = openCIE(b, pos, ci); !ci.ok {
		return ci
	}
	p := frameProgram{c: c, ci: ci, m: w.m}
	p.run(func(uint64, *frameState) {})
	ci.start, ci.ok = p.s, !c.bad
	return ci
}

// rule is what the state tells a walk over the stack.
func (s *frameState) rule(m *objfile.Machine) objfile.FrameRule {
	var r objfile.FrameRule
	switch {
	case s.expr == m.SignalCFA && m.SignalCFA != "":
		return objfile.FrameRule{CFA: objfile.FrameSignal}
	case s.ret.kind == regUndefined:
		return objfile.FrameRule{CFA: objfile.FrameEnd}
	case s.ret.kind != regOffset || s.ret.off != -int64(m.Pushes):
		return r
	case s.expr != "":
		off, ok := s.indirect(m)
		if !ok {
			return r
		}
		r.CFA, r.Off = objfile.FrameAtFP, off
	case s.reg == m.FrameSP:
		r.CFA = objfile.FrameBySP
	case s.reg == m.FramePointer:
		r.CFA = objfile.FrameByFP
	default:
		return r
	}
	if s.expr == "" {
		if r.Off = int32(s.off); int64(r.Off) != s.off {
			return objfile.FrameRule{}
		}
	}
	r.FP, r.FPOff = s.fp.place(m)
	return r
}

// indirect takes the expression DW_OP_bregN off, DW_OP_deref of the frame pointer: compilers make it where they align the stack.
func (s *frameState) indirect(m *objfile.Machine) (int32, bool) {
	const deref = 0x06
	c := &cursor{b: []byte(s.expr)}
	if uint64(c.u8()) != opBreg+m.FramePointer {
		return 0, false
	}
	off := c.sleb()
	ok := c.u8() == deref && !c.bad && c.pos == len(c.b) && int64(int32(off)) == off
	return int32(off), ok
}

const opBreg = 0x70 // DW_OP_breg0

// place is where the caller's frame pointer is.
func (r *frameReg) place(m *objfile.Machine) (objfile.FrameFP, int32) {
	switch {
	case r.kind == regSame:
		return objfile.FPSame, 0
	case r.kind == regOffset && int64(int32(r.off)) == r.off:
		return objfile.FPAtCFA, int32(r.off)
	case r.kind == regExpr:
		c := &cursor{b: []byte(r.expr)}
		if uint64(c.u8()) == opBreg+m.FramePointer {
			if off := c.sleb(); !c.bad && c.pos == len(c.b) && int64(int32(off)) == off {
				return objfile.FPAtFP, int32(off)
			}
		}
	}
	return objfile.FPLost, 0
}
