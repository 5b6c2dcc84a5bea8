package kmod

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// How an argument of printk is recorded: two bits for each, as in linux/printk.h.
const (
	argWord = 1 + iota
	argString
	argBounded
	argsMost = 31
)

// verb is one % of a format.
type verb struct {
	flags     string
	width     int // -1: an argument; 0: none
	precision int // -1: an argument; -2: none
	bits      int
	verb      byte // 0: the format ends here
	pointer   byte // what stands behind %p; 0: nothing that is known
}

// scan reads a verb behind its %, and gives what follows it.
func scan(s string) (v verb, rest string) {
	v = verb{precision: -2, bits: 32}
	n := len(s) - len(strings.TrimLeft(s, "-+ #0"))
	v.flags, s = s[:n], s[n:]
	number := func() (n int) {
		if strings.HasPrefix(s, "*") {
			s = s[1:]
			return -1
		}
		for ; s != "" && s[0] >= '0' && s[0] <= '9'; s = s[1:] {
			n = min(10*n+int(s[0]-'0'), 1<<20)
		}
		return n
	}
	v.width = number()
	if strings.HasPrefix(s, ".") {
		s = s[1:]
		v.precision = number()
	}
	for ; s != "" && strings.IndexByte("hlLztjq", s[0]) >= 0; s = s[1:] {
		switch {
		case s[0] != 'h':
			v.bits = 64
		case v.bits == 16:
			v.bits = 8
		default:
			v.bits = 16
		}
	}
	if s == "" {
		return v, ""
	}
	v.verb, s = s[0], s[1:]
	if v.verb == 'p' && s != "" && alnum(s[0]) {
		v.pointer = s[0]
		for s != "" && alnum(s[0]) {
			s = s[1:]
		}
	}
	return v, s
}

func alnum(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' }

// unknownArguments stands for those of a format that has to be looked at when it is printed, since it bounds a string.
const unknownArguments = ^uint64(0)

// arguments says how the arguments of a format are recorded: what __kp_arguments in linux/printk.h does with any but such as have a * that is
// no width or precision.
func arguments(format string) (all uint64) {
	n := 0
	add := func(kind uint64) {
		if n < argsMost {
			all |= kind << (2 * n)
			n++
		}
	}
	for {
		_, rest, ok := strings.Cut(format, "%")
		if !ok {
			return all
		}
		v, rest := scan(rest)
		format = rest
		if v.width == -1 {
			add(argWord)
		}
		if v.precision == -1 {
			add(argWord)
		}
		switch {
		case v.verb == 0, v.verb == '%':
		case v.verb != 's':
			add(argWord)
		case v.precision == -1:
			add(argBounded)
		case v.precision >= 0:
			return unknownArguments
		default:
			add(argString)
		}
	}
}

// formatSize is the bytes of a struct __kp_format.
const formatSize = 16

// Formats tells how the arguments of printk are recorded, in the module's memory, and gives the formats by the addresses that records have.
func (im *Image) Formats(l *Layout) map[uint64]string {
	out := map[uint64]string{}
	for s, off := range l.off {
		if s.name != ".kp_formats" {
			continue
		}
		for at := off; at+formatSize <= off+s.size; at += formatSize {
			b := im.Bytes[s.part][at:]
			text, ok := im.text(binary.LittleEndian.Uint64(b))
			if kinds := arguments(text); ok && kinds != unknownArguments {
				binary.LittleEndian.PutUint64(b[8:], kinds)
				out[im.At[s.part]+at] = text
			} // else records have the text
		}
	}
	return out
}

// text is the string at an address of the module.
func (im *Image) text(addr uint64) (string, bool) {
	for p, at := range im.At {
		if addr < at || addr-at >= uint64(len(im.Bytes[p])) {
			continue
		}
		b := im.Bytes[p][addr-at:]
		n := bytes.IndexByte(b, 0)
		return string(b[:max(n, 0)]), n >= 0
	}
	return "", false
}
