package tracedat

import (
	"encoding/binary"
	"slices"
	"strings"

	"kprobes.dev/kprobes/internal/ringpage"
)

// Event is an event of a file.
type Event struct {
	Group, Name string
	Fields      []Field // without those that all events have
	// Stack: it is the stack of the record before it, of the same thread.
	Stack bool
	of    *eventFormat
}

// Field is what an event records.
type Field struct {
	Name   string
	Size   int // bytes of a number
	Count  int // of an array: its elements; 0: it is none
	Signed bool
	Text   bool // it is a string
	of     *field
}

// What the fields of probes' places are called, in the formats of events.
const (
	fieldIP     = "__probe_ip"
	fieldFunc   = "__probe_func"
	fieldReturn = "__probe_ret_ip"
	common      = "common_"
)

// Events gives the events of the file that it has a format of, by their groups and names.
func (f *File) Events() (out []*Event) {
	for _, e := range f.events {
		out = append(out, e.public())
	}
	slices.SortFunc(out, func(a, b *Event) int {
		if c := strings.Compare(a.Group, b.Group); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}

// public is an event as others see it. It is the same one each time.
func (e *eventFormat) public() *Event {
	if e.event != nil {
		return e.event
	}
	e.event = &Event{Group: e.group, Name: e.name, Stack: e.id == ringpage.StackID && e.name == stackName, of: e}
	for i := range e.fields {
		fd := &e.fields[i]
		if strings.HasPrefix(fd.name, common) || slices.Contains([]string{fieldIP, fieldFunc, fieldReturn}, fd.name) {
			continue
		}
		one := Field{Name: fd.name, Size: fd.elem, Signed: fd.signed, Text: fd.loc, of: fd}
		if fd.elem > 0 && fd.elem < fd.size && !fd.loc {
			one.Count = fd.size / fd.elem
		}
		e.event.Fields = append(e.event.Fields, one)
	}
	return e.event
}

// Event is the event of a record; nil: the file has no format of it.
func (r *Record) Event() *Event {
	if r.event == nil {
		return nil
	}
	return r.event.public()
}

// number is the number of a field of a probe's place; 0: the event has none of the name.
func (r *Record) number(name string) uint64 {
	for i := range r.event.fields {
		if fd := &r.event.fields[i]; fd.name == name && fd.off+fd.size <= len(r.data) {
			return word(r.data[fd.off : fd.off+fd.size])
		}
	}
	return 0
}

// Place is where the record was made: the instruction, or of a return the function and where it returned to. Zeros are not known. Precondition: Event is not nil.
func (r *Record) Place() (ip, function, caller uint64) {
	return r.number(fieldIP), r.number(fieldFunc), r.number(fieldReturn)
}

func word(b []byte) uint64 {
	var w [8]byte
	copy(w[:], b)
	return binary.LittleEndian.Uint64(w[:])
}

// Value is what a record has in a field of its event: a uint64, an int64 or a string, a []any of numbers, or nil where the record is too short.
func (r *Record) Value(fd *Field) any {
	f := fd.of
	if f.off+f.size > len(r.data) {
		return nil
	}
	if !fd.Text && fd.Count == 0 {
		return fd.value(r.data[f.off : f.off+f.size])
	}
	if !fd.Text {
		var all []any
		for i := range fd.Count {
			at := f.off + i*f.elem
			all = append(all, fd.value(r.data[at:at+f.elem]))
		}
		return all
	}
	w := uint32(word(r.data[f.off : f.off+f.size]))
	at, n := int(w&0xffff), int(w>>16)
	if at+n > len(r.data) {
		return nil
	}
	text, _, _ := strings.Cut(string(r.data[at:at+n]), "\x00")
	return text
}

// value is a number of a field.
func (fd *Field) value(b []byte) any {
	v := word(b)
	if !fd.Signed {
		return v
	}
	if n := 64 - 8*uint(min(len(b), 8)); n < 64 {
		v = uint64(int64(v<<n) >> n)
	}
	return int64(v)
}

// Comm is the name of a record's thread, as trace-cmd shows it.
func (f *File) Comm(tid int) string {
	comm := f.threads[tid]
	switch {
	case comm == "" && tid == 0:
		return "<idle>"
	case comm == "":
		return "<...>"
	}
	return comm
}

// Symbol names an address, with the distance from its start; "": it has no symbol.
func (f *File) Symbol(addr uint64) (name string, off uint64) {
	s := f.symbol(addr)
	if s == nil {
		return "", 0
	}
	return s.Name, addr - s.Addr
}

// Callers is the stack that a record of a stack event has, the innermost first.
func (r *Record) Callers() (out []uint64) {
	i := slices.IndexFunc(r.event.fields, func(fd field) bool { return fd.name == "caller" })
	if i < 0 {
		return nil
	}
	for at := r.event.fields[i].off; at+8 <= len(r.data); at += 8 {
		addr := binary.LittleEndian.Uint64(r.data[at:])
		if addr == ^uint64(0) { // ends the stacks of older kernels
			break
		}
		out = append(out, addr)
	}
	return out
}
