package amd64

// SlotUse says what a handler in line does with the registers that it is given.
type SlotUse int

// What a handler does with them, the least last.
const (
	SlotChanges SlotUse = iota // it may change them
	SlotReads                  // it reads them at most
	SlotIgnores                // it does not look at them
	SlotUses                   // how many there are
)

// What is looked at of a handler: functions that it calls, one in the other, and states of all instructions together.
const (
	useDepth = 8
	useWork  = 1 << 12
)

// SlotUseOf finds out what the handler at an address does with the registers, to which its second argument points. text is the code of its module, which
// lies at base. ignores are functions outside of it that take no arguments. The answer errs on the side of SlotChanges: where the address is stored, passed on to a function
// that is not known, or computed with in a way that is not followed.
//
// Memory that the handler writes by another address is taken not to be its registers: no function gives that address.
func SlotUseOf(text []byte, base, handler uint64, ignores map[uint64]bool) SlotUse {
	u := &slotUse{text: text, base: base, ignores: ignores, use: SlotIgnores}
	u.function(handler, Set(RSI), 0)
	return u.use
}

type slotUse struct {
	text    []byte
	base    uint64
	ignores map[uint64]bool
	use     SlotUse
	work    int
}

// calleeSaved are the registers that a function keeps (System V ABI, x86-64, 3.2.1).
const calleeSaved = setBX | setBP | setSP | 1<<R12 | 1<<R13 | 1<<R14 | 1<<R15

// atMost notes that the handler uses the registers so much.
func (u *slotUse) atMost(use SlotUse) { u.use = min(u.use, use) }

// function follows a function that begins with the address of the registers in some of its own, and returns those in which it may be at its end.
func (u *slotUse) function(entry uint64, in RegSet, depth int) (out RegSet) {
	if depth > useDepth {
		u.atMost(SlotChanges)
		return 0
	}
	seen := map[uint64]RegSet{} // what was followed from each instruction
	todo := []useState{{entry, in}}
	for len(todo) > 0 && u.use != SlotChanges {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if before, ok := seen[s.at]; s.has == 0 || ok && before|s.has == before {
			continue
		}
		s.has |= seen[s.at]
		seen[s.at] = s.has
		next, ends := u.step(s, depth)
		if ends {
			out |= s.has
		}
		todo = append(todo, next...)
	}
	return out
}

// useState is a place before an instruction, and the registers that may have the address there, or one computed from it.
type useState struct {
	at  uint64
	has RegSet
}

// step follows an instruction. ends: the function returns there.
func (u *slotUse) step(s useState, depth int) (next []useState, ends bool) {
	off := s.at - u.base
	if u.work++; off >= uint64(len(u.text)) || u.work > useWork {
		u.atMost(SlotChanges)
		return nil, false
	}
	in, err := Decode(u.text[off:])
	if err != nil {
		u.atMost(SlotChanges)
		return nil, false
	}
	behind := s.at + uint64(in.Len)
	target, direct := in.Target(s.at)
	switch in.Kind {
	case KindRet:
		return nil, true
	case KindUndef, KindHlt:
		return nil, false
	case KindJcc, KindLoop:
		return []useState{{behind, s.has}, {target, s.has}}, false
	case KindJmp:
		if target-u.base >= uint64(len(u.text)) { // a call at the end
			u.call(target, s.has, depth)
			return nil, false
		}
		return []useState{{target, s.has}}, false
	case KindCall:
		return []useState{{behind, u.call(target, s.has, depth)}}, false
	case KindPlain:
		if !direct {
			return []useState{{behind, u.plain(&in, s.has)}}, false
		}
	}
	u.atMost(SlotChanges)
	return nil, false
}

// call follows a call, and returns which registers may have the address behind it. A compiler that knows the function may use there what it does not
// change, beside the registers that every function keeps, and looks at in no other way.
func (u *slotUse) call(target uint64, has RegSet, depth int) RegSet {
	kept, given := has&calleeSaved, has&^calleeSaved
	switch {
	case given == 0, u.ignores[target]:
		return kept
	case target-u.base < uint64(len(u.text)):
		return kept | u.function(target, given, depth+1)&^calleeSaved
	}
	u.atMost(SlotChanges)
	return kept
}

// plain follows an instruction that only falls through, and returns which registers may have the address behind it.
func (u *slotUse) plain(in *Inst, has RegSet) RegSet {
	e := in.Effects()
	used := e.Reads & has
	switch {
	case has&setSP != 0, used != 0 && (e.MemWrite || !in.general()):
		u.atMost(SlotChanges)
	case used != 0 && e.MemRead:
		u.atMost(SlotReads)
	}
	has &^= e.Kills
	if used != 0 && !in.loads() {
		has |= e.Writes &^ Flags
	}
	return has
}

// loads says whether all that an instruction does is to load a register from memory.
func (in *Inst) loads() bool {
	if !in.HasMem() || in.Enc != EncLegacy {
		return false
	}
	switch in.Map {
	case MapOne: // mov, movsxd
		return in.Opcode == 0x8a || in.Opcode == 0x8b || in.Opcode == 0x63
	case Map0F: // movzx, movsx
		return in.Opcode == 0xb6 || in.Opcode == 0xb7 || in.Opcode == 0xbe || in.Opcode == 0xbf
	}
	return false
}
