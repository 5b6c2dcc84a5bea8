package kprobes

import (
	"reflect"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/goabi"
)

// textMost is the most bytes of a string that is kept from a call's entry to its return.
const textMost = 256

// typedReturn calls a typed handler when a function returns. Each call's Data holds, as they are in memory: the arguments at the entry,
// behind each string its text, the results, and the handler's arguments on the stack.
//
// Its methods run in an atomic handler: they allocate nothing, and what they copy has no pointers that the collector would have to know
// of: Data does not lie in its heap.
type typedReturn struct {
	fn    unsafe.Pointer // the handler's closure
	call  func(fn unsafe.Pointer, regs *native.Regs, args uint64, stack, spill int)
	entry []piece // what is copied at the entry
	texts []int   // where strings are in Data, with room for their text behind them
	exit  []piece // what is copied at the return
	out   []piece // where the handler takes it from: with places of the handler's call

	args, stack, spill int // of the handler's call: args is where its arguments on the stack are in Data
	size               int // of Data
}

// piece is a part of a value, in Data and in a call: the nth register of its kind, or n bytes behind the return address.
type piece struct {
	off, size int
	n         int
	kind      pieceKind
}

type pieceKind uint8

const (
	inInt pieceKind = iota
	inFloat
	onStack
)

const ptrSize = int(unsafe.Sizeof(uintptr(0)))

// newTypedReturn lays out Data. Precondition: the types are checked.
func newTypedReturn(c *Core, handler any, ft reflect.Type, withArgs bool) (*typedReturn, error) {
	from, err := goabi.CallOf(ft)
	if err != nil {
		return nil, err
	}
	to, err := goabi.CallOf(reflect.TypeOf(handler))
	if err != nil {
		return nil, err
	}
	t := &typedReturn{fn: closure(handler), call: c.Target().Capabilities().CallGo, stack: to.Stack, spill: to.Spill}
	in := to.In
	room := func(v goabi.Value) (off int) {
		off, t.size = t.size, t.size+(v.Size+ptrSize-1)&^(ptrSize-1)
		return off
	}
	if withArgs {
		for i, v := range from.In {
			off := room(v)
			t.entry = appendPieces(t.entry, v, off)
			t.out = appendPieces(t.out, in[i], off)
			if ft.In(i).Kind() == reflect.String {
				t.texts = append(t.texts, off)
				t.size += textMost
			}
		}
		in = in[len(from.In):]
	}
	for i, v := range from.Out {
		off := room(v)
		t.exit = appendPieces(t.exit, v, off)
		t.out = appendPieces(t.out, in[i], off)
	}
	t.args = t.size
	if t.size += t.stack; t.size > MaxDataSize {
		return nil, errno.Errorf(unix.E2BIG, "the values take %d bytes, at most %d can be kept for a call: leave the arguments out", t.size, MaxDataSize)
	}
	return t, nil
}

// appendPieces appends the parts of a value that is at off in Data.
func appendPieces(out []piece, v goabi.Value, off int) []piece {
	if v.Scalars == nil {
		return append(out, piece{off, v.Size, v.Off, onStack})
	}
	for _, s := range v.Scalars {
		kind := inInt
		if s.Float {
			kind = inFloat
		}
		out = append(out, piece{off + s.Off, s.Size, s.Reg, kind})
	}
	return out
}

// entered keeps the arguments.
func (t *typedReturn) entered(ri *KretprobeInstance, regs *Regs) int {
	take(ri.Data, t.entry, regs)
	for _, off := range t.texts {
		text := (*string)(unsafe.Pointer(&ri.Data[off]))
		n := copy(ri.Data[off+2*ptrSize:][:textMost], *text)
		*(*[2]uintptr)(unsafe.Pointer(text)) = [2]uintptr{uintptr(unsafe.Pointer(&ri.Data[off+2*ptrSize])), uintptr(n)}
	}
	return 0
}

// returned calls the handler.
func (t *typedReturn) returned(ri *KretprobeInstance, regs *Regs) int {
	if ri.Tail {
		return 0
	}
	take(ri.Data, t.exit, regs)
	var call native.Regs // not the thread's: they are loaded back, also when the handler is abandoned
	for i := range t.out {
		p := &t.out[i]
		from := ri.Data[p.off:][:p.size]
		switch p.kind {
		case inInt:
			copy(wordBytes(native.GoInt(&call, p.n)), from)
		case inFloat:
			copy(wordBytes(native.GoFloat(&call, p.n)), from)
		case onStack:
			copy(ri.Data[t.args+p.n:][:p.size], from)
		}
	}
	args := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(ri.Data)))) + uint64(t.args)
	t.call(t.fn, unescaped(&call), args, t.stack, t.spill)
	return 0
}

// take copies values of a call into Data. The return address is on top of the stack.
func take(data []byte, ps []piece, regs *Regs) {
	for i := range ps {
		p := &ps[i]
		to := data[p.off:][:p.size]
		switch p.kind {
		case inInt:
			copy(to, wordBytes(native.GoInt(regs, p.n)))
		case inFloat:
			copy(to, wordBytes(native.GoFloat(regs, p.n)))
		case onStack:
			copy(to, ownBytes(regs.SP+uint64(ptrSize+p.n), p.size))
		}
	}
}

// wordBytes are the bytes of a register, the lowest first.
func wordBytes(w *uint64) []byte { return (*[8]byte)(unsafe.Pointer(w))[:] }

// ownBytes is memory of the process that is not the garbage collector's to move or free meanwhile.
func ownBytes(addr uint64, n int) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), n)
}

// unescaped is a pointer that the compiler takes to be no pointer to a variable: what it leads to stays on the stack, which is the
// system's here and does not move.
func unescaped(r *native.Regs) *native.Regs {
	p := uintptr(unsafe.Pointer(r))
	return *(**native.Regs)(unsafe.Pointer(&p))
}
