package event

import "strings"

// histUse is what an expression is for.
type histUse uint8

const (
	histKey histUse = iota
	histVal
	histVar
	histOperand
)

// expr parses an expression. One that is a field alone is no more than that.
func (h *Hist) expr(text string, use histUse) (HistField, error) {
	operators := 0
	x, err := h.tree(text, use, &operators)
	if err != nil {
		return HistField{}, err
	}
	if HistSimple(text) && !isDigit0(text) && strings.Count(text, ".") < 2 {
		return h.Field(text, use == histVal)
	}
	f := HistField{Name: text, Expr: x}
	if x.unqualified() {
		f.Name = text[1:]
	}
	return f, nil
}

// unqualified says whether an expression is a variable whose event it does not name.
func (x *HistExpr) unqualified() bool {
	system, _, _ := HistParts(x.Text)
	return x.Op == HistAtom && system == "" && !HistSimple(x.Text)
}

func isDigit0(s string) bool { return s != "" && isDigit(s[0]) }

// tree splits an expression at its last operator that binds least.
func (h *Hist) tree(text string, use histUse, operators *int) (*HistExpr, error) {
	if *operators > MaxHistOperands {
		return nil, h.Refuse(HistTooManySubexpr, text, "keep a part in a variable")
	}
	op, at := rootOperator(text)
	switch op {
	case HistAtom:
		return &HistExpr{Text: text}, h.atom(text, use)
	case HistNeg:
		return h.negated(text, operators)
	}
	*operators++
	x := &HistExpr{Op: op, Text: text}
	left, right := text[:at], text[at+1:]
	if left == "" || right == "" {
		return nil, h.Refuse(HistErrno, text, "an operator stands between two operands")
	}
	var err error
	if x.X, err = h.tree(left, histOperand, operators); err != nil {
		return nil, err
	}
	x.Y, err = h.tree(right, histOperand, operators)
	return x, err
}

// rootOperator finds the operator that is computed last.
func rootOperator(s string) (HistOp, int) {
	// The minus of .sym-offset is none.
	s = strings.ReplaceAll(s, ".sym-offset", ".sym_offset")
	minus, plus := strings.LastIndexByte(s, '-'), strings.LastIndexByte(s, '+')
	div, mul := strings.LastIndexByte(s, '/'), strings.LastIndexByte(s, '*')
	switch {
	case minus == 0:
		return HistNeg, 0
	case plus > minus:
		return HistAdd, plus
	case minus > 0:
		return HistSub, minus
	case mul > div:
		return HistMul, mul
	case div >= 0:
		return HistDiv, div
	}
	return HistAtom, 0
}

// negated parses -(EXPRESSION).
func (h *Hist) negated(text string, operators *int) (*HistExpr, error) {
	*operators++
	if *operators > MaxHistOperands {
		return nil, h.Refuse(HistTooManySubexpr, text, "keep a part in a variable")
	}
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	switch {
	case open < 0 || end < 2:
		return nil, h.Refuse(HistErrno, text, "a minus in front takes parentheses: -(EXPRESSION)")
	case end != len(text)-1:
		return nil, h.Refuse(HistUnaryMinusSubexpr, text[2:], "keep the part in parentheses in a variable")
	}
	sub, err := h.tree(text[2:end], histOperand, operators)
	return &HistExpr{Op: HistNeg, X: sub, Text: text}, err
}

// atom says what is wrong with a field, a number or a variable, as far as its text tells.
func (h *Hist) atom(text string, use histUse) error {
	if isDigit0(text) {
		if _, ok := HistConst(text); !ok {
			return h.Refuse(HistExpectNumber, text, "")
		}
		return nil
	}
	if _, _, rest := HistParts(text); HistSimple(rest) {
		_, err := h.Field(rest, use == histVal)
		return err
	}
	return nil
}

// HistConst is the number that an operand stands for; ok is false if it is no number.
func HistConst(text string) (n uint64, ok bool) {
	if !isDigit0(text) {
		return 0, false
	}
	return parseUint(text)
}

// HistParts splits SYSTEM.EVENT.REST; system and event are empty if the text names none.
func HistParts(text string) (system, event, rest string) {
	if strings.Count(text, ".") < 2 {
		return "", "", text
	}
	system, rest, _ = strings.Cut(text, ".")
	event, rest, _ = strings.Cut(rest, ".")
	return system, event, rest
}

// HistSimple says whether the text of an expression is a field or a number: neither an operation nor a variable.
func HistSimple(text string) bool {
	op, _ := rootOperator(text)
	return op == HistAtom && !(len(text) > 1 && text[0] == '$')
}
