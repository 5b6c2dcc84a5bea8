package hit

import (
	"fmt"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// commonFields are those that every event has, of a 64-bit kernel (Linux 6.18).
const commonFields = `	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

`

// Format is the event's format file, with its newline at the end: the fields
// with the kernel's types and layout, so that what reads those files understands ours. id is
// the event's number. The definition must have its name. p is what it was compiled to, which has the parameters that $arg* stands for
// and the types of what is named; nil: it was not yet.
func Format(d *event.Def, p *fetch.Program, id int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\nID: %d\nformat:\n%s", d.Name, id, commonFields)
	head := []string{"__probe_ip"}
	if d.Kind == event.Return {
		head = []string{"__probe_func", "__probe_ret_ip"}
	}
	off := 8
	for _, name := range head {
		field(&b, "unsigned long "+name, off, 8, false)
		off += 8
	}
	args := arguments(d, p)
	for i := range args {
		off += argField(&b, &args[i], off)
	}
	fmt.Fprintf(&b, "\nprint fmt: %s\n", printFmt(d.Kind, args))
	return b.String()
}

// arguments are those of a definition, as they were compiled.
func arguments(d *event.Def, p *fetch.Program) []event.Arg {
	if p == nil {
		return d.Args
	}
	out := make([]event.Arg, len(p.Args))
	for i := range p.Args {
		a := &p.Args[i]
		out[i] = event.Arg{Name: a.Name, Type: event.TypeSpec{Kind: a.Type.Kind, Size: a.Type.Size, Count: a.Count}}
	}
	return out
}

func field(b *strings.Builder, decl string, off, size int, signed bool) {
	sign := 0
	if signed {
		sign = 1
	}
	fmt.Fprintf(b, "\tfield:%s;\toffset:%d;\tsize:%d;\tsigned:%d;\n", decl, off, size, sign)
}

// argField writes an argument's field and gives its size. The kernel puts fields one behind
// the other, without padding, and leaves out the length of an array, which follows from the
// size (f_show of kernel/trace/trace_events.c since Linux 6.3).
func argField(b *strings.Builder, a *event.Arg, off int) int {
	kind, size := fieldType(&a.Type)
	text := strings.HasPrefix(kind, "__data_loc")
	decl := kind + " " + a.Name
	if n := a.Type.Count; n > 0 {
		size *= n
		decl += "[]"
		if text {
			decl = fmt.Sprintf("%s[%d] %s", kind, n, a.Name)
		}
	}
	field(b, decl, off, size, text || a.Type.Kind == event.Signed)
	return size
}

// fieldType is the type of a field as the kernel names it, and its size in bytes.
func fieldType(t *event.TypeSpec) (name string, size int) {
	switch {
	case isText(t):
		return "__data_loc char[]", 4
	case t.Kind == event.Signed:
		return fmt.Sprintf("s%d", 8*t.Size), t.Size
	}
	return fmt.Sprintf("u%d", 8*t.Size), t.Size
}

// isText says whether a field holds a string.
func isText(t *event.TypeSpec) bool { return t.IsString() || t.Kind == event.SymStr }

// printFmt is what the kernel gives to printf: the format and its arguments.
func printFmt(k event.Kind, as []event.Arg) string {
	format, args := "(%lx)", ", REC->__probe_ip"
	if k == event.Return {
		format, args = "(%lx <- %lx)", ", REC->__probe_func, REC->__probe_ret_ip"
	}
	for i := range as {
		a := &as[i]
		verb, rec := verb(&a.Type), "REC->"+a.Name
		if isText(&a.Type) {
			rec = "__get_str(" + a.Name + ")"
		}
		if n := a.Type.Count; n > 0 {
			verb = "{" + strings.TrimSuffix(strings.Repeat(verb+",", n), ",") + "}"
			for k := range n {
				if isText(&a.Type) {
					args += fmt.Sprintf(", __get_str(%s[%d])", a.Name, k)
				} else {
					args += fmt.Sprintf(", %s[%d]", rec, k)
				}
			}
		} else {
			args += ", " + rec
		}
		format += " " + a.Name + "=" + verb
	}
	return `"` + format + `"` + args
}

// verb is how printf shows a type.
func verb(t *event.TypeSpec) string {
	switch {
	case isText(t):
		return `\"%s\"`
	case t.Kind == event.Char:
		return "'%c'"
	case t.Kind == event.Symbol:
		return "%pS"
	}
	long, kind := "", "u"
	if t.Size == 8 {
		long = "L"
	}
	switch t.Kind {
	case event.Signed:
		kind = "d"
	case event.Hex:
		return "0x%" + long + "x"
	}
	return "%" + long + kind
}

// ProfileLine is a line of kprobe_profile, with its newline.
func ProfileLine(event string, hits, missed uint64) string {
	return fmt.Sprintf("  %-44s %15d %15d\n", event, hits, missed)
}

// LostLine tells in trace_pipe of hits that were dropped before anybody read them.
func LostLine(l Loss) string { return fmt.Sprintf("CPU:%d [LOST %d EVENTS]\n", l.CPU, l.Hits) }

// Loss is a number of hits of one CPU that were dropped before anybody took them.
type Loss struct {
	CPU  int
	Hits uint64
}
