package event

import (
	"strings"
	"syscall"
)

// maxLine is the longest line, in bytes.
const maxLine = 4094

// triggerSpaces are what separates the words of triggers and synthetic events.
const triggerSpaces = " \t\n\v\f\r"

// text is a piece of a definition with where its quotes are: in[i] says that byte i is a
// quote or stands between two, so that it separates nothing.
type text struct {
	s   string
	in  []bool
	pos int // of s in the command
}

func (t text) from(i int) text  { return text{t.s[i:], t.in[i:], t.pos + i} }
func (t text) until(i int) text { return text{t.s[:i], t.in[:i], t.pos} }
func (t text) end() int         { return t.pos + len(t.s) }

// index finds the first byte of set outside quotes; -1 if there is none.
func (t text) index(set string) int {
	for i := range len(t.s) {
		if !t.in[i] && strings.IndexByte(set, t.s[i]) >= 0 {
			return i
		}
	}
	return -1
}

// lastIndex finds the last byte of set outside quotes; -1 if there is none.
func (t text) lastIndex(set string) int {
	for i := len(t.s) - 1; i >= 0; i-- {
		if !t.in[i] && strings.IndexByte(set, t.s[i]) >= 0 {
			return i
		}
	}
	return -1
}

// colon finds the first `:` that splits: of `::` none does, of three or more the first
// if their number is odd.
func (t text) colon() int {
	for i := 0; i < len(t.s); i++ {
		if t.in[i] || t.s[i] != ':' {
			continue
		}
		n := 1
		for i+n < len(t.s) && t.s[i+n] == ':' && !t.in[i+n] {
			n++
		}
		if n%2 == 1 {
			return i
		}
		i += n - 1
	}
	return -1
}

// unquoted gives the bytes without the quotes.
func (t text) unquoted() string {
	if !t.quoted() {
		return t.s
	}
	var b strings.Builder
	var open byte
	for i := range len(t.s) {
		switch c := t.s[i]; {
		case t.in[i] && open == 0:
			open = c
		case t.in[i] && c == open:
			open = 0
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// quoted says whether any of it is.
func (t text) quoted() bool {
	for _, in := range t.in {
		if in {
			return true
		}
	}
	return false
}

// strayQuote finds a quote that no other closes; -1 if there is none.
func (t text) strayQuote() int {
	for i := range len(t.s) {
		if !t.in[i] && (t.s[i] == '"' || singleOpens(t.s, i)) {
			return i
		}
	}
	return -1
}

// singleOpens says whether a single quote begins a quoted name: at the start of a word, or behind
// what names begin after. Elsewhere it belongs to a name, as in Rust's &'a str.
func singleOpens(s string, i int) bool {
	return s[i] == '\'' && (i == 0 || strings.IndexByte(":@=", s[i-1]) >= 0)
}

func isSpace(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' }

// split cuts a line into words and gives the command, the words joined by single spaces.
// A `#` outside quotes starts a comment. Quotes hold spaces together; the string of an
// immediate (\"str") takes none, as in the kernel.
func split(line string) (cmd string, words []text) {
	var b strings.Builder
	for i := 0; i < len(line); {
		if isSpace(line[i]) {
			i++
			continue
		}
		if line[i] == '#' {
			break
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		in, n := scanWord(line[i:])
		words = append(words, text{line[i : i+n], in, b.Len()})
		b.WriteString(line[i : i+n])
		i += n
	}
	return b.String(), words
}

// scanWord measures the word at the start of s and finds its quoted bytes.
func scanWord(s string) (in []bool, n int) {
	for n < len(s) && !isSpace(s[n]) && s[n] != '#' {
		q := 0
		switch {
		case strings.HasPrefix(s[n:], `\"`):
			q = quoteLen(s[n+1:], true) + 1
			if q == 1 {
				q = 2
			}
		case s[n] == '"' || singleOpens(s, n):
			q = quoteLen(s[n:], false)
		}
		for range q {
			in = append(in, true)
		}
		if q == 0 {
			in = append(in, false)
			q = 1
		}
		n += q
	}
	return in, n
}

// quoteLen measures the quoted string that s starts with, both quotes included; 0 if it
// is not closed. A short one ends at a space.
func quoteLen(s string, short bool) int {
	for i := 1; i < len(s); i++ {
		if s[i] == s[0] {
			return i + 1
		}
		if short && isSpace(s[i]) {
			break
		}
	}
	return 0
}

// controlByte finds a byte that has no place in a definition; -1 if there is none.
func controlByte(line string) int {
	for i := range len(line) {
		if c := line[i]; c < ' ' && !isSpace(c) || c == 0x7f {
			return i
		}
	}
	return -1
}

// parseUint reads a number as the kernel's kstrtoul does with base 0: 0x and 0X are
// hexadecimal, a leading 0 octal, and one + may stand before it.
func parseUint(s string) (uint64, bool) {
	base, s := radix(strings.TrimPrefix(s, "+"))
	var v uint64
	for i := range len(s) {
		d := digit(s[i])
		if d >= base || v > (1<<64-1-d)/base {
			return 0, false
		}
		v = v*base + d
	}
	return v, s != ""
}

// radix gives the base of a number and its digits.
func radix(s string) (base uint64, digits string) {
	switch {
	case len(s) > 2 && s[0] == '0' && s[1]|0x20 == 'x':
		return 16, s[2:]
	case len(s) > 1 && s[0] == '0':
		return 8, s[1:]
	}
	return 10, s
}

// tooLarge is ERANGE for what parseUint and parseInt have refused although all its digits
// are some, and nil for other text.
func tooLarge(s string) error {
	if s != "" && (s[0] == '-' || s[0] == '+') {
		s = s[1:]
	}
	base, s := radix(s)
	for i := range len(s) {
		if digit(s[i]) >= base {
			return nil
		}
	}
	if s == "" {
		return nil
	}
	return syscall.ERANGE
}

func digit(c byte) uint64 {
	switch {
	case isDigit(c):
		return uint64(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return uint64(c|0x20-'a') + 10
	}
	return 99
}

// parseInt reads a number with an optional sign.
func parseInt(s string) (int64, bool) {
	neg := strings.HasPrefix(s, "-")
	if neg {
		if s = s[1:]; strings.HasPrefix(s, "+") {
			return 0, false
		}
	}
	v, ok := parseUint(s)
	switch {
	case !ok:
		return 0, false
	case neg && v <= 1<<63:
		return -int64(v), true
	case !neg && v < 1<<63:
		return int64(v), true
	}
	return 0, false
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// isWord says whether a C identifier may hold a character behind its first.
func isWord(c byte) bool { return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || isDigit(c) }

// isName says whether s is a C identifier, or one that may hold hyphens.
func isName(s string, hyphen bool) bool {
	for i := range len(s) {
		c := s[i]
		if !isWord(c) && !(hyphen && c == '-') || i == 0 && isDigit(c) {
			return false
		}
	}
	return s != ""
}
