package amd64

// group settles the opcodes whose meaning hangs on ModRM (SDM vol. 2D table A-6).
func (d *decoder) group(l layout) layout {
	if d.Map == Map0F {
		return d.group0F(l)
	}
	reg := d.ModRM >> 3 & 7
	switch d.Opcode {
	case 0x8d: // lea
		if d.ModRM >= 0xc0 {
			return isBad
		}
	case 0xc6: // mov, xabort
		if reg != 0 && d.ModRM != 0xf8 {
			return isBad
		}
		return hasModRM | immByte
	case 0xc7: // mov, xbegin
		return d.groupC7(reg)
	case 0xf6, 0xf7: // test has an immediate, the others have none
		if reg < 2 {
			return hasModRM | testImm[d.Opcode&1]
		}
	case 0xfe: // inc, dec
		if reg > 1 {
			return isBad
		}
	case 0xff:
		return d.groupFF(reg)
	}
	return l
}

var testImm = [2]layout{immByte, immZ}

func (d *decoder) groupC7(reg byte) layout {
	switch {
	case d.ModRM == 0xf8:
		d.Kind = KindXbegin
		return hasModRM | immRelZ
	case reg != 0:
		return isBad
	}
	return hasModRM | immZ
}

// groupFFKinds: inc, dec, call, far call, jmp, far jmp, push.
var groupFFKinds = [8]Kind{2: KindCallInd, 3: KindFar, 4: KindJmpInd, 5: KindFar}

func (d *decoder) groupFF(reg byte) layout {
	d.Kind = groupFFKinds[reg]
	if reg == 7 || d.Kind == KindFar && d.ModRM >= 0xc0 {
		return isBad
	}
	return hasModRM
}

func (d *decoder) group0F(l layout) layout {
	switch d.Opcode {
	case 0x01:
		if d.leavesByGroup7() {
			d.Kind = KindFar
		}
	case 0x20, 0x21, 0x22, 0x23: // control and debug registers: mod is ignored
		return l | noMem
	case 0x78: // vmread; extrq and insertq of SSE4a
		if d.Prefix&(PrefixOpSize|PrefixRepne) != 0 {
			return hasModRM | immPair
		}
	case 0xb8: // popcnt; jmpe of Itanium without its prefix
		if d.Prefix&PrefixRep == 0 {
			return isBad
		}
	}
	return l
}

// leavesByGroup7 finds uiret, erets and eretu among 0F 01.
func (d *decoder) leavesByGroup7() bool {
	switch d.ModRM {
	case 0xca:
		return d.Prefix&(PrefixRep|PrefixRepne) != 0
	case 0xec:
		return d.Prefix&PrefixRep != 0
	}
	return false
}
