package trace

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/ringpage"
)

// printer makes lines of records as the options say.
type printer struct {
	hit.Printer
	in          *Instance
	form        func(dst []byte, h *hit.Hit) []byte // another form than ftrace's lines; nil: it is theirs
	messageOnly bool                                // of Mark the text alone is shown
}

// Text appends a record as a line, or in another form.
func (p *printer) Text(dst []byte, h *hit.Hit) []byte {
	switch {
	case p.messageOnly && h.Event == markEvent:
		return append(append(dst, h.Rec...), '\n')
	case p.form != nil:
		return p.form(dst, h)
	}
	return p.Printer.Text(dst, h)
}

// stackType is the number of the kernel's event of stacks (TRACE_STACK in kernel/trace/trace.h, Linux 6.18).
const stackType = 4

// typeLine appends the number of a record's event, of which the kernel's formats of numbers have no more.
func (p *printer) typeLine(dst []byte, h *hit.Hit) []byte {
	return fmt.Appendf(dst, "type: %d\n", p.typeOf(h))
}

func (p *printer) typeOf(h *hit.Hit) int {
	switch {
	case h.StackOnly:
		return stackType
	case h.Event.Group == markEvent.Group:
		return ringpage.PrintID
	case h.Event.Group == event.SyntheticGroup:
		id, _ := p.in.ID(h.Event.Group, h.Event.Name) // 0: it has been deleted
		return id
	}
	return int(p.in.number(h.Event))
}

// raw is the form of the option raw: thread, CPU, nanoseconds, number of the event (print_raw_fmt in kernel/trace/trace.c, Linux 6.18).
func (p *printer) raw(dst []byte, h *hit.Hit) []byte {
	if !p.NoContext {
		dst = fmt.Appendf(dst, "%d %d %d ", h.TID, h.CPU, h.Nanos)
	}
	switch {
	case h.Event == markEvent:
		return append(append(append(dst, "# 0 "...), h.Rec...), '\n')
	case h.Event.Group == markEvent.Group:
		return append(append(append(append(dst, h.Event.Name...), ": "...), h.Rec...), '\n')
	}
	return p.typeLine(dst, h)
}

// hexadecimal is the form of the option hex: as that of raw, with a digit for each 4 bits (print_hex_fmt).
func (p *printer) hexadecimal(dst []byte, h *hit.Hit) []byte {
	if !p.NoContext {
		dst = fmt.Appendf(dst, "%08x %08x %016x ", uint32(h.TID), uint32(h.CPU), h.Nanos)
	}
	return append(p.typeLine(dst, h), '\n')
}

// binary is the form of the option bin (print_bin_fmt).
func (p *printer) binary(dst []byte, h *hit.Hit) []byte {
	if !p.NoContext {
		dst = binary.NativeEndian.AppendUint32(dst, uint32(h.TID))
		dst = binary.NativeEndian.AppendUint32(dst, uint32(h.CPU))
		dst = binary.NativeEndian.AppendUint64(dst, h.Nanos)
	}
	return p.typeLine(dst, h)
}

// fields is the form of the option fields: NAME=VALUE of each field, numbers in hexadecimal and, behind that, in decimal digits
// (print_event_fields in kernel/trace/trace_output.c, Linux 6.18).
func (p *printer) fields(dst []byte, h *hit.Hit) []byte {
	if h.StackOnly || h.Event.Message || h.Event.Prog == nil {
		return p.Printer.Text(dst, h)
	}
	comm := h.Comm
	if comm == "" {
		comm = p.Names.Comm(h.TID)
	}
	vs, err := h.Event.Prog.Decode(h.Rec, h.Event.ArgsOff, comm)
	if err != nil {
		return p.Printer.Text(dst, h)
	}
	dst = p.Head(dst, h, h.Event.Name)
	dst = dst[:len(dst)-1] // a space stands before each field
	if h.Event.Return {
		dst = appendNumber(append(dst, " __probe_func="...), h.Event.Addr, 8)
		dst = appendNumber(append(dst, " __probe_ret_ip="...), h.Caller, 8)
	} else {
		dst = appendNumber(append(dst, " __probe_ip="...), h.Addr(), 8)
	}
	if h.Unknown {
		fetch.HideResults(vs)
	}
	for i := range vs {
		dst = append(append(append(dst, ' '), vs[i].Arg.Name...), '=')
		dst = appendField(dst, &vs[i])
	}
	return append(dst, '\n')
}

func appendField(dst []byte, v *fetch.Value) []byte {
	switch {
	case v.Unknown:
		return append(dst, '?')
	case v.Fault:
		return append(dst, "(fault)"...)
	case v.Str != nil || v.Arg.Type.IsString() && v.Elems == nil:
		return append(dst, v.Str...)
	case v.Elems == nil:
		return appendNumber(dst, v.Num, v.Arg.Size)
	}
	for i, e := range v.Elems {
		if i > 0 {
			dst = append(dst, ',')
		}
		if v.Arg.Type.IsString() {
			dst = append(dst, e.Str...)
			continue
		}
		dst = appendNumber(dst, e.Num, v.Arg.Size)
	}
	return dst
}

// appendNumber appends a number of so many bytes.
func appendNumber(dst []byte, n uint64, size int) []byte {
	shift := 64 - 8*size
	dst = strconv.AppendUint(append(dst, "0x"...), n<<shift>>shift, 16)
	dst = strconv.AppendInt(append(dst, " ("...), int64(n<<shift)>>shift, 10)
	return append(dst, ')')
}
