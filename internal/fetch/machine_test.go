package fetch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"kprobes.dev/kprobes/event"
)

// testEnv is an instruction set with registers r0 to r7 (a0 to a3 are arguments 1 to 4,
// those after them stand on the stack from word 1; r0 and r1 hold results), sp, and a
// constant register.
type testEnv struct{}

func (testEnv) Reg(name string) (Base, bool) {
	var n int
	switch {
	case name == "sp":
		return testEnv{}.Stack(), true
	case name == "seg":
		return Base{Kind: BaseReg, Reg: RegConst, Imm: 0x33}, true
	case name == "ip":
		return Base{Kind: BaseReg, Reg: RegIP}, true
	}
	if k, err := fmt.Sscanf(name, "r%d", &n); k != 1 || err != nil || n > 7 {
		return Base{}, false
	}
	return reg(n), true
}

func reg(n int) Base { return Base{Kind: BaseReg, Reg: Reg(n)} }

func (testEnv) Stack() Base { return reg(15) }

var errFewArgs = errors.New("this convention has 8 words")

func (testEnv) Arg(n int) (Base, error) {
	switch {
	case n > 8:
		return Base{}, errFewArgs
	case n > 4:
		return Base{Kind: BaseStack, N: n - 4}, nil
	}
	return reg(n), nil
}

func (testEnv) RetVal(n int) (Base, error) {
	if n > 1 {
		return Base{}, errFewArgs
	}
	return reg(5 + n), nil
}

func (testEnv) Symbol(name string) (uint64, error) {
	if name == "counter" {
		return 0x2000, nil
	}
	return 0, syscall.ENOENT
}

func (testEnv) File(off int64) uint64 { return uint64(off) }

func (testEnv) Addr(a uint64) uint64 {
	if a < 0x100 {
		return a + 0x2000
	}
	return a
}

// machine runs a program as the comment at Arg says, without the code generator.
type machine struct {
	regs map[Reg]uint64
	mem  map[uint64]byte
}

func (m *machine) put(addr uint64, b ...byte) {
	for i, c := range b {
		m.mem[addr+uint64(i)] = c
	}
}

func (m *machine) word(addr, v uint64) {
	m.put(addr, binary.LittleEndian.AppendUint64(nil, v)...)
}

func (m *machine) load(addr uint64, n int) (b []byte, ok bool) {
	for i := range n {
		c, ok := m.mem[addr+uint64(i)]
		if !ok {
			return make([]byte, n), false
		}
		b = append(b, c)
	}
	return b, true
}

func (m *machine) base(b Base) uint64 {
	switch {
	case b.Kind == BaseStack:
		w, _ := m.load(m.regs[15]+8*uint64(b.N), 8)
		return binary.LittleEndian.Uint64(w)
	case b.Kind == BaseImm || b.Reg == RegConst:
		return b.Imm
	}
	return m.regs[b.Reg]
}

// chain gives the address that the last dereference reads.
func (m *machine) chain(a *Arg) (addr uint64, ok bool) {
	v := m.base(a.Base)
	for i, d := range a.Derefs {
		v += uint64(d)
		if i == len(a.Derefs)-1 {
			break
		}
		w, ok := m.load(v, 8)
		if !ok {
			return 0, false
		}
		v = binary.LittleEndian.Uint64(w)
	}
	return v, true
}

func (m *machine) cstring(addr uint64) []byte {
	var s []byte
	for i := uint64(0); i < MaxString; i++ {
		c, ok := m.mem[addr+i]
		if !ok {
			return nil
		}
		s = append(s, c)
		if c == 0 {
			break
		}
	}
	return s
}

// record runs the program and gives a record with head bytes before the arguments.
func (m *machine) record(p *Program, head int) []byte {
	rec := make([]byte, head+p.Fixed)
	str := func(at int, s []byte, n uint64) {
		off := uint64(len(rec))
		rec = append(rec, s...)
		rec = append(rec, make([]byte, -len(rec)&7)...)
		binary.LittleEndian.PutUint64(rec[at:], off<<32|n)
	}
	for i := range p.Args {
		a := &p.Args[i]
		at := head + a.Off
		addr, ok := m.chain(a)
		switch a.Store {
		case StoreValue:
			b, _ := m.load(addr, a.Size)
			if len(a.Derefs) == 0 {
				b = binary.LittleEndian.AppendUint64(nil, addr)[:a.Size]
			} else if !ok {
				b = nil
			}
			copy(rec[at:], b)
		case StoreArray:
			for j := range a.Count {
				if b, ok2 := m.load(addr+uint64(j*a.Size), a.Size); ok && ok2 {
					copy(rec[at+j*a.Size:], b)
				}
			}
		case StoreString:
			s := m.cstring(addr)
			str(at, s, uint64(len(s)))
		case StorePtrs:
			for j := range a.Count {
				w, _ := m.load(addr+uint64(8*j), 8)
				s := m.cstring(binary.LittleEndian.Uint64(w))
				str(at+8*j, s, uint64(len(s)))
			}
		case StoreCounted:
			m.counted(a, addr, func(s []byte, n uint64) { str(at, s, n) })
		}
	}
	return rec
}

func (m *machine) counted(a *Arg, addr uint64, put func([]byte, uint64)) {
	ptr, n := addr, uint64(0)
	if len(a.Derefs) == 0 {
		n = m.base(a.Len)
	} else {
		w, ok := m.load(addr, 16)
		if !ok {
			put(nil, countedFault)
			return
		}
		ptr, n = binary.LittleEndian.Uint64(w), binary.LittleEndian.Uint64(w[8:])
	}
	s, ok := m.load(ptr, int(n))
	if !ok {
		put(nil, countedFault)
		return
	}
	put(s, n)
}

// newMachine has memory to look at: numbers at 0x1000, the variable counter at 0x2000,
// strings at 0x3000, pointers to them at 0x4000, the stack at 0x7000.
func newMachine() *machine {
	m := &machine{regs: map[Reg]uint64{
		0: 0x1000, 1: 0xfffffffffffffffe, 2: 0x3000, 3: 5, 4: 0x4000, 5: 0x3000, 6: 2, 7: 0x4018, 15: 0x7000, RegIP: 0x401234,
	}, mem: map[uint64]byte{}}
	m.word(0x1000, 0x8877665544332281)
	m.word(0x1008, 0x1010)
	m.word(0x1010, 0x0807060504030201)
	m.word(0x2000, 77)
	m.word(0x2008, 0x401230)
	m.put(0x3000, []byte("hello\x00wo\"r\\ld\n\x1b[31m\xff\xc3\xa9\x00")...)
	m.word(0x4000, 0x3000)
	m.word(0x4008, 0xdead)
	m.word(0x4010, 0x3006)
	m.word(0x4018, 0x3000)
	m.word(0x4020, 4)
	m.word(0x4028, 0xdead)
	m.word(0x4030, 4)
	m.word(0x7000, 0x400000)
	m.word(0x7008, 0x3000)
	m.word(0x7010, 3)
	return m
}

func compile(t *testing.T, line string, at Point) *Program {
	t.Helper()
	d, err := event.Parse(line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	p, err := Compile(d, testEnv{}, at)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return p
}

func symbols(addr uint64) (Sym, bool) {
	switch {
	case addr >= 0x401230 && addr < 0x401300:
		return Sym{Name: "vfs_read", Off: addr - 0x401230, Size: 0xd0}, true
	case addr == 0x3000:
		return Sym{Name: "data\x1b", Module: "libx.so", Size: 16}, true
	}
	return Sym{}, false
}
