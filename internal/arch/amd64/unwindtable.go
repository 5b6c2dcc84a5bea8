package amd64

import (
	"encoding/binary"

	"kprobes.dev/kprobes/internal/arch/objfile"
)

// Generated code walks over the stack by tables in the memory of its program (stack.go). A word (arch.CodegenEnv.Unwind) leads to
// the list of what is mapped:
//
//	0   number of entries; they only ever become more
//	32  the first entry, each of 32 bytes:
//	    0   address, and 8 size, of the code
//	    16  address of its index; 0: what lies there are stubs of trampolines
//	    24  address of its rules
//
// Newer entries come before older ones. The index has a 32-bit number for each 256 bytes of code, and one more: how many rules begin
// before. A rule has 8 bytes: where it begins, from the start of the code, and what holds from there on:
//
//	bits 0-2    objfile.FrameCFA
//	     3-4    objfile.FrameFP
//	     5-16   FPOff in words, signed
//	     17-31  Off in words, signed
//
// The first rule begins with the code.
const (
	unwindEntry = 32
	unwindShift = 8 // log2 of the code that a number of the index stands for

	ruleFP, ruleFPOff, ruleOff = 3, 5, 17
)

// UnwindRule is the number for a rule; 0, which is that of an unknown one, if it has no room for its offsets.
func UnwindRule(r objfile.FrameRule) uint32 {
	switch r.CFA {
	case objfile.FrameBySP, objfile.FrameByFP, objfile.FrameAtFP:
	default:
		return uint32(r.CFA)
	}
	off, fpOff := r.Off>>3, r.FPOff>>3
	if r.Off&7 != 0 || r.FPOff&7 != 0 || off<<ruleOff>>ruleOff != off {
		return 0
	}
	if fpOff<<20>>20 != fpOff {
		r.FP, fpOff = objfile.FPLost, 0
	}
	return uint32(r.CFA) | uint32(r.FP)<<ruleFP | uint32(fpOff)&0xfff<<ruleFPOff | uint32(off)<<ruleOff
}

// UnwindTable is the table of an object: its index, and its rules from the byte rules on.
type UnwindTable struct {
	Bytes []byte
	Rules int
}

// NewUnwindTable makes the table of code of size bytes. each gives the rules in order, by where they begin from the start of the
// code.
func NewUnwindTable(size uint64, each func(add func(off uint64, r objfile.FrameRule))) UnwindTable {
	rules := []byte{}
	n, last, filled := uint32(0), uint32(0), uint64(0)
	index := make([]uint32, size>>unwindShift+2)
	add := func(off uint64, r objfile.FrameRule) {
		v := UnwindRule(r)
		if off >= size || n > 0 && v == last {
			return
		}
		for ; filled<<unwindShift <= off; filled++ {
			index[filled] = n
		}
		n, last = n+1, v
		rules = binary.LittleEndian.AppendUint32(rules, uint32(off))
		rules = binary.LittleEndian.AppendUint32(rules, v)
	}
	add(0, objfile.FrameRule{})
	each(add)
	for ; filled < uint64(len(index)); filled++ {
		index[filled] = n
	}
	out := make([]byte, 0, (4*len(index)+7)&^7+len(rules))
	for _, v := range index {
		out = binary.LittleEndian.AppendUint32(out, v)
	}
	out = append(out, make([]byte, -len(out)&7)...)
	return UnwindTable{Bytes: append(out, rules...), Rules: len(out)}
}

// UnwindCount is what a list with n objects begins with.
func UnwindCount(n int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }

// UnwindObject is an entry of the list.
type UnwindObject struct {
	Start, Size  uint64
	Index, Rules uint64 // addresses of an object's tables; 0: it is the room of trampolines
}

// UnwindList is the size of a list with room for n objects.
func UnwindList(n int) int { return unwindEntry * (n + 1) }

// UnwindEntryAt is where in the list the nth object stands, from 0.
func UnwindEntryAt(n int) uint64 { return uint64(unwindEntry * (n + 1)) }

// Append appends the entry.
func (o *UnwindObject) Append(b []byte) []byte {
	for _, v := range []uint64{o.Start, o.Size, o.Index, o.Rules} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}
