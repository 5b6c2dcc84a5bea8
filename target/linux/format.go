package linux

import (
	"fmt"
	"strconv"
	"strings"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
)

// field is a field of an event's records.
type field struct {
	decl         string // type, name and length of an array
	offset, size int
}

// name is what the declaration declares.
func (f *field) name() string {
	name := f.decl[strings.LastIndexByte(f.decl, ' ')+1:]
	name, _, _ = strings.Cut(name, "[")
	return name
}

// format is what an event's format file tells.
type format struct {
	id     uint16
	ip     int // offset of __probe_ip or __probe_func
	caller int // offset of __probe_ret_ip; 0: it is no return probe
	size   int // bytes that each record has at least
	comm   int // offset of commArg; 0: there is none
	args   []field
	prog   *fetch.Program // of the records that translate makes
}

// maxRecord bounds what a format file may say of offsets and sizes: a page.
const maxRecord = 64 << 10

// parseFormat reads an event's format file. The types of its arguments are those that the
// kernel prints, so that also types which only the kernel knows (from BTF) are shown.
func parseFormat(text string) (*format, error) {
	f := &format{}
	shown := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if v, ok := strings.CutPrefix(line, "ID: "); ok {
			id, err := strconv.ParseUint(v, 10, 16)
			if err != nil {
				return nil, fmt.Errorf("format file: %q: %w", line, err)
			}
			f.id = uint16(id)
		} else if v, ok := strings.CutPrefix(line, "print fmt: "); ok {
			shown = v
		} else if v, ok := strings.CutPrefix(line, "field:"); ok {
			if err := f.field(v); err != nil {
				return nil, err
			}
		}
	}
	if f.ip == 0 {
		return nil, fmt.Errorf("format file: it has no __probe_ip and no __probe_func")
	}
	return f, f.program(shown)
}

// field takes `TYPE NAME;\toffset:O;\tsize:S;\tsigned:N;`.
func (f *format) field(text string) error {
	var fd field
	var ok bool
	for i, part := range strings.Split(text, ";") {
		part = strings.TrimSpace(part)
		if i == 0 {
			fd.decl = part
		} else if v, is := strings.CutPrefix(part, "offset:"); is {
			fd.offset, ok = number(v)
		} else if v, is := strings.CutPrefix(part, "size:"); is {
			var sized bool
			fd.size, sized = number(v)
			ok = ok && sized
		}
	}
	if !ok {
		return fmt.Errorf("format file: field %q has no offset or size", text)
	}
	f.size = max(f.size, fd.offset+fd.size)
	switch name := fd.name(); {
	case name == "__probe_ip" || name == "__probe_func":
		f.ip = fd.offset
	case name == "__probe_ret_ip":
		f.caller = fd.offset
	case name == commArg && fd.size == 4:
		f.comm = fd.offset
	case !strings.HasPrefix(name, "common_"):
		f.args = append(f.args, fd)
	}
	return nil
}

// number reads an offset or a size.
func number(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int(n), err == nil && n < maxRecord
}

// program makes the program of the records, with the verbs of the event's print fmt.
func (f *format) program(shown string) error {
	f.prog = &fetch.Program{Return: f.caller != 0}
	for i := range f.args {
		fd := &f.args[i]
		a := fetch.Arg{Name: fd.name(), Store: fetch.StoreValue, Off: f.prog.Fixed}
		verb := shownVerb(shown, a.Name)
		if strings.HasPrefix(verb, "{") {
			a.Count = strings.Count(verb, ",") + 1
			verb, _, _ = strings.Cut(strings.Trim(verb, "{}"), ",")
			a.Store = fetch.StoreArray
		}
		a.Type = fetch.Type{Kind: kindOf(verb), Size: fd.size / max(a.Count, 1)}
		a.Size = a.Type.Size
		slots := (fd.size + 7) / 8
		if a.Type.IsString() {
			a.Type.Size, a.Store, slots = 0, fetch.StoreString, max(a.Count, 1)
			if a.Count > 0 {
				a.Store = fetch.StorePtrs
			}
			f.prog.Dynamic = true
		}
		if err := fits(&a, fd); err != nil {
			return err
		}
		f.prog.Fixed += 8 * slots
		f.prog.Args = append(f.prog.Args, a)
	}
	return nil
}

// shownVerb finds how print fmt shows an argument: what follows ` NAME=` in its first string.
func shownVerb(shown, name string) string {
	_, rest, ok := strings.Cut(shown, " "+name+"=")
	if !ok {
		return ""
	}
	if i := strings.IndexByte(rest, ' '); i >= 0 {
		rest = rest[:i]
	}
	if i := strings.Index(rest, `",`); i >= 0 && !strings.HasSuffix(rest[:i], `\`) {
		rest = rest[:i]
	}
	return rest
}

// kindOf is the type that a verb shows.
func kindOf(verb string) event.TypeKind {
	switch {
	case strings.Contains(verb, "%s"):
		return event.String
	case strings.Contains(verb, "%pS"):
		return event.Symbol
	case strings.Contains(verb, "%c"):
		return event.Char
	case strings.HasPrefix(verb, "0x"):
		return event.Hex
	case strings.HasSuffix(verb, "d"):
		return event.Signed
	}
	return event.Unsigned
}

// fits checks that a field has the size of what is shown of it.
func fits(a *fetch.Arg, fd *field) error {
	n := max(a.Count, 1)
	switch size := fd.size / n; {
	case fd.size%n != 0 || a.Count > event.MaxArray:
	case a.Type.IsString():
		if size == 4 {
			return nil
		}
	case size == 1 || size == 2 || size == 4 || size == 8:
		return nil
	}
	return fmt.Errorf("format file: field %q has %d bytes for %d values", fd.decl, fd.size, n)
}
