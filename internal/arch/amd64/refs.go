package amd64

import (
	"encoding/binary"
	"fmt"
	"iter"

	"kprobes.dev/kprobes/internal/arch"
)

// Refs gives f what the instructions of straight code at addr refer to, in order. The error is that of the first
// bytes that are no instruction, and says where they stand.
func Refs(code []byte, addr uint64, f func(arch.Ref)) error {
	for off := 0; off < len(code); {
		in, err := Decode(code[off:])
		if err != nil {
			return fmt.Errorf("+0x%x: %w", off, err)
		}
		if t, ok := in.Target(addr + uint64(off)); ok {
			if kind := in.refers(); kind != arch.RefOther {
				f(arch.Ref{Kind: kind, To: t})
			}
		}
		off += int(in.Len)
	}
	return nil
}

// refers says how an instruction uses its Target.
func (in *Inst) refers() arch.RefKind {
	const mov, lea = 0x8b, 0x8d
	switch {
	case !in.RIPMem:
		return arch.RefBranch
	case in.Map != MapOne || !in.W():
		return arch.RefOther
	case in.Opcode == lea:
		return arch.RefAddress
	case in.Opcode == mov:
		return arch.RefLoad
	}
	return arch.RefOther
}

// Branches gives all that may be direct calls and jumps of code at addr, at whatever byte they begin: the offset, and
// where they lead. Most are none.
func Branches(code []byte, addr uint64) iter.Seq2[int, uint64] {
	return func(yield func(int, uint64) bool) {
		for i := 0; i+JumpLen <= len(code); i++ {
			if code[i]&^1 != 0xe8 { // call, jmp
				continue
			}
			to := addr + uint64(i+JumpLen) + uint64(int64(int32(binary.LittleEndian.Uint32(code[i+1:]))))
			if !yield(i, to) {
				return
			}
		}
	}
}

// LongBranches gives what Branches does, and what may be conditional jumps that reach as far.
func LongBranches(code []byte, addr uint64) iter.Seq2[int, uint64] {
	return func(yield func(int, uint64) bool) {
		for i := 0; i+JumpLen <= len(code); i++ {
			end := i + JumpLen
			switch {
			case code[i]&^1 == 0xe8: // call, jmp
			case code[i] == 0x0f && code[i+1]&0xf0 == 0x80 && end < len(code): // jcc
				end++
			default:
				continue
			}
			if !yield(i, addr+uint64(end)+uint64(int64(disp32(code[end-4:])))) {
				return
			}
		}
	}
}

// Inside says whether the byte at off lies inside an instruction of code, which begins with one. It is false too where the
// bytes before off are not all instructions: then nobody knows.
func Inside(code []byte, off int) bool {
	at := 0
	for at < off {
		in, err := Decode(code[at:])
		if err != nil {
			return false
		}
		at += int(in.Len)
	}
	return at > off
}

// ShortReach is the farthest that a jump of two bytes leads, from where it begins: 127 bytes behind its end, or 128 before.
const ShortReach = 130

// ShortJumps gives where the jumps of two bytes lead that code at addr has. Bytes that are no instruction are passed
// over one by one.
func ShortJumps(code []byte, addr uint64) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for at := 0; at < len(code); {
			in, err := Decode(code[at:])
			if err != nil {
				at++
				continue
			}
			if to, ok := in.Target(addr + uint64(at)); ok && in.RelLen == 1 && !yield(to) {
				return
			}
			at += int(in.Len)
		}
	}
}

// ConstantArg is ConstantAt for the first argument of a Go function: in its register by ABIInternal, on the stack by
// Go's assembly convention.
func ConstantArg(code []byte, addr, off uint64, assembly bool) (v int64, known, is bool) {
	first := RAX
	if assembly {
		first = RSP
	}
	return ConstantAt(code, addr, off, first)
}
