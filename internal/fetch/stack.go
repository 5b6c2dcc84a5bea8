package fetch

import (
	"encoding/binary"
	"fmt"

	"kprobes.dev/kprobes/event"
)

// StackEnd says why a walk over the stack ended.
type StackEnd uint32

// The ends of a walk.
const (
	StackWhole   StackEnd = iota // it came to the end of the stack
	StackFull                    // there is no room for more
	StackUnknown                 // no table tells of the frame
	StackBad                     // the frame is not where its table says: the stack is damaged, or the program has made it by itself
	StackUnread                  // the memory can not be read
)

// String says it in words.
func (e StackEnd) String() string {
	switch e {
	case StackWhole:
		return ""
	case StackFull:
		return "more callers than are recorded"
	case StackUnknown:
		return "no unwind table tells of the last one's frame"
	case StackBad:
		return "the last one's frame is not where its unwind table says"
	case StackUnread:
		return "the last one's frame can not be read"
	}
	return fmt.Sprintf("end %d", uint32(e))
}

// Interrupted marks, in a record, the address at which a signal has interrupted the program: it is that of the instruction that
// would have run next, and no return address. No program has addresses so high.
const Interrupted = 1 << 63

// StackFrame is a call in progress.
type StackFrame struct {
	PC uint64 // where it goes on
	// Interrupted: a signal has interrupted it; else PC is a return address, and the call stands before it.
	Interrupted bool
}

// At is an address in the instruction that the frame is in.
func (f StackFrame) At() uint64 {
	if f.Interrupted {
		return f.PC
	}
	return f.PC - 1
}

// Line is where in the source an instruction comes from.
type Line struct {
	// Func is the function that was inlined there; "" for what belongs to the function that the instruction lies in.
	Func string
	File string
	Line int // 0: none is told
}

// addStack makes room for the stack.
func (p *Program) addStack(n int) error {
	if n > event.MaxStack {
		return fmt.Errorf("stack of %d frames: at most %d are recorded", n, event.MaxStack)
	}
	p.Stack, p.StackOff = n, p.Fixed
	if p.Fixed += 8 + 8*n; p.Fixed > MaxFixed {
		return fmt.Errorf("a stack of %d frames and the arguments take %d bytes of %d: record fewer", n, p.Fixed, MaxFixed)
	}
	return nil
}

// Callers reads the calls in progress, the innermost first, behind those of dst, and why there are no more. The area of the
// arguments begins at byte base of rec. Its errors wrap ErrRecord.
func (p *Program) Callers(dst []StackFrame, rec []byte, base int) ([]StackFrame, StackEnd, error) {
	if base < 0 || len(rec)-base < p.Fixed {
		return dst, 0, fmt.Errorf("%w: %d bytes, too short for a stack at %d", ErrRecord, len(rec), base+p.StackOff)
	}
	b := rec[base+p.StackOff:]
	w := binary.LittleEndian.Uint64(b)
	n, end := uint32(w), StackEnd(w>>32)
	if n > uint32(p.Stack) || end > StackUnread {
		return dst, 0, fmt.Errorf("%w: stack of %d frames, end %d", ErrRecord, n, end)
	}
	for i := range n {
		pc := binary.LittleEndian.Uint64(b[8+8*i:])
		if p.Kernel {
			dst = append(dst, StackFrame{PC: pc})
			continue
		}
		dst = append(dst, frameOf(pc))
	}
	return dst, end, nil
}

// frameOf is the call of an address in a process's record.
func frameOf(pc uint64) StackFrame {
	return StackFrame{PC: pc &^ Interrupted, Interrupted: pc&Interrupted != 0}
}

// HistFrames reads the callers of a histogram's entry, at most n, from the words of their key.
func HistFrames(b []byte, n int) (fs []StackFrame) {
	for i := range min(binary.LittleEndian.Uint64(b), uint64(n)) {
		fs = append(fs, frameOf(binary.LittleEndian.Uint64(b[8+8*i:])))
	}
	return fs
}

// AppendFrame appends where a frame goes on, as AppendSym shows addresses. It is named by the call, which may be the last
// instruction of its function.
func AppendFrame(dst []byte, f StackFrame, r Resolver) []byte {
	behind := f.PC - f.At()
	return AppendSym(dst, f.PC, func(uint64) (s Sym, ok bool) {
		if r == nil {
			return s, false
		}
		s, ok = r(f.At())
		s.Off += behind
		if s.Pretty != "" {
			s.Name = s.Pretty
		}
		return s, ok
	})
}
