package tracedat

import (
	"fmt"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/ringpage"
)

// commonFields are those that every event has.
const commonFields = `	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:unsigned char common_flags;	offset:2;	size:1;	signed:0;
	field:unsigned char common_preempt_count;	offset:3;	size:1;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

`

// stackName is the name of the event that is a stack, of which a record has as many callers as it has room for.
const stackName = "kernel_stack"

// stackFormat is the format of that event (events/ftrace/kernel_stack/format, Linux 6.18).
var stackFormat = fmt.Sprintf("name: %s\nID: %d\nformat:\n%s"+
	"\tfield:int size;\toffset:8;\tsize:4;\tsigned:1;\n"+
	"\tfield:unsigned long caller[8];\toffset:16;\tsize:64;\tsigned:0;\n"+
	"\nprint fmt: \"%s\", %s\n", stackName, ringpage.StackID, commonFields, strings.Repeat(`\t=> %ps\n`, 8), stackArgs())

func stackArgs() string {
	var all []string
	for i := range 8 {
		all = append(all, fmt.Sprintf("(void *)REC->caller[%d]", i))
	}
	return strings.Join(all, ", ")
}

// formatter writes the format of an event for a file. Its fields lie where hit.Format has them, and the values are shown in the same way.
// But trace-cmd 3.1 reads formats by rules of its own, so that
//
//   - places are shown as symbols, %pS: of %lx it knows that the kernel would show one, and does not
//   - an array has its length, and each string or character of an array is a field of its own, NAME_0, NAME_1: it reads no array of them
//   - a character is a string of one byte: it knows no %c
//
// Numbers of s8 and s16 it shows without their sign.
//
// The format of the kernel has the function before the address that it returns to, in which order nobody shows them: here they are in that
// of the lines.
type formatter struct {
	fields, args strings.Builder
	off          int
	names        map[string]bool
}

// formatOf is the format of an event with the number id.
func formatOf(e *hit.Event, id int) string {
	f := &formatter{off: 8, names: map[string]bool{}}
	show := "(%pS)"
	if e.Return {
		show = "(%pS <- %ps)"
		f.field("unsigned long __probe_func", 8, false)
		f.field("unsigned long __probe_ret_ip", 8, false)
		f.args.WriteString(", (void *)REC->__probe_ret_ip, (void *)REC->__probe_func")
	} else {
		f.field("unsigned long __probe_ip", 8, false)
		f.args.WriteString(", (void *)REC->__probe_ip")
	}
	if e.Prog != nil {
		for i := range e.Prog.Args {
			f.names[e.Prog.Args[i].Name] = true
		}
		for i := range e.Prog.Args {
			a := &e.Prog.Args[i]
			show += " " + a.Name + "=" + f.argument(a)
		}
	}
	return fmt.Sprintf("name: %s\nID: %d\nformat:\n%s%s\nprint fmt: \"%s\"%s\n", e.Name, id, commonFields, &f.fields, show, &f.args)
}

// field writes a field, of so many bytes.
func (f *formatter) field(decl string, size int, signed bool) {
	sign := 0
	if signed {
		sign = 1
	}
	fmt.Fprintf(&f.fields, "\tfield:%s;\toffset:%d;\tsize:%d;\tsigned:%d;\n", decl, f.off, size, sign)
	f.off += size
}

// argument writes the field, or fields, of an argument, and gives how it is shown.
func (f *formatter) argument(a *fetch.Arg) string {
	t := &a.Type
	switch {
	case t.IsString() || t.Kind == event.SymStr:
		return f.elements(a, `\"%s\"`, func(name string) {
			f.field("__data_loc char[] "+name, 4, true)
			fmt.Fprintf(&f.args, ", __get_str(%s)", name)
		})
	case t.Kind == event.Char:
		return f.elements(a, "'%s'", func(name string) {
			f.field("u8 "+name, 1, false)
			fmt.Fprintf(&f.args, ", REC->%s", name)
		})
	}
	kind := "u"
	if t.Kind == event.Signed {
		kind = "s"
	}
	decl := fmt.Sprintf("%s%d %s", kind, 8*t.Size, a.Name)
	if a.Count == 0 {
		f.field(decl, t.Size, kind == "s")
		f.number(t, a.Name)
		return verbOf(t)
	}
	f.field(fmt.Sprintf("%s[%d]", decl, a.Count), t.Size*a.Count, kind == "s")
	for i := range a.Count {
		f.number(t, fmt.Sprintf("%s[%d]", a.Name, i))
	}
	return list(verbOf(t), a.Count)
}

// number writes what is shown of a number.
func (f *formatter) number(t *fetch.Type, name string) {
	cast := ""
	if t.Kind == event.Symbol {
		cast = "(void *)"
	}
	fmt.Fprintf(&f.args, ", %sREC->%s", cast, name)
}

// elements writes a field for each element of an argument, by one, and gives how it is shown.
func (f *formatter) elements(a *fetch.Arg, verb string, one func(name string)) string {
	if a.Count == 0 {
		one(a.Name)
		return verb
	}
	for i := range a.Count {
		name := fmt.Sprintf("%s_%d", a.Name, i)
		for f.names[name] {
			name += "_"
		}
		f.names[name] = true
		one(name)
	}
	return list(verb, a.Count)
}

// list shows the elements of an array.
func list(verb string, n int) string {
	return "{" + strings.TrimSuffix(strings.Repeat(verb+",", n), ",") + "}"
}

// verbOf is how printf shows a number of the type.
func verbOf(t *fetch.Type) string {
	long := ""
	if t.Size == 8 {
		long = "L"
	}
	switch t.Kind {
	case event.Symbol:
		return "%pS"
	case event.Signed:
		return "%" + long + "d"
	case event.Hex:
		return "0x%" + long + "x"
	}
	return "%" + long + "u"
}
