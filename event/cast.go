package event

import "strings"

// cast reads (STRUCT)ADDRESS->MEMBER and (STRUCT,FIELD)ADDRESS->MEMBER.
func (p *exprParser) cast(e *Expr, t text) error {
	end := t.index(")")
	if end < 0 {
		return p.refuse(DerefOpenBrace, t.end(), "a typecast is (STRUCT)ADDRESS->MEMBER")
	}
	c := &Cast{Pos: t.pos + 1}
	var offset bool
	c.Struct, c.Field, offset = strings.Cut(t.s[1:end], ",")
	switch {
	case !isName(c.Struct, false):
		return p.refuse(BadFetchArg, c.Pos, "in the braces of a typecast stands the name of a struct or union, without the word struct")
	case strings.Contains(c.Field, "->"):
		return p.refuse(TypecastBadArrow, c.Pos+len(c.Struct)+1, "")
	case offset && !isName(strings.ReplaceAll(c.Field, ".", "_"), false):
		return p.refuse(BadFetchArg, c.Pos+len(c.Struct)+1, "behind the comma stands a member of "+c.Struct)
	}
	address := t.from(end + 1)
	arrow := address.arrow()
	if arrow < 0 {
		return p.refuse(TypecastReqField, t.end(), "write (STRUCT)ADDRESS->MEMBER")
	}
	if err := p.castAddress(c, address.until(arrow)); err != nil {
		return err
	}
	fields := address.from(arrow)
	if err := p.path(e, text{"_" + fields.s, append([]bool{false}, fields.in...), fields.pos - 1}, 0); err != nil {
		return err
	}
	e.Name, e.Pos, e.Cast = fields.s, fields.pos, c
	return nil
}

// castAddress reads the address of a typecast, with braces around it or without.
func (p *exprParser) castAddress(c *Cast, t text) error {
	if n := len(t.s) - 1; n > 0 && t.s[0] == '(' && t.closes() == n {
		t = t.from(1).until(n - 1)
	} else if strings.HasPrefix(t.s, "@") && t.index("+-") >= 0 {
		return p.refuse(TypecastSymOffset, t.pos, "")
	}
	holder := Expr{}
	if err := p.inner(&holder, t); err != nil {
		return err
	}
	c.Address = holder.Sub
	return nil
}

// arrow finds the first -> outside of braces and quotes; -1 if there is none.
func (t text) arrow() int {
	depth := 0
	for i := range len(t.s) {
		switch {
		case t.in[i]:
		case t.s[i] == '(':
			depth++
		case t.s[i] == ')':
			depth--
		case depth == 0 && strings.HasPrefix(t.s[i:], "->"):
			return i
		}
	}
	return -1
}

// closes finds the brace that closes the one at the start; -1 if none does.
func (t text) closes() int {
	depth := 0
	for i := range len(t.s) {
		switch {
		case t.in[i]:
		case t.s[i] == '(':
			depth++
		case t.s[i] == ')':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}
