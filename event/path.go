package event

import (
	"strconv"
	"strings"
)

// Step is one step from a variable into it.
type Step struct {
	Field string // a member; "" for an element or a type
	Type  string // of a type assertion, .(TYPE): what stands in the braces, without quotes around it
	Arrow bool   // it was written with ->
	Index int64  // of an element; -1: neither an element nor a member's name stands there
	Pos   int    // column of what stands behind the separator
}

// Path takes the name of an ExprName apart: the variable, and the steps behind it.
func (e *Expr) Path() (name string, steps []Step) {
	s, pos := e.Name, e.Pos
	cut := func() string {
		n := 0
		for n < len(s) && s[n] != '.' && s[n] != '-' && s[n] != '[' {
			n++
		}
		word := s[:n]
		s, pos = s[n:], pos+n
		return word
	}
	name = cut()
	for s != "" {
		switch s[0] {
		case '[':
			n := 1
			for n < len(s) && s[n] != ']' {
				n++
			}
			i, _ := strconv.ParseInt(s[1:n], 0, 64)
			steps = append(steps, Step{Index: i, Pos: pos + 1})
			n = min(n+1, len(s))
			s, pos = s[n:], pos+n
		case '-':
			s, pos = s[2:], pos+2
			steps = append(steps, field(cut, true, pos))
		default:
			if n := assertionEnd(s); n > 0 {
				steps = append(steps, Step{Type: strings.Trim(s[2:n-1], `"`), Pos: pos + 2})
				s, pos = s[n:], pos+n
				continue
			}
			s, pos = s[1:], pos+1
			steps = append(steps, field(cut, false, pos))
		}
	}
	return name, steps
}

// field is the step to the member whose name comes next.
func field(next func() string, arrow bool, pos int) Step {
	s := Step{Field: next(), Arrow: arrow, Pos: pos}
	if s.Field == "" {
		s.Index = -1
	}
	return s
}

// assertionEnd is the length of .(TYPE) at the start of s; 0: there is none.
func assertionEnd(s string) int {
	if !strings.HasPrefix(s, ".(") || strings.HasPrefix(s, ".()") {
		return 0
	}
	depth, quoted := 0, false
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}

// assertedLen is how many bytes of an expression are the types of assertions, which no limit of the kernel's is meant for.
func assertedLen(s string) (n int) {
	for i := 0; i < len(s); i++ {
		if end := assertionEnd(s[i:]); end > 0 {
			n += end - len(".()")
			i += end - 1
		}
	}
	return n
}
