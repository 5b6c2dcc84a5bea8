package amd64

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// fetchModel finds the values of arguments the slow way.
type fetchModel struct {
	a     *arena
	regs  [16]uint64
	flags uint64
	ip    uint64
	entry [16]uint64 // registers at the function's entry
	cap   int        // of a string
}

// read gives n bytes of the program's memory, and whether they are all there, in a kernel in
// that space.
func (m *fetchModel) read(addr uint64, n int, in space) ([]byte, bool) {
	if end := m.a.ctl.UserEnd; end != 0 {
		if in == spaceAny && addr < end || in == spaceUser {
			in = spaceUser
		} else {
			in = spaceKernel
		}
		if in == spaceUser && (addr >= end || uint64(n) > end-addr) || in == spaceKernel && addr < end {
			return nil, false
		}
	}
	out := make([]byte, n)
	for i := range out {
		b := addr + uint64(i)
		switch sp := m.entry[RSP]; {
		case b >= sp && b < sp+64*8: // as testdata/detourexec.c fills it
			w := (b - sp) / 8
			v := sp*31 + w*0x0101010101010101
			switch w {
			case 0:
				v = m.a.ctl.Landing
			case 63:
				v = 0
			}
			out[i] = byte(v >> (8 * ((b - sp) % 8)))
		case b < arenaData || b >= arenaDataEnd || b >= arenaHole && b < arenaHole+4096:
			return nil, false
		default:
			out[i] = m.a.at(b)[0]
		}
	}
	return out, true
}

func (m *fetchModel) word(addr uint64, in space) (uint64, bool) {
	b, ok := m.read(addr, 8, in)
	if !ok {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b), true
}

func (m *fetchModel) base(b fetch.Base, atEntry bool) (uint64, bool) {
	regs := &m.regs
	if atEntry {
		regs = &m.entry
	}
	switch b.Kind {
	case fetch.BaseStack:
		at := regs[RSP] + 8*uint64(b.N)
		if m.a.w.Kernel != nil && at>>stackShift != regs[RSP]>>stackShift {
			return 0, false
		}
		return m.word(at, spaceKernel)
	case fetch.BaseImm:
		return b.Imm, true
	}
	switch b.Reg {
	case fetch.RegIP:
		return m.ip, true
	case fetch.RegFlags:
		return m.flags, true
	case fetch.RegConst:
		return b.Imm, true
	}
	return regs[b.Reg], true
}

// address is what the last dereference reads.
func (m *fetchModel) address(a *fetch.Arg) (uint64, bool) {
	v, ok := m.base(a.Base, a.AtEntry)
	for i, d := range a.Derefs {
		if a.AtEntry && i == 0 && !ok {
			v, ok = 0, true // a base that faults at the entry is saved as 0
		}
		v += uint64(d)
		if i < len(a.Derefs)-1 && ok {
			v, ok = m.word(v, spaceOf(a, i))
		}
	}
	return v, ok
}

func (m *fetchModel) str(addr uint64, in space) (s []byte, ok bool) {
	most := m.cap - 1
	if end := m.a.ctl.UserEnd; end != 0 { // its functions look for the NUL in all that they are given
		most = m.cap
		if in == spaceAny && addr >= end {
			in = spaceKernel
		} else {
			in = spaceUser
		}
	}
	for len(s) < most {
		b, there := m.read(addr+uint64(len(s)), 1, in)
		if !there {
			return nil, false
		}
		if b[0] == 0 {
			break
		}
		s = append(s, b[0])
	}
	return s[:min(len(s), m.cap-1)], true
}

// value says what a record's argument must print as.
func (m *fetchModel) value(a *fetch.Arg) string {
	switch a.Store {
	case fetch.StoreValue:
		return fmt.Sprint(m.number(a))
	case fetch.StoreArray:
		return m.array(a)
	case fetch.StoreString:
		addr, ok := m.address(a)
		return m.text(addr, ok, stringSpace(a))
	case fetch.StorePtrs:
		return m.strings(a)
	case fetch.StoreCounted:
		return m.countedString(a)
	}
	return "nothing"
}

func (m *fetchModel) number(a *fetch.Arg) uint64 {
	if len(a.Derefs) == 0 {
		v, _ := m.base(a.Base, a.AtEntry)
		return v & (1<<(8*a.Size-1)<<1 - 1)
	}
	addr, ok := m.address(a)
	if b, there := m.read(addr, a.Size, spaceOf(a, len(a.Derefs)-1)); ok && there {
		return little(b)
	}
	return 0
}

func little(b []byte) uint64 {
	var w [8]byte
	copy(w[:], b)
	return binary.LittleEndian.Uint64(w[:])
}

func (m *fetchModel) array(a *fetch.Arg) string {
	addr, ok := m.address(a)
	s := "["
	for i := range a.Count {
		v := uint64(0)
		if b, there := m.read(addr+uint64(i*a.Size), a.Size, spaceOf(a, len(a.Derefs)-1)); ok && there {
			v = little(b)
		}
		s += fmt.Sprint(v, " ")
	}
	return s
}

func (m *fetchModel) text(addr uint64, ok bool, in space) string {
	if ok {
		if s, there := m.str(addr, in); there {
			return fmt.Sprintf("%q", s)
		}
	}
	return "fault"
}

func (m *fetchModel) strings(a *fetch.Arg) string {
	addr, ok := m.address(a)
	s := "["
	for i := range a.Count {
		var p uint64
		if ok {
			p, ok = m.word(addr+8*uint64(i), spaceOf(a, len(a.Derefs)-1))
		}
		s += m.text(p, ok, stringSpace(a)) + " "
	}
	return s
}

func (m *fetchModel) countedString(a *fetch.Arg) string {
	var p, n uint64
	var ok, lenOK bool
	if len(a.Derefs) == 0 {
		p, _ = m.base(a.Base, a.AtEntry)
		n, lenOK = m.base(a.Len, a.AtEntry)
		ok = true
	} else {
		var addr uint64
		if addr, ok = m.address(a); ok {
			if p, ok = m.word(addr, spaceAny); ok {
				n, lenOK = m.word(addr+8, spaceAny)
			}
		}
	}
	if !ok || !lenOK {
		return "fault"
	}
	b, there := m.read(p, int(min(n, uint64(m.cap))), spaceAny)
	if !there {
		return "fault"
	}
	return fmt.Sprintf("%q", b)
}

// printed is a decoded value in the form of the model.
func printed(v *fetch.Value) string {
	list := func(f func(e *fetch.Elem) string) string {
		s := "["
		for i := range v.Elems {
			s += f(&v.Elems[i]) + " "
		}
		return s
	}
	text := func(s []byte, fault bool) string {
		if fault {
			return "fault"
		}
		return fmt.Sprintf("%q", s)
	}
	switch v.Arg.Store {
	case fetch.StoreValue:
		return fmt.Sprint(v.Num)
	case fetch.StoreArray:
		return list(func(e *fetch.Elem) string { return fmt.Sprint(e.Num) })
	case fetch.StorePtrs:
		return list(func(e *fetch.Elem) string { return text(e.Str, e.Fault) })
	case fetch.StoreString, fetch.StoreCounted:
		return text(v.Str, v.Fault)
	}
	return "nothing"
}

// randomProgram makes arguments of all kinds. At a return some are of the entry.
func randomProgram(r *rand.Rand, atReturn bool) *fetch.Program {
	p := &fetch.Program{Return: atReturn}
	for range 1 + r.IntN(6) {
		a := randomArg(r)
		a.AtEntry = atReturn && r.IntN(2) == 0 && a.Base.Reg != fetch.RegFlags && a.Base.Reg != fetch.RegIP
		a.Name = fmt.Sprintf("a%d", len(p.Args))
		a.Off = p.Fixed
		p.Fixed += argSlot(&a)
		p.Dynamic = p.Dynamic || isString(&a)
		p.Args = append(p.Args, a)
	}
	return p
}

func argSlot(a *fetch.Arg) int {
	switch a.Store {
	case fetch.StoreNone:
		return 0
	case fetch.StoreArray:
		return (a.Count*a.Size + 7) &^ 7
	case fetch.StorePtrs:
		return 8 * a.Count
	}
	return 8
}

func randomBase(r *rand.Rand) fetch.Base {
	switch r.IntN(10) {
	case 0:
		return fetch.Base{Kind: fetch.BaseStack, N: 1 + r.IntN(40)}
	case 1:
		return fetch.Base{Kind: fetch.BaseImm, Imm: arenaData + 0x2000 + r.Uint64N(0x100)}
	case 2:
		return fetch.Base{Reg: []fetch.Reg{fetch.RegIP, fetch.RegFlags, fetch.RegConst}[r.IntN(3)], Imm: 0x33}
	}
	return fetch.Base{Reg: fetch.Reg(r.IntN(16))}
}

func randomArg(r *rand.Rand) fetch.Arg {
	a := fetch.Arg{Base: randomBase(r), Size: 1 << r.IntN(4)}
	for range r.IntN(3) {
		a.Derefs = append(a.Derefs, int64(r.IntN(64)-32))
	}
	if r.IntN(10) == 0 {
		a.Derefs = append([]int64{1<<33 + int64(r.IntN(99))}, a.Derefs...)
	}
	a.Store = fetch.Store(r.IntN(int(fetch.StoreCounted) + 1))
	if a.Base == (fetch.Base{Reg: fetch.Reg(RSP)}) { // what the model knows of the stack
		a.Derefs, a.Store = []int64{int64(r.IntN(400))}, fetch.StoreString
	}
	if a.Base.Reg == fetch.RegIP { // nor of code
		a.Derefs, a.Store = nil, fetch.StoreValue
	}
	switch a.Store {
	case fetch.StoreNone:
		a.Base, a.Derefs = fetch.Base{Kind: fetch.BaseComm}, nil
	case fetch.StoreCounted:
		a.Size = 1
		a.Len = fetch.Base{Reg: fetch.Reg(r.IntN(16))}
	case fetch.StoreArray, fetch.StorePtrs:
		a.Count = 1 + r.IntN(4)
		fallthrough
	case fetch.StoreString:
		if len(a.Derefs) == 0 {
			a.Derefs = []int64{int64(r.IntN(16))}
		}
	}
	a.Type = fetch.Type{Size: a.Size}
	return a
}

// detourVariants are the ways that generated code can be told to work.
var detourVariants = []struct {
	name string
	set  func(a *arena)
}{
	{"rseq", func(*arena) {}},
	{"locked", func(a *arena) { a.w.HasRseq = false }},
	{"unregistered", func(a *arena) { a.w.RseqOff = a.child.noRseq }},
	{"no_rdpid", func(a *arena) { a.w.HasRseq, a.w.Features = false, 0 }},
	{"tid_syscall", func(a *arena) { a.w.TID = arch.TIDSyscall }},
	{"plain_loads", func(a *arena) { a.w.PlainLoads = true }},
	{"mask_changes", func(a *arena) { a.ctl.Blocked = 2 }},
	{"checked_loads", func(a *arena) { a.ctl.Blocked = 1 }},
	{"checked_locked_syscall", func(a *arena) {
		a.ctl.Blocked, a.w.HasRseq, a.w.TID = 1, false, arch.TIDSyscall
	}},
}

// carryFunction uses the red zone and hands the carry on:
//
//	0  mov %rdi,-8(%rsp)   5  add %rsi,%rdi   8  lea 1(%rdi),%rax
//	12 mov -8(%rsp),%rcx   17 adc %rcx,%rax   20 ret
const (
	carryFunction = "48897c24f8 4801f7 488d4701 488b4c24f8 4811c8 c3"
	carryExit     = 20
)

var carryPoints = []uint64{0, 5, 8, 12, 17, 20}

// TestDetourValues runs random argument programs at a function's entry and its return,
// with all kinds of arguments and memory, and compares every record with a model. The
// child compares registers, flags and the stack with the run without probes.
func TestDetourValues(t *testing.T) {
	child := buildDetourChild(t)
	for vi, v := range detourVariants {
		t.Run(v.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, uint64(vi)))
			for range 25 {
				a := newArena(t, child)
				v.set(a)
				testValues(a, r)
				if t.Failed() {
					return
				}
			}
		})
	}
}

func testValues(a *arena, r *rand.Rand) {
	a.t.Helper()
	a.fillData(r)
	entry, exit := randomProgram(r, false), randomProgram(r, true)
	pool := &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(len(exit.EntryBases()))}
	work := map[uint64][]arch.ProbeOp{
		0:         {{Event: 1, Prog: entry}, {Event: 2, Role: arch.RoleEntry, Prog: exit, Pool: pool}},
		carryExit: {{Event: 2, Role: arch.RoleExit, Prog: exit, Pool: pool, Instance: 2}},
	}
	a.probe(hexBytes(a.t, carryFunction), work, arch.Policy{Force: arch.TacticJump})
	a.handler()
	a.ctl.Hole = arenaHole
	for range 12 {
		a.add(a.state(r))
	}
	a.run()
	recs := a.records()
	if want := len(a.runs); len(recs) != want || int(a.ctl.Did) != want/2 {
		a.t.Fatalf("%d records, want %d; lost %d %d, missed %d", len(recs), want,
			a.counted(1, ring.CtrLost), a.counted(2, ring.CtrLost), a.counted(2, ring.CtrMissed))
	}
	for i := range recs {
		run := &a.runs[i/2*2+1]
		m := &fetchModel{a: a, regs: run.Regs, entry: run.Regs, flags: run.Flags, ip: arenaProbed}
		prog, w := entry, &work[0][0]
		if i%2 == 1 {
			prog, w = exit, &work[carryExit][0]
			m.regs, m.flags, m.ip = run.Out, run.OutFlags, arenaProbed+carryExit
			m.regs[RSP] = run.Regs[RSP]
		}
		a.checkRecord(&recs[i], w, prog, m)
	}
}

// checkRecord compares a record's header and arguments with the model.
func (a *arena) checkRecord(rec *arenaRecord, w *arch.ProbeOp, prog *fetch.Program, m *fetchModel) {
	a.t.Helper()
	base := int(ArgsOffset(&a.w, w))
	m.cap = int(stringCap(prog, base+prog.Fixed))
	tid := a.ctl.TID
	if a.w.Kernel != nil {
		tid = kernelPID
		a.checkKernelHeader(rec, m)
	}
	if int(rec.event) != w.Event || uint64(rec.tid) != tid {
		a.t.Fatalf("event %d of thread %d, want %d of %d", rec.event, rec.tid, w.Event, tid)
	}
	if w.Role == arch.RoleExit && u64At(rec.rec, base-8) != a.ctl.Landing {
		a.t.Errorf("return address %#x, want %#x", u64At(rec.rec, base-8), a.ctl.Landing)
	}
	vs, err := prog.Decode(rec.rec, base, "")
	if err != nil {
		a.t.Fatal(err)
	}
	for i := range vs {
		arg := vs[i].Arg
		if have, want := printed(&vs[i]), m.value(arg); have != want {
			a.t.Fatalf("role %d, %+v, regs %#x entry %#x\nhave %s\nwant %s", w.Role, *arg, m.regs, m.entry, have, want)
		}
	}
}

// TestDetourStringLimits records strings of all lengths around a word, the limit, and
// the end of what is mapped.
func TestDetourStringLimits(t *testing.T) {
	child := buildDetourChild(t)
	for _, v := range detourVariants {
		t.Run(v.name, func(t *testing.T) {
			a := newArena(t, child)
			v.set(a)
			copy(a.at(arenaData), bytes.Repeat([]byte("text"), 0x1000))
			prog := &fetch.Program{Fixed: 16, Dynamic: true, Args: []fetch.Arg{
				{Store: fetch.StoreString, Base: fetch.Base{Reg: fetch.Reg(RDI)}, Derefs: []int64{0}, Size: 1},
				{Store: fetch.StoreCounted, Base: fetch.Base{Reg: fetch.Reg(RDI)}, Len: fetch.Base{Reg: fetch.Reg(RDX)}, Size: 1, Off: 8},
			}}
			work := map[uint64][]arch.ProbeOp{0: {{Event: 1, Prog: prog}}}
			a.probe(hexBytes(t, carryFunction), work, arch.Policy{Force: arch.TacticJump})
			a.handler()
			a.ctl.Hole = arenaHole
			end := uint64(arenaData + 0x4000)
			for _, back := range []uint64{0, 1, 2, 7, 8, 9, 15, 16, 17, 255, 4000, 4094, 4095, 4096, 4097, 5000} {
				a.limits(end-back, back)
			}
			for i := range a.at(arenaHole - 0x2000)[:0x2000] { // no end before the hole
				a.at(arenaHole - 0x2000)[i] = byte('A' + i%20)
			}
			for _, back := range []uint64{0, 1, 7, 8, 4094, 4095, 4096, 4097} {
				a.limits(arenaHole-back, back)
			}
			a.run()
			for i, rec := range a.records() {
				run := &a.runs[2*i+1]
				m := &fetchModel{a: a, regs: run.Regs, entry: run.Regs}
				a.checkRecord(&rec, &work[0][0], prog, m)
				if m.cap != fetch.MaxString {
					t.Fatalf("strings of %d bytes", m.cap)
				}
			}
			if n := a.counted(1, ring.CtrLost); n != 0 || len(a.records())*2 != len(a.runs) {
				t.Errorf("%d records of %d runs, %d lost", len(a.records()), len(a.runs)/2, n)
			}
		})
	}
}

// limits adds a run with a string at addr whose memory ends after n bytes, or is longer.
func (a *arena) limits(addr, n uint64) {
	regs := [16]uint64{RSP: arenaStack, RDI: addr, RDX: n}
	a.add(regs, 0x202)
}
