package hit

import (
	"fmt"
	"strconv"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// Synthetic appends a synthetic event as a line of ftrace's trace file, with its newline: the task and the time are those of the hit at
// which it was traced.
func (p *Printer) Synthetic(dst []byte, def *event.Synthetic, h *Hit, vs []fetch.Value) []byte {
	return append(AppendSynthetic(p.Head(dst, h, def.Name), def, vs, p.Names.Symbol), '\n')
}

// AppendSynthetic appends the fields of a synthetic event as its line has them. A stack takes lines of its own (print_synth_event in
// kernel/trace/trace_events_synth.c, Linux 6.18).
func AppendSynthetic(dst []byte, def *event.Synthetic, vs []fetch.Value, symbol fetch.Resolver) []byte {
	for i := range vs {
		if i > 0 && !def.Fields[i-1].Stack {
			dst = append(dst, ' ')
		}
		dst = append(append(dst, def.Fields[i].Name...), '=')
		v := &vs[i]
		switch {
		case def.Fields[i].Stack:
			dst = append(dst, "STACK:\n"...)
			for _, f := range v.Stack {
				dst = append(fetch.AppendFrame(append(dst, "=> "...), f, symbol), '\n')
			}
		case def.Fields[i].Text:
			dst = append(dst, clean(string(v.Str))...)
		case def.Fields[i].Signed:
			dst = strconv.AppendInt(dst, v.Arg.Type.Int(v.Num), 10)
		default:
			dst = strconv.AppendUint(dst, v.Num, 10)
		}
	}
	return dst
}

// SyntheticFormat is the format file of a synthetic event, with its newline at the end (synth_event_define_fields and
// set_synth_event_print_fmt in kernel/trace/trace_events_synth.c, Linux 6.18). id is the event's number.
func SyntheticFormat(def *event.Synthetic, id int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\nID: %d\nformat:\n%s", def.Name, id, commonFields)
	off, format, args := 8, "", ""
	for i := range def.Fields {
		f := &def.Fields[i]
		typ, name, size, room, rec := f.Type, f.Name, f.Size, 8, "REC->"+f.Name
		switch {
		case f.Stack:
			rec = "__get_stacktrace(" + f.Name + ")"
		case f.Dynamic():
			size, rec = 8, "__get_str("+f.Name+")"
		case f.Text:
			typ, name, room = typ[:strings.IndexByte(typ, '[')], name+"[]", event.MaxHistText
		}
		field(&b, typ+" "+name, off, size, f.Signed)
		off += room
		if i > 0 {
			format += ", "
		}
		format += f.Name + "=" + syntheticVerb(f)
		args += ", " + rec
	}
	fmt.Fprintf(&b, "\nprint fmt: \"%s\"%s\n", format, args)
	return b.String()
}

// syntheticVerbs is how printf shows fields of a type (synth_field_fmt).
var syntheticVerbs = map[string]string{
	"s64": "%lld", "u64": "%llu", "s32": "%d", "u32": "%u", "s16": "%d", "u16": "%u", "s8": "%d", "u8": "%u", "char": "%d",
	"unsigned char": "%u", "int": "%d", "unsigned int": "%u", "long": "%ld", "unsigned long": "%lu", "bool": "%d", "pid_t": "%d", "gfp_t": "%x",
}

func syntheticVerb(f *event.SyntheticField) string {
	if f.Stack {
		return "%s"
	}
	if f.Text {
		return "%.*s"
	}
	return syntheticVerbs[f.Type]
}
