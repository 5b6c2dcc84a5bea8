package hit

import (
	"strconv"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// Synthetic appends a synthetic event as a line of ftrace's trace file, with its newline: the task and the time are those of the hit at
// which it was traced.
func (p *Printer) Synthetic(dst []byte, def *event.Synthetic, h *Hit, vs []fetch.Value) []byte {
	dst = p.head(dst, h, def.Name)
	for i := range vs {
		if i > 0 {
			dst = append(dst, ' ')
		}
		dst = append(append(dst, def.Fields[i].Name...), '=')
		v := &vs[i]
		switch {
		case def.Fields[i].Text:
			dst = append(dst, clean(string(v.Str))...)
		case def.Fields[i].Signed:
			dst = strconv.AppendInt(dst, v.Arg.Type.Int(v.Num), 10)
		default:
			dst = strconv.AppendUint(dst, v.Num, 10)
		}
	}
	return append(dst, '\n')
}
