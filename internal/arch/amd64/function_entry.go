package amd64

import (
	"bytes"
	"encoding/binary"
)

// goRoom is the stack that a Go function has below its stack pointer once it has
// checked it (abi.StackNosplitBase, Go 1.26: 800 bytes, of which it may already have
// pushed a return address and a frame pointer).
const goRoom = 700

// maxPrologue is the number of instructions in which a Go function checks its stack.
const maxPrologue = 12

// findEntry moves the entry past a landing instruction (endbr64), past the reserved bytes and
// past Go's check of the stack: a function that grows its stack starts anew and would be
// counted twice.
func (fn *function) findEntry() {
	if bytes.HasPrefix(fn.code, endbr64) {
		fn.entry += uint64(len(endbr64))
	}
	if fn.f.Reserved > 0 {
		fn.entry = reserved(fn.f).End
	}
	if !fn.f.Go || fn.f.Morestack == nil {
		return
	}
	a := fn.entry
	for range maxPrologue {
		m, ok := fn.measureAt(a)
		if !ok || m.kind != KindPlain && m.kind != KindJcc {
			return
		}
		next := a + uint64(m.len)
		if m.kind == KindJcc {
			t := next + uint64(m.rel)
			if !fn.growsStack(t) {
				return // from here on a call may go another way
			}
			fn.checked = next
			if !fn.keepsStack(fn.entry, a) {
				return
			}
			fn.entry, fn.grow = next, t
		}
		a = next
	}
}

// keepsStack says whether the stack pointer at a is still what it was at from, in straight code. Hand-
// written code may push before it checks its stack, and goes on behind the push once the stack has grown:
// there its entry is the start, where the return address is on top of the stack.
func (fn *function) keepsStack(from, a uint64) bool {
	for from < a {
		in, _, ok := fn.bodyInst(from)
		if !ok || in.Effects().Writes&setSP != 0 {
			return false
		}
		from += uint64(in.Len)
	}
	return true
}

// growsStack says whether the block at a calls one of Go's morestack functions before
// anything else.
func (fn *function) growsStack(a uint64) bool {
	for range 40 { // a store for each register that holds an argument, and the call
		m, ok := fn.measureAt(a)
		if !ok || m.kind != KindPlain && m.kind != KindCall {
			return false
		}
		a += uint64(m.len)
		if m.kind == KindCall {
			return fn.f.Morestack(a + uint64(m.rel))
		}
	}
	return false
}

// endbr64 is a landing instruction.
var endbr64 = []byte{0xf3, 0x0f, 0x1e, 0xfa}

// isEndbr recognises endbr64 (SDM vol. 2A: F3 0F 1E FA).
func isEndbr(in *Inst, code []byte) bool {
	return in.Len == 4 && len(code) == 4 && binary.BigEndian.Uint32(code) == 0xf30f1efa
}

// isSealed recognises what a kernel writes over an endbr64 to which no indirect jump leads: a nop of
// as many bytes (gen_endbr_poison in arch/x86/include/asm/ibt.h: 66 0f 1f 00, since 6.15 0f 1f 40 d6).
// Where bytes for the kernel's tracer follow, nothing else has that length: they are 5 bytes.
func isSealed(in *Inst, code []byte) bool {
	return in.Len == 4 && len(code) == 4 && (binary.BigEndian.Uint32(code) == 0x660f1f00 || binary.BigEndian.Uint32(code) == 0x0f1f40d6)
}
