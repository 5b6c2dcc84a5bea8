package event

import "strconv"

// Step is one step from a variable into it.
type Step struct {
	Field string // a member; "" for an element
	Arrow bool   // it was written with ->
	Index int64  // of an element
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
			at := pos
			steps = append(steps, Step{Field: cut(), Arrow: true, Pos: at})
		default:
			s, pos = s[1:], pos+1
			at := pos
			steps = append(steps, Step{Field: cut(), Pos: at})
		}
	}
	return name, steps
}
