package fetch

import (
	"bytes"
	"encoding/binary"
)

// Machine is where Eval reads what a program asks for: a thread that stands still at the
// probe's point.
type Machine interface {
	// Reg gives the value of a register.
	Reg(r Reg) uint64
	// Stack gives the nth word (8 bytes) above the stack pointer; ok is false if it does not
	// belong to the stack.
	Stack(n int) (v uint64, ok bool)
	// Load fills b from memory, a user's whatever the address if user is set. It says
	// whether all of it was there.
	Load(addr uint64, b []byte, user bool) (ok bool)
}

// Eval runs the program of a probe (not of a return probe) and appends the arguments to a
// record, whose header is rec. Strings are cut where the record would become longer than
// limit bytes. It is what generated code does, for places where none can stand.
func (p *Program) Eval(m Machine, rec []byte, limit int) []byte {
	head := len(rec)
	rec = append(rec, make([]byte, p.Fixed)...)
	e := evaluation{m: m, rec: rec, limit: limit}
	for i := range p.Args {
		e.arg(&p.Args[i], head+p.Args[i].Off)
	}
	return e.rec
}

type evaluation struct {
	m     Machine
	rec   []byte
	limit int
}

// arg stores one argument in the slot at byte at.
func (e *evaluation) arg(a *Arg, at int) {
	if !e.holds(a.Checks) {
		if a.Store == StoreCounted {
			binary.LittleEndian.PutUint32(e.rec[at:], countedFault)
		}
		return
	}
	switch a.Store {
	case StoreValue:
		v, _ := e.value(a)
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], v)
		copy(e.rec[at:at+8], b[:a.Size])
	case StoreArray:
		addr, ok := e.address(a)
		for i := range a.Count {
			if b := make([]byte, a.Size); ok && e.m.Load(addr+uint64(i*a.Size), b, a.user(len(a.Derefs)-1)) {
				copy(e.rec[at+i*a.Size:], b)
			}
		}
	case StoreString:
		if addr, ok := e.address(a); ok {
			e.str(at, addr, a.user(len(a.Derefs)-1))
		}
	case StorePtrs:
		addr, ok := e.address(a)
		for i := range a.Count {
			if s, there := e.word(addr+uint64(8*i), a.user(len(a.Derefs)-1)); ok && there {
				e.str(at+8*i, s, a.user(len(a.Derefs)))
			}
		}
	case StoreCounted:
		e.counted(a, at)
	}
}

// user says whether load i reads a user's memory.
func (a *Arg) user(i int) bool { return a.User>>i&1 != 0 }

func (e *evaluation) base(b Base) (uint64, bool) {
	switch {
	case b.Kind == BaseStack:
		return e.m.Stack(b.N)
	case b.Kind == BaseImm || b.Reg == RegConst:
		return b.Imm, true
	case b.Kind == BaseDepth: // of a kernel
		return -e.m.Reg(b.Reg), true
	}
	return e.m.Reg(b.Reg), true
}

func (e *evaluation) word(addr uint64, user bool) (uint64, bool) {
	var b [8]byte
	ok := e.m.Load(addr, b[:], user)
	return binary.LittleEndian.Uint64(b[:]), ok
}

// holds says whether all checks hold.
func (e *evaluation) holds(checks []Check) bool {
	for _, c := range checks {
		v, ok := e.base(c.Base)
		for _, d := range c.Derefs {
			if !ok || v == 0 {
				return false
			}
			v, ok = e.word(v+uint64(d), false)
		}
		if !ok || v != c.Want {
			return false
		}
	}
	return true
}

// address finds what the last dereference reads.
func (e *evaluation) address(a *Arg) (uint64, bool) {
	v, ok := e.base(a.Base)
	for i, d := range a.Derefs {
		v += uint64(d)
		if i == len(a.Derefs)-1 || !ok {
			break
		}
		v, ok = e.word(v, a.user(i))
	}
	return v, ok
}

func (e *evaluation) value(a *Arg) (uint64, bool) {
	v, ok := e.address(a)
	if !ok {
		return 0, false
	}
	if len(a.Derefs) == 0 {
		return v, true
	}
	var b [8]byte
	if !e.m.Load(v, b[:a.Size], a.user(len(a.Derefs)-1)) {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[:]), true
}

// room is how many bytes a string may have.
func (e *evaluation) room() int { return min(e.limit-len(e.rec), MaxString) &^ 7 }

// str stores the string at addr, whose slot is at byte at. One that can not be read leaves
// the slot 0.
func (e *evaluation) str(at int, addr uint64, user bool) {
	limit := e.room()
	if limit <= 0 {
		return
	}
	s, ok := e.cString(addr, limit, user)
	if ok {
		e.put(at, s, uint32(len(s)))
	}
}

// cString reads a string with its NUL, at most limit bytes. It reads no page beyond the one
// that the string ends in.
func (e *evaluation) cString(addr uint64, limit int, user bool) ([]byte, bool) {
	const page = 4096
	var s []byte
	for len(s) < limit-1 {
		b := make([]byte, min(limit-1-len(s), int(page-(addr+uint64(len(s)))%page)))
		if !e.m.Load(addr+uint64(len(s)), b, user) {
			return nil, false
		}
		if i := bytes.IndexByte(b, 0); i >= 0 {
			s = append(s, b[:i]...)
			break
		}
		s = append(s, b...)
	}
	return append(s, 0), true
}

// put appends a string to the record and fills its slot.
func (e *evaluation) put(at int, s []byte, n uint32) {
	binary.LittleEndian.PutUint32(e.rec[at:], n)
	binary.LittleEndian.PutUint32(e.rec[at+4:], uint32(len(e.rec)))
	e.rec = append(e.rec, s...)
	e.rec = append(e.rec, make([]byte, -len(s)&7)...)
}

// counted stores a string of a pointer and a length.
func (e *evaluation) counted(a *Arg, at int) {
	addr, ok := e.address(a)
	n, there := uint64(0), true
	if len(a.Derefs) == 0 {
		n, there = e.base(a.Len)
	} else if ok {
		var b [16]byte
		there = e.m.Load(addr, b[:], false)
		addr, n = binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:])
	}
	s := make([]byte, min(n, uint64(max(e.room(), 0))))
	if !ok || !there || !e.m.Load(addr, s, false) {
		binary.LittleEndian.PutUint32(e.rec[at:], countedFault)
		return
	}
	e.put(at, s, uint32(len(s)))
}
