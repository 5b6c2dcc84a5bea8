package symbol

import "kprobes.dev/kprobes/internal/arch/objfile"

// frameProgram runs call frame instructions (DWARF 5, section 6.4.2).
type frameProgram struct {
	c     *cursor
	ci    *frameCIE
	m     *objfile.Machine
	s     frameState
	kept  []frameState
	at    uint64
	bases ehBases
}

// maxKept bounds the states that are remembered at once.
const maxKept = 64

// Call frame instructions (DWARF 5, table 7.29; LSB for those of GNU).
const (
	cfaAdvance       = 0x40 // with the low six bits
	cfaOffset        = 0x80
	cfaRestore       = 0xc0
	cfaNop           = 0x00
	cfaSetLoc        = 0x01
	cfaAdvance1      = 0x02
	cfaAdvance2      = 0x03
	cfaAdvance4      = 0x04
	cfaOffsetExt     = 0x05
	cfaRestoreExt    = 0x06
	cfaUndefined     = 0x07
	cfaSame          = 0x08
	cfaRegister      = 0x09
	cfaRemember      = 0x0a
	cfaRestoreState  = 0x0b
	cfaDef           = 0x0c
	cfaDefReg        = 0x0d
	cfaDefOff        = 0x0e
	cfaDefExpr       = 0x0f
	cfaExpr          = 0x10
	cfaOffsetSF      = 0x11
	cfaDefSF         = 0x12
	cfaDefOffSF      = 0x13
	cfaValOffset     = 0x14
	cfaValOffsetSF   = 0x15
	cfaValExpr       = 0x16
	cfaGNUArgsSize   = 0x2e
	cfaGNUNegOffset  = 0x2f
	cfaPrimary       = 0xc0 // the bits that tell the first three
	cfaPrimaryOprand = 0x3f
)

// run gives the state to row whenever the location advances, and at the end. What is damaged ends it, with c.bad.
func (p *frameProgram) run(row func(at uint64, s *frameState)) {
	for p.c.pos < len(p.c.b) && !p.c.bad {
		op := p.c.u8()
		if to, ok := p.advance(op); ok {
			if to < p.at {
				p.c.bad = true
				return
			}
			if to > p.at {
				row(p.at, &p.s)
			}
			p.at = to
			continue
		}
		switch op & cfaPrimary {
		case cfaOffset:
			p.set(uint64(op&cfaPrimaryOprand), frameReg{kind: regOffset, off: int64(p.c.uleb()) * p.ci.data})
		case cfaRestore:
			p.restore(uint64(op & cfaPrimaryOprand))
		default:
			if !p.define(op) && !p.save(op) {
				p.c.bad = true
				return
			}
		}
	}
	if !p.c.bad {
		row(p.at, &p.s)
	}
}

// advance gives the new location, if the instruction sets it.
func (p *frameProgram) advance(op byte) (uint64, bool) {
	switch {
	case op&cfaPrimary == cfaAdvance:
		return p.at + uint64(op&cfaPrimaryOprand)*p.ci.code, true
	case op == cfaAdvance1:
		return p.at + uint64(p.c.u8())*p.ci.code, true
	case op == cfaAdvance2:
		return p.at + uint64(p.c.u16())*p.ci.code, true
	case op == cfaAdvance4:
		return p.at + uint64(p.c.u32())*p.ci.code, true
	case op == cfaSetLoc:
		v, ok := p.c.encoded(p.ci.enc, p.bases)
		p.c.bad = p.c.bad || !ok
		return v, true
	}
	return 0, false
}

// define runs the instructions that define the CFA, and those that keep states.
func (p *frameProgram) define(op byte) bool {
	switch op {
	case cfaNop:
	case cfaDef:
		p.s.reg, p.s.off, p.s.expr = p.c.uleb(), int64(p.c.uleb()), ""
	case cfaDefSF:
		p.s.reg, p.s.off, p.s.expr = p.c.uleb(), p.c.sleb()*p.ci.data, ""
	case cfaDefReg:
		p.s.reg, p.s.expr = p.c.uleb(), ""
	case cfaDefOff:
		p.s.off = int64(p.c.uleb())
	case cfaDefOffSF:
		p.s.off = p.c.sleb() * p.ci.data
	case cfaDefExpr:
		p.s.expr = p.block()
		p.c.bad = p.c.bad || p.s.expr == ""
	case cfaRemember:
		p.kept = append(p.kept, p.s)
		p.c.bad = p.c.bad || len(p.kept) > maxKept
	case cfaRestoreState:
		if len(p.kept) == 0 {
			p.c.bad = true
			break
		}
		p.s = p.kept[len(p.kept)-1]
		p.kept = p.kept[:len(p.kept)-1]
	case cfaGNUArgsSize:
		p.c.uleb()
	default:
		return false
	}
	return true
}

// save runs the instructions that say where a register is.
func (p *frameProgram) save(op byte) bool {
	if op < cfaOffsetExt || op > cfaValExpr && op != cfaGNUNegOffset {
		return false
	}
	reg := p.c.uleb()
	switch op {
	case cfaOffsetExt:
		p.set(reg, frameReg{kind: regOffset, off: int64(p.c.uleb()) * p.ci.data})
	case cfaOffsetSF:
		p.set(reg, frameReg{kind: regOffset, off: p.c.sleb() * p.ci.data})
	case cfaGNUNegOffset:
		p.set(reg, frameReg{kind: regOffset, off: -int64(p.c.uleb()) * p.ci.data})
	case cfaRestoreExt:
		p.restore(reg)
	case cfaUndefined:
		p.set(reg, frameReg{kind: regUndefined})
	case cfaSame:
		p.set(reg, frameReg{})
	case cfaExpr:
		p.set(reg, frameReg{kind: regExpr, expr: p.block()})
	case cfaRegister, cfaValOffset:
		p.c.uleb()
		p.set(reg, frameReg{kind: regOther})
	case cfaValOffsetSF:
		p.c.sleb()
		p.set(reg, frameReg{kind: regOther})
	case cfaValExpr:
		p.block()
		p.set(reg, frameReg{kind: regOther})
	default:
		return false
	}
	return true
}

// block takes an expression.
func (p *frameProgram) block() string {
	n := p.c.uleb()
	if n > uint64(len(p.c.b)) {
		p.c.bad = true
		return ""
	}
	return string(p.c.take(int(n)))
}

func (p *frameProgram) set(reg uint64, r frameReg) {
	switch reg {
	case p.m.FramePointer:
		p.s.fp = r
	case p.m.FrameReturn:
		p.s.ret = r
	}
}

// restore puts a register back to what the CIE says.
func (p *frameProgram) restore(reg uint64) {
	switch reg {
	case p.m.FramePointer:
		p.s.fp = p.ci.start.fp
	case p.m.FrameReturn:
		p.s.ret = p.ci.start.ret
	}
}
