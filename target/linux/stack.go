package linux

import (
	"encoding/binary"
	"fmt"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// The kernel's own event of a stack (FTRACE_ENTRY(kernel_stack) in kernel/trace/trace_entries.h, Linux 6.18).
const (
	stackGroup = "ftrace"
	stackName  = "kernel_stack"
	stackEnd   = 1<<64 - 1 // an entry that ends a stack before its record ends (trace_stack_print, kernel/trace/trace_output.c)
)

// stackProg is the program of a stack's record: it holds the callers alone.
var stackProg = &fetch.Program{Kernel: true, Stack: event.MaxStack, Fixed: 8 + 8*event.MaxStack}

// IsStack says whether a hit is no hit of an event but a stack, which the kernel records behind one: by the option stacktrace, or a trigger.
func IsStack(h *hit.Hit) bool { return h.Event.Prog == stackProg }

// stackFormat says where a stack's record has its addresses.
type stackFormat struct {
	id     uint16
	caller int // offset of the first
}

// parseStackFormat reads the format file of the event.
func parseStackFormat(text string) (stackFormat, error) {
	f := stackFormat{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if v, ok := strings.CutPrefix(line, "ID: "); ok {
			n, _ := number(v)
			f.id = uint16(n)
		} else if v, ok := strings.CutPrefix(line, "field:unsigned long caller["); ok {
			_, v, _ = strings.Cut(v, "offset:")
			v, _, _ = strings.Cut(v, ";")
			f.caller, _ = number(v)
		}
	}
	if f.id == 0 || f.caller < commonSize {
		return f, fmt.Errorf("format file of %s/%s: it has no ID, or no field caller", stackGroup, stackName)
	}
	return f, nil
}

// stacked says whether stacks are recorded.
func (t *Target) stacked() bool { return t.stack.id != 0 }

// prepareStacks learns how the kernel records stacks.
func (t *Target) prepareStacks() error {
	text, err := read(t.dir, "events", stackGroup, stackName, "format")
	if err != nil {
		return err
	}
	t.stack, err = parseStackFormat(text)
	return err
}

// stackHit makes a hit of a stack's record: its first address is the event's place, those behind it are the callers. Of an empty
// stack, nil.
func (t *Target) stackHit(r *rawRecord, c *common, buf []byte) *hit.Hit {
	var pcs []uint64
	for b := r.data[min(t.stack.caller, len(r.data)):]; len(b) >= 8; b = b[8:] {
		pc := binary.LittleEndian.Uint64(b)
		if pc == stackEnd || pc == 0 {
			break
		}
		pcs = append(pcs, pc)
	}
	if len(pcs) == 0 {
		return nil
	}
	most := event.MaxStack
	if t.o.Callers > 0 {
		most = min(most, t.o.Callers)
	}
	e := t.stacks[pcs[0]]
	if e == nil {
		e = &hit.Event{Group: stackGroup, Name: stackName, Addr: pcs[0], Prog: stackProg}
		t.stacks[pcs[0]] = e
	}
	return &hit.Hit{Event: e, Nanos: r.nanos, CPU: r.cpu, TID: c.pid, Context: c.context(), Rec: stackRecord(buf, pcs[1:], most)}
}

// stackRecord appends the record of callers, as stackProg has it; most are recorded.
func stackRecord(dst []byte, callers []uint64, most int) []byte {
	end := fetch.StackWhole
	if len(callers) > most {
		callers, end = callers[:most], fetch.StackFull
	}
	size := len(dst) + stackProg.Fixed
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, uint64(len(callers))|uint64(end)<<32)
	for _, pc := range callers {
		dst = le.AppendUint64(dst, pc)
	}
	return append(dst, make([]byte, size-len(dst))...)
}
