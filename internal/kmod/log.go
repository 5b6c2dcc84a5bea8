package kmod

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrRecord is a record of the log that is damaged.
var ErrRecord = errors.New("damaged record of printk")

// Level is how grave a line is: 0 to 7 as KERN_EMERG to KERN_DEBUG.
type Level int

// Levels of lines that have none of those.
const (
	LevelDefault  Level = 4
	LevelContinue Level = -1 // it goes on with the line before
)

// Line gives the text of a record, without the bytes that tell its level. formats has the formats by their addresses, symbol names
// addresses (%pS). A text that is not for the eye is left as it is.
func Line(record []byte, formats map[uint64]string, symbol func(addr uint64) string) (level Level, text string, err error) {
	r := reader{b: record}
	format := ""
	if at, ok := r.word(); !ok {
		return 0, "", ErrRecord
	} else if at == stackRecord {
		return LevelDefault, r.stack(symbol), r.err
	} else if at == 0 {
		format = r.text()
	} else if format, ok = formats[at]; !ok {
		return 0, "", fmt.Errorf("%w: there is no format at %#x", ErrRecord, at)
	}
	level = LevelDefault
	text = r.print(format, symbol)
	for levelled := false; len(text) > 1 && text[0] == 1; text = text[2:] { // the first one counts
		switch c := text[1]; {
		case levelled:
		case c >= '0' && c <= '7':
			level, levelled = Level(c-'0'), true
		case c == 'c':
			level, levelled = LevelContinue, true
		}
	}
	return level, text, r.err
}

// stackRecord begins a record of dump_stack (internal/arch/amd64, slotstack.go).
const stackRecord = 2

// stack gives the text of such a record.
func (r *reader) stack(symbol func(addr uint64) string) string {
	text := "Call Trace:"
	for len(r.b) > 0 {
		addr, ok := r.word()
		if !ok {
			break
		}
		text += "\n " + symbol(addr)
	}
	return text
}

// reader reads what __kp_log has written.
type reader struct {
	b     []byte
	ended bool // what follows found no room
	err   error
}

func (r *reader) word() (uint64, bool) {
	if len(r.b) < 8 {
		r.ended = true
		return 0, false
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v, true
}

// text reads a string.
func (r *reader) text() string {
	n, ok := r.word()
	switch {
	case !ok:
		return ""
	case int64(n) < 0:
		return "(efault)"
	case n > uint64(len(r.b)):
		r.err, r.ended = ErrRecord, true
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[min((n+7)&^7, uint64(len(r.b))):]
	return s
}

// print is vsnprintf of lib/vsprintf.c (Linux 6.18), as far as the headers go.
func (r *reader) print(format string, symbol func(uint64) string) string {
	var out strings.Builder
	for {
		before, rest, ok := strings.Cut(format, "%")
		out.WriteString(before)
		if !ok {
			return out.String()
		}
		v, rest := scan(rest)
		format = rest
		if v.verb == 0 {
			return out.String()
		}
		if v.verb == '%' {
			out.WriteByte('%')
			continue
		}
		if v.width == -1 {
			n, _ := r.word()
			if v.width = int(int32(n)); v.width < 0 {
				v.width, v.flags = -v.width, v.flags+"-"
			}
		}
		if v.precision == -1 {
			n, _ := r.word()
			v.precision = max(int(int32(n)), -2)
		}
		v.width = min(v.width, maxWidth)
		out.WriteString(r.verb(&v, symbol))
		if r.ended || out.Len() >= maxLine {
			return out.String()[:min(out.Len(), maxLine)]
		}
	}
}

// What bounds a line, as the kernel's does (PRINTKRB_RECORD_MAX in kernel/printk/internal.h, Linux 6.18), in bytes.
const (
	maxLine  = 1024
	maxWidth = maxLine
)

// verb is the text of one argument.
func (r *reader) verb(v *verb, symbol func(uint64) string) string {
	if v.verb == 's' {
		s := r.text()
		if v.precision >= 0 {
			s = s[:min(len(s), v.precision)]
		}
		return v.pad(s)
	}
	n, ok := r.word()
	if !ok {
		return ""
	}
	switch v.verb {
	case 'c':
		return v.pad(string([]byte{byte(n)}))
	case 'p':
		switch v.pointer {
		case 'S', 's', 'B', 'F', 'f':
			return v.pad(symbol(n))
		}
		return v.pad(fmt.Sprintf("%016x", n))
	case 'd', 'i':
		d := int64(n) << (64 - v.bits) >> (64 - v.bits)
		sign := ""
		switch {
		case d < 0:
			sign = "-"
		case strings.Contains(v.flags, "+"):
			sign = "+"
		case strings.Contains(v.flags, " "):
			sign = " "
		}
		u := uint64(d)
		if d < 0 {
			u = -u
		}
		return v.number(sign, strconv.FormatUint(u, 10))
	}
	n = n << (64 - v.bits) >> (64 - v.bits)
	prefix := ""
	switch v.verb {
	case 'u':
		return v.number("", strconv.FormatUint(n, 10))
	case 'o':
		digits := strconv.FormatUint(n, 8)
		if strings.Contains(v.flags, "#") && digits != "0" && v.precision <= len(digits) {
			digits = "0" + digits
		}
		return v.number("", digits)
	case 'X':
		if strings.Contains(v.flags, "#") {
			prefix = "0X"
		}
		return v.number(prefix, strings.ToUpper(strconv.FormatUint(n, 16)))
	}
	if strings.Contains(v.flags, "#") {
		prefix = "0x"
	}
	return v.number(prefix, strconv.FormatUint(n, 16))
}

// number puts zeros between what stands before the digits and these.
func (v *verb) number(before, digits string) string {
	zeros := v.precision - len(digits)
	if v.precision < 0 && strings.Contains(v.flags, "0") && !strings.Contains(v.flags, "-") {
		zeros = v.width - len(before) - len(digits)
	}
	return v.pad(before + strings.Repeat("0", min(max(zeros, 0), maxWidth)) + digits)
}

// pad fills up with blanks.
func (v *verb) pad(s string) string {
	blanks := strings.Repeat(" ", max(v.width-len(s), 0))
	if strings.Contains(v.flags, "-") {
		return s + blanks
	}
	return blanks + s
}
