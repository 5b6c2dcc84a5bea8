package amd64

import (
	"encoding/binary"
	"slices"

	"kprobes.dev/kprobes/internal/interval"
)

// TaskInst is an instruction of a program that may make a task, or move the FS base of a thread.
type TaskInst struct {
	Addr uint64
	// Number and First are the constants in EAX and in EDI, the number of a system call and its first argument;
	// -1: not known, or it is no system call.
	Number, First int64
}

// MovesBase says that the instruction may give the thread another FS base: it is no system call, or one that may.
func (t *TaskInst) MovesBase() bool {
	switch t.Number {
	case -1:
		return true
	case sysArchPrctl:
		return t.First == -1 || t.First == archSetFS
	}
	return false
}

// SharesBlock says that the instruction may make a task that runs on the memory and the block of its maker.
func (t *TaskInst) SharesBlock() bool {
	switch t.Number {
	case -1, sysVfork, sysClone3:
		return true
	case sysClone:
		return t.First == -1 || t.First&cloneVM != 0
	}
	return false
}

// taskReach is how far before an instruction the decoding begins that tells whether it is one.
const taskReach = 96

// Bytes of code that ScanTaskInsts reads at a time, and what it sees before and behind them: what tells whether an
// instruction that begins there is one (reached, taskOpcode).
const (
	taskPiece  = 256 << 10
	taskBefore = taskReach + 2*MaxLen
	taskBehind = 2 * MaxLen
)

// FindTaskInsts is ScanTaskInsts for code that is in memory, at addr.
func FindTaskInsts(code []byte, addr uint64, function func(uint64) (lo, hi uint64, ok bool)) []TaskInst {
	read := func(at uint64, b []byte) error {
		copy(b, code[at-addr:])
		return nil
	}
	out, _ := ScanTaskInsts(interval.Range{Start: addr, End: addr + uint64(len(code))}, read, function)
	return out
}

// ScanTaskInsts finds, in a range of code, the instructions that may make tasks, or set FS or its base: all system
// calls, wrfsbase, and pop and mov to FS. Code has data in it, so an instruction is told by the ones before
// it: decoding from some place taskReach bytes before must come to it. Function gives the bounds of the function that
// holds an address, if they are known; from its start the instruction is looked at again, with what is in
// EAX and EDI before it. Read fills a buffer with the code at an address of the range; errors are its own. The code is
// read in pieces: a program may have hundreds of megabytes of it.
func ScanTaskInsts(text interval.Range, read func(uint64, []byte) error, function func(uint64) (lo, hi uint64, ok bool)) (out []TaskInst, err error) {
	size := text.End - text.Start
	buf := make([]byte, min(size, taskBefore+taskPiece+taskBehind))
	var whole []byte // a function
	for off := uint64(0); off < size; off += taskPiece {
		lo, end := off-min(off, taskBefore), min(off+taskPiece, size)
		code := buf[:min(end+taskBehind, size)-lo]
		if err := read(text.Start+lo, code); err != nil {
			return nil, err
		}
		for i, b := range code[:end-lo] {
			if b != 0x0f && b != 0x8e || uint64(i) < off-lo { // most bytes: the rest is called for few
				continue
			}
			at, ok := taskInstAt(code, i)
			if !ok {
				continue
			}
			t := TaskInst{text.Start + lo + uint64(at), -1, -1}
			if flo, fhi, ok := function(t.Addr); ok && flo >= text.Start && fhi <= text.End {
				whole = slices.Grow(whole[:0], int(fhi-flo))[:fhi-flo]
				if err := read(flo, whole); err != nil {
					return nil, err
				}
				if !t.within(whole, flo) {
					continue
				}
			}
			out = append(out, t)
		}
	}
	return out, nil
}

// taskInstAt says whether the byte at i, 0f or 8e, is that of the opcode of such an instruction that decoding from before
// comes to, and where that begins.
func taskInstAt(code []byte, i int) (at int, ok bool) {
	at, ok = taskOpcode(code, i)
	switch {
	case !ok || reached(code, at):
		return at, ok
	case at > 0 && code[at-1]&0xf0 == 0x40 && reached(code, at-1): // a REX prefix
		return at - 1, true
	}
	return at, false
}

// taskOpcode says whether the byte at i, 0f or 8e, is that of the opcode of such an instruction, and where that
// begins.
func taskOpcode(code []byte, i int) (at int, ok bool) {
	rest := code[i:]
	if rest[0] == 0x8e { // mov to a segment register
		return i, len(rest) > 1 && rest[1]>>3&7 == 4
	}
	if len(rest) < 3 {
		return i, false
	}
	switch rest[1] {
	case 0x05, 0xa1, 0xb4: // syscall, pop fs, lfs
		return i, true
	case 0xae: // wrfsbase
		at = i
		if at > 0 && code[at-1]&0xf0 == 0x40 {
			at--
		}
		return at - 1, rest[2]&^7 == 0xd0 && at > 0 && code[at-1] == 0xf3
	}
	return i, false
}

// reached says whether decoding from before comes to an instruction at offset at.
func reached(code []byte, at int) bool {
	if at >= 5 && code[at-5] == 0xb8 && binary.LittleEndian.Uint32(code[at-4:]) < 1024 {
		return true // mov $number, %eax
	}
	first := max(at-taskReach-MaxLen, 0)
	for from := first; from <= max(at-taskReach, 0); from++ {
		pos := from
		for pos < at {
			in, err := Decode(code[pos:])
			if err != nil {
				break
			}
			pos += int(in.Len)
		}
		if pos == at {
			return true
		}
	}
	return false
}

// within looks at the instruction in its function, and says whether it is one.
func (t *TaskInst) within(code []byte, lo uint64) bool {
	in, err := Decode(code[t.Addr-lo:])
	regs, found := t.before(code, lo)
	if found && err == nil && in.Kind == KindSyscall {
		t.Number, t.First = regs.value(RAX), regs.value(RDI)
	}
	return found
}

// before gives what registers hold before the instruction, in code that it is reached by from its function's start, and
// says whether it is one.
func (t *TaskInst) before(code []byte, lo uint64) (regs constants, found bool) {
	targets := map[uint64]bool{}
	for pos := lo; pos-lo < uint64(len(code)); {
		in, err := Decode(code[pos-lo:])
		if err != nil {
			// What the rest jumps to is not known, nor, before it, whether the instruction is one.
			return constants{}, found || pos <= t.Addr
		}
		found = found || pos == t.Addr
		if to, ok := in.Target(pos); ok && !in.RIPMem {
			targets[to] = true
		}
		pos += uint64(in.Len)
	}
	for pos := lo; pos < t.Addr; {
		in, _ := Decode(code[pos-lo:])
		if targets[pos] {
			regs = constants{}
		}
		regs.step(&in)
		pos += uint64(in.Len)
	}
	if targets[t.Addr] {
		regs = constants{}
	}
	return regs, found
}

// ConstantAt gives the constant that a register, or for RSP the word that it points to, holds before the instruction at
// an offset of a function's code at addr. is is false if no instruction stands there.
func ConstantAt(code []byte, addr, off uint64, r Reg) (v int64, known, is bool) {
	t := TaskInst{Addr: addr + off}
	regs, is := t.before(code, addr)
	v = regs.value(r)
	return v, regs[r] != nil, is
}

// constants are the registers whose values are known; that of RSP is the word that it points to.
type constants [R15 + 1]*int64

func (c *constants) value(r Reg) int64 {
	if c[r] == nil {
		return -1
	}
	return int64(uint32(*c[r]))
}

// step follows one instruction.
func (c *constants) step(in *Inst) {
	if in.Kind != KindPlain && in.Kind != KindJcc {
		*c = constants{}
		return
	}
	r, v := c.set(in)
	writes := in.Effects().Writes
	for i := range c {
		if writes.Has(Reg(i)) {
			c[i] = nil
		}
	}
	if in.HasMem() && in.Mod() == 0 && in.HasSIB && in.SIB == 0x24 && in.Effects().MemWrite {
		c[RSP] = nil
	}
	if v != nil {
		c[r] = v
	}
}

// set gives the register that an instruction makes known.
func (c *constants) set(in *Inst) (Reg, *int64) {
	if in.Enc != EncLegacy || in.Map != MapOne || in.Prefix&PrefixOpSize != 0 {
		return 0, nil
	}
	imm := in.Imm
	switch {
	case in.Opcode&0xf8 == 0xb8: // mov $imm, %r
		return Reg(in.Opcode&7 | in.Rex&1<<3), &imm
	case in.Opcode == 0xc7 && in.Mod() == 3:
		return Reg(in.RM()), &imm
	case in.Opcode == 0xc7 && in.Mod() == 0 && in.HasSIB && in.SIB == 0x24 && in.Rex&3 == 0: // mov $imm, (%rsp)
		return RSP, &imm
	case (in.Opcode == 0x31 || in.Opcode == 0x33) && in.Mod() == 3 && in.Reg() == in.RM(): // xor %r, %r
		imm = 0
		return Reg(in.RM()), &imm
	case in.Opcode == 0x89 && in.Mod() == 3:
		return Reg(in.RM()), c[in.Reg()]
	case in.Opcode == 0x8b && in.Mod() == 3:
		return Reg(in.Reg()), c[in.RM()]
	}
	return 0, nil
}
