package tracedat

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"kprobes.dev/kprobes/internal/ringpage"
)

// eventFormat is what a format file tells of an event.
type eventFormat struct {
	id     uint16
	group  string
	name   string
	fields []field
	pieces []piece // nil: its print fmt is not understood
	event  *Event  // as others see it; nil: nobody has asked
}

// field is a field of a record.
type field struct {
	name        string
	off, size   int
	signed, loc bool // loc: it points to a string
	elem        int  // bytes of an element
}

// piece is text, and behind it a value that printf shows.
type piece struct {
	text string
	verb string // printf's, without flags; "": none
	f    *field
	at   int // bytes of the element into the field
}

// parseFormat reads a format file; nil: it is none.
func parseFormat(text string) *eventFormat {
	e := &eventFormat{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch key, rest, _ := strings.Cut(line, ":"); key {
		case "name":
			e.name = strings.TrimSpace(rest)
		case "ID":
			n, err := strconv.ParseUint(strings.TrimSpace(rest), 10, 16)
			if err != nil {
				return nil
			}
			e.id = uint16(n)
		case "field":
			e.field(rest)
		case "print fmt":
			e.pieces = e.parsePrint(strings.TrimSpace(rest))
		}
	}
	return e
}

// field reads a line of a field: DECL; offset:N; size:N; signed:N;
func (e *eventFormat) field(rest string) {
	parts := strings.Split(rest, ";")
	if len(parts) < 4 {
		return
	}
	num := func(s string) int {
		_, v, _ := strings.Cut(s, ":")
		n, err := strconv.ParseUint(v, 10, 16)
		if err != nil {
			return 1 << 16 // no record is so long
		}
		return int(n)
	}
	f := field{off: num(parts[1]), size: num(parts[2]), signed: num(parts[3]) == 1, loc: strings.HasPrefix(parts[0], "__data_loc")}
	decl, count, array := strings.Cut(parts[0], "[")
	if f.loc {
		i := strings.LastIndexAny(parts[0], " ]")
		decl, array = parts[0][:i+1]+" "+parts[0][i+1:], false
	}
	words := strings.Fields(decl)
	if len(words) == 0 {
		return
	}
	f.name, f.elem = words[len(words)-1], f.size
	if n, err := strconv.Atoi(strings.TrimSuffix(count, "]")); array && err == nil && n > 0 {
		f.elem = max(f.size/n, 1)
	}
	e.fields = append(e.fields, f)
}

// parsePrint reads "FORMAT", ARG, ARG…
func (e *eventFormat) parsePrint(s string) []piece {
	if !strings.HasPrefix(s, `"`) {
		return nil
	}
	end := 1
	for end < len(s) && s[end] != '"' {
		if s[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(s) {
		return nil
	}
	format, err := strconv.Unquote(s[:end+1])
	if err != nil {
		return nil
	}
	args := strings.Split(strings.TrimPrefix(s[end+1:], ","), ",")
	out := []piece{}
	for {
		text, rest, ok := strings.Cut(format, "%")
		if !ok {
			return append(out, piece{text: format})
		}
		i := strings.IndexAny(rest, "dusxcp")
		if i < 0 || len(args) == 0 || strings.Trim(rest[:i], "lLh") != "" {
			return nil
		}
		p := piece{text: text, verb: rest[i : i+1]}
		format = rest[i+1:]
		if p.verb == "p" {
			if format == "" || format[0] != 'S' && format[0] != 's' {
				return nil
			}
			p.verb, format = "p"+format[:1], format[1:]
		}
		if !e.argument(&p, args[0]) {
			return nil
		}
		out, args = append(out, p), args[1:]
	}
}

// argument finds the field that an argument names: REC->F, REC->F[N], __get_str(F).
func (e *eventFormat) argument(p *piece, s string) bool {
	s = strings.TrimPrefix(strings.TrimSpace(s), "(void *)")
	name, ok := strings.CutPrefix(s, "REC->")
	if !ok {
		name, ok = strings.CutPrefix(s, "__get_str(")
		name = strings.TrimSuffix(name, ")")
	}
	name, index, array := strings.Cut(name, "[")
	n := 0
	if array {
		var err error
		if n, err = strconv.Atoi(strings.TrimSuffix(index, "]")); err != nil {
			return false
		}
	}
	for i := range e.fields {
		if f := &e.fields[i]; ok && f.name == name {
			if p.f, p.at = f, n*f.elem; n >= 0 && p.at+f.elem <= f.size {
				return true
			}
		}
	}
	return false
}

// AppendReport appends a record as a line of trace-cmd report.
func (f *File) AppendReport(dst []byte, r *Record) []byte {
	if r.Lost.Any && r.Lost.Known {
		dst = fmt.Appendf(dst, "CPU:%d [%d EVENTS DROPPED]\n", r.CPU, r.Lost.N)
	} else if r.Lost.Any {
		dst = fmt.Appendf(dst, "CPU:%d [EVENTS DROPPED]\n", r.CPU)
	}
	comm := f.Comm(r.TID)
	micros := (r.Nanos + 500) / 1000
	dst = append(dst, strings.Repeat(" ", max(16-utf8.RuneCountInString(comm), 0))...)
	dst = fmt.Appendf(dst, "%s-%-5d [%03d] %5d.%06d: ", comm, r.TID, r.CPU, micros/1e6, micros%1e6)
	if r.event == nil {
		return append(dst, "[UNKNOWN EVENT]\n"...)
	}
	dst = fmt.Appendf(dst, "%-21s ", r.event.name+":")
	if r.event.id == ringpage.StackID && r.event.name == stackName {
		return f.appendStack(dst, r)
	}
	return append(f.appendValues(dst, r), '\n')
}

// appendStack appends a stack, whose callers take what the record has room for.
func (f *File) appendStack(dst []byte, r *Record) []byte {
	dst = append(dst, "<stack trace >\n"...)
	for _, addr := range r.Callers() {
		if s := f.symbol(addr); s != nil {
			dst = fmt.Appendf(dst, "=> %s (%x)\n", s.Name, addr)
		} else {
			dst = fmt.Appendf(dst, "=> %x\n", addr)
		}
	}
	return dst
}

func (f *File) appendValues(dst []byte, r *Record) []byte {
	for i := range r.event.pieces {
		p := &r.event.pieces[i]
		dst = append(dst, p.text...)
		if p.verb != "" {
			dst = f.appendValue(dst, p, r.data)
		}
	}
	for i := range r.event.fields {
		if fd := &r.event.fields[i]; r.event.pieces == nil && !strings.HasPrefix(fd.name, "common_") {
			verb := "x"
			if fd.loc {
				verb = "s"
			}
			dst = f.appendValue(append(append(append(dst, ' '), fd.name...), '='), &piece{verb: verb, f: fd}, r.data)
		}
	}
	return dst
}

// appendValue appends what printf makes of a value.
func (f *File) appendValue(dst []byte, p *piece, data []byte) []byte {
	from := p.f.off + p.at
	if from+p.f.elem > len(data) {
		return append(dst, "[BEHIND THE RECORD]"...)
	}
	b := data[from : from+p.f.elem]
	v := word(b)
	if p.verb == "s" {
		if p.f.loc {
			w := uint32(v)
			at, n := int(w&0xffff), int(w>>16)
			if at+n > len(data) {
				return append(dst, "[BEHIND THE RECORD]"...)
			}
			b = data[at : at+n]
		}
		text, _, _ := strings.Cut(string(b), "\x00")
		return append(dst, text...)
	}
	switch p.verb {
	case "d":
		if p.f.elem == 4 {
			v = uint64(int64(int32(v)))
		}
		return strconv.AppendInt(dst, int64(v), 10)
	case "x":
		return strconv.AppendUint(dst, v, 16)
	case "pS", "ps":
		s := f.symbol(v)
		switch {
		case s == nil:
			return fmt.Appendf(dst, "0x%x", v)
		case p.verb == "ps":
			return append(dst, s.Name...)
		}
		return fmt.Appendf(dst, "%s+0x%x", s.Name, v-s.Addr)
	case "c":
		return append(dst, byte(v))
	}
	return strconv.AppendUint(dst, v, 10)
}
