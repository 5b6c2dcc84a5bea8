package event

import "strings"

// cast reads (STRUCT)ADDRESS->MEMBER and (STRUCT,FIELD)ADDRESS->MEMBER.
func (p *exprParser) cast(e *Expr, t text) error {
	end := t.index(")")
	if end < 0 {
		return p.refuse(DerefOpenBrace, t.end(), "")
	}
	c := &Cast{Pos: t.pos + 1}
	var offset bool
	c.Struct, c.Field, offset = strings.Cut(t.s[1:end], ",")
	switch {
	case !isName(c.Struct, false), offset && c.Field == "":
		return p.refuse(BadFetchArg, t.pos, "a typecast names a struct or union")
	case strings.Contains(c.Field, "->"):
		return p.refuse(TypecastBadArrow, c.Pos+len(c.Struct)+1, "")
	}
	address := t.from(end + 1)
	arrow := address.outside("->")
	if arrow < 0 {
		return p.refuse(TypecastReqField, t.end(), "")
	}
	if err := p.castAddress(c, address.until(arrow)); err != nil {
		return err
	}
	fields := t.from(end + arrow)
	err := p.path(e, fields, 1)
	e.Name, e.Pos, e.Cast = fields.s[1:], fields.pos+1, c
	return err
}

// castAddress reads the address of a typecast, with braces around it or without.
func (p *exprParser) castAddress(c *Cast, t text) error {
	if n := len(t.s) - 1; n > 0 && t.s[0] == '(' && t.outside(")") == n {
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

// outside finds the first part of the text, of one byte or more, that stands in no braces but those that it closes; -1 if there is none.
func (t text) outside(part string) int {
	depth := 0
	for i := range len(t.s) {
		if t.in[i] {
			continue
		}
		switch t.s[i] {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 && strings.HasPrefix(t.s[i:], part) {
			return i
		}
	}
	return -1
}
