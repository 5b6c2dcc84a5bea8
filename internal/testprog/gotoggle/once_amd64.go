package main

import (
	"fmt"

	"kprobes.dev/kprobes/internal/arch/amd64"
)

// Opcodes of code that the compiler makes.
const (
	opRet   = 0xc3
	opJcc   = 0x70 // to 0x7f
	opJcc32 = 0x80 // to 0x8f, behind 0x0f
)

// once lists the instructions of a straight-line function that run once in each call: those
// up to the return, but for the check of the stack, which runs again when that has grown.
func once(text []byte) (offs []uint64, err error) {
	for off := 0; ; {
		in, err := amd64.Decode(text[off:])
		if err != nil {
			return nil, err
		}
		switch {
		case in.Map == amd64.MapOne && in.Opcode == opRet:
			return append(offs, uint64(off)), nil
		case in.Map == amd64.MapOne && in.Opcode&0xf0 == opJcc || in.Map == amd64.Map0F && in.Opcode&0xf0 == opJcc32:
			if len(offs) > 3 {
				return nil, fmt.Errorf("a jump at +%#x: it is not straight", off)
			}
			offs = nil
		default:
			offs = append(offs, uint64(off))
		}
		off += int(in.Len)
	}
}
