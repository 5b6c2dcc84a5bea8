package event

import "strings"

// MaxFilterString is the most bytes of a string in a filter, with its NUL (MAX_FILTER_STR_VAL of Linux 6.18).
const MaxFilterString = 256

// maxFilter is the most bytes of a filter, with its NUL: a page of the kernel's.
const maxFilter = 4096

// maxFilterNumber is the most bytes of a number, with its NUL.
const maxFilterNumber = 24

// ParseFilter reads a filter. Its errors are *FilterError.
//
// The grammar is that of the kernel: && binds tighter than ||, ! stands before a test or a parenthesis, and what follows
// the last operator may be missing, which then counts for nothing (behind && only if no || stands before it).
func ParseFilter(text string, scope FilterScope) (*Filter, error) {
	text = strings.TrimRight(text, " \t\n\v\f\r")
	p := &filterParser{s: text, scope: scope}
	if len(text) >= maxFilter {
		return nil, p.wrong(maxFilter, "it is too long: at most 4,095 bytes are read")
	}
	if err := p.balanced(); err != nil {
		return nil, err
	}
	root, err := p.expression()
	if err != nil {
		return nil, err
	}
	if root == nil {
		return nil, p.fail(FilterNoFilter, len(text))
	}
	return &Filter{Text: text, Root: root}, nil
}

type filterParser struct {
	s     string
	at    int
	scope FilterScope
}

func (p *filterParser) fail(c FilterCode, pos int) *FilterError {
	return &FilterError{Code: c, Filter: p.s, Pos: pos}
}

// wrong makes an error for which the kernel has no text.
func (p *filterParser) wrong(pos int, why string) *FilterError {
	return &FilterError{Code: FilterErrno, Filter: p.s, Pos: pos, Why: why}
}

// noField makes an error for what stands where the name of a field is wanted.
func (p *filterParser) noField(why string) *FilterError {
	e := p.wrong(p.at, why)
	e.noField = true
	return e
}

// balanced finds parentheses and quotes without a partner: errors of these come before all others.
func (p *filterParser) balanced() error {
	var open []int
	quote, last, tests := byte(0), 0, 0
	for i := 0; i < len(p.s); i++ {
		switch c := p.s[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case isFilterSpace(c):
		case c == '"' || c == '\'':
			quote, last = c, i
			tests++
		case c == '(':
			open = append(open, i)
		case c == ')':
			if len(open) == 0 {
				return p.fail(FilterTooManyClose, i)
			}
			open = open[:len(open)-1]
		case c != '&' && c != '|':
			tests++
		}
	}
	switch {
	case quote != 0:
		return p.fail(FilterMissingQuote, last)
	case len(open) > 0:
		return p.fail(FilterTooManyOpen, open[len(open)-1])
	case tests == 0:
		e := p.wrong(0, "it compares nothing")
		e.noField = strings.ContainsAny(p.s, "&|") // the kernel has looked for a field before them
		return e
	}
	return nil
}

func isFilterSpace(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' }

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func (p *filterParser) space() {
	for p.at < len(p.s) && isFilterSpace(p.s[p.at]) {
		p.at++
	}
}

// peek gives the byte that comes n further; 0 at the end.
func (p *filterParser) peek(n int) byte {
	if p.at+n < len(p.s) {
		return p.s[p.at+n]
	}
	return 0
}

// expression reads what stands in parentheses, or all of the filter, and stops behind it; nil: nothing stands there.
func (p *filterParser) expression() (*FilterTerm, error) {
	var all, any []*FilterTerm
	for {
		t, err := p.operand()
		if err != nil {
			return nil, err
		}
		if t == nil {
			break
		}
		all = append(all, t)
		op, err := p.connective()
		if err != nil {
			return nil, err
		}
		if op != '&' {
			any, all = append(any, joined(TermAnd, all)), nil
		}
		if op != '&' && op != '|' {
			break
		}
	}
	if len(all) > 0 { // the filter ends with &&
		if len(any) > 0 { // the kernel's program would not end
			return nil, p.wrong(p.at, "nothing follows the last &&")
		}
		any = append(any, joined(TermAnd, all))
	}
	if len(any) == 0 {
		return nil, nil
	}
	return joined(TermOr, any), nil
}

// joined makes one term of several.
func joined(kind TermKind, ts []*FilterTerm) *FilterTerm {
	if len(ts) == 1 {
		return ts[0]
	}
	return &FilterTerm{Kind: kind, Terms: ts}
}

// operand reads a test or an expression in parentheses; nil at the end.
func (p *filterParser) operand() (*FilterTerm, error) {
	not := false
	for {
		p.space()
		switch c := p.peek(0); {
		case c == 0:
			return nil, nil
		case c == '!' && p.peek(1) != '=' && p.peek(1) != '~':
			not = !not
			p.at++
		case c == '(':
			p.at++
			t, err := p.expression()
			if err != nil {
				return nil, err
			}
			if t == nil {
				return nil, p.noField("nothing is compared between the parentheses")
			}
			return negated(t, not), nil
		default:
			t, err := p.test()
			if err != nil {
				return nil, err
			}
			return &FilterTerm{Test: t, Not: not}, nil
		}
	}
}

func negated(t *FilterTerm, not bool) *FilterTerm {
	if not {
		n := *t
		n.Not = !n.Not
		return &n
	}
	return t
}

// connective reads what stands behind an operand: && or ||, given as one byte, a closing parenthesis, or the end (0).
func (p *filterParser) connective() (byte, error) {
	p.space()
	c := p.peek(0)
	switch {
	case c == 0:
		return 0, nil
	case c == ')':
		p.at++
		return c, nil
	case (c == '&' || c == '|') && p.peek(1) == c:
		p.at += 2
		return c, nil
	}
	return 0, p.fail(FilterTooManyPreds, p.at)
}

// test reads a comparison. An error's place is one behind where the kernel's parser stands, as its own are.
func (p *filterParser) test() (*FilterTest, error) {
	p.space()
	start := p.at
	for isWord(p.peek(0)) {
		p.at++
	}
	if p.at == start {
		return nil, p.noField("the name of a field is wanted here")
	}
	name := p.s[start:p.at]
	f, ok := p.scope.Field(name)
	if !ok {
		return nil, p.behind(FilterFieldNotFound)
	}
	p.word(".ustring")
	function := p.word(".function")
	p.space()
	op, ok := p.operator()
	if !ok {
		return nil, p.behind(FilterInvalidOp)
	}
	p.space()
	t := &FilterTest{Field: f, Op: op}
	switch c := p.peek(0); {
	case function:
		return t, p.function(t)
	case strings.HasPrefix(p.s[p.at:], "CPUS"):
		return t, p.cpus(t)
	case c == '"' || c == '\'':
		return t, p.str(t)
	case isDigit(c) || c == '-':
		return t, p.number(t)
	}
	return nil, p.behind(FilterInvalidValue)
}

// behind makes an error at the place where the parser stands.
func (p *filterParser) behind(c FilterCode) *FilterError { return p.fail(c, p.at+1) }

// word takes a word if it stands next.
func (p *filterParser) word(w string) bool {
	if !strings.HasPrefix(p.s[p.at:], w) {
		return false
	}
	p.at += len(w)
	return true
}

func (p *filterParser) operator() (FilterOp, bool) {
	for i, s := range filterOps {
		if p.word(s) {
			return FilterOp(i), true
		}
	}
	return 0, false
}

// function reads the name or address of a function, behind .function.
func (p *filterParser) function(t *FilterTest) error {
	switch {
	case t.Field.Text || t.Field.Size != 8:
		return p.behind(FilterIllegalFieldOp)
	case t.Op != FilterEQ && t.Op != FilterNE:
		return p.behind(FilterInvalidOp)
	}
	start, name, addr := p.at, "", uint64(0)
	if isDigit(p.peek(0)) {
		p.digits()
		if p.at-start >= maxFilterNumber {
			return p.behind(FilterOperandTooLong)
		}
		v, ok := parseFilterNumber(p.s[start:p.at], false)
		if !ok {
			return p.behind(FilterInvalidValue)
		}
		addr = v
	} else {
		for p.peek(0) != 0 && !isFilterSpace(p.peek(0)) {
			p.at++
		}
		name = p.s[start:p.at]
	}
	lo, hi, ok := p.scope.Function(name, addr)
	if !ok {
		return p.behind(FilterNoFunction)
	}
	t.Kind, t.Num, t.End = TestRange, lo, hi
	return nil
}

// digits passes what may be a number.
func (p *filterParser) digits() {
	for isDigit(p.peek(0)) || isLetter(p.peek(0)) {
		p.at++
	}
}

// cpus reads CPUS{list}.
func (p *filterParser) cpus(t *FilterTest) error {
	if t.Field.Text || t.Op != FilterEQ && t.Op != FilterNE && t.Op != FilterAnd {
		return p.behind(FilterIllegalFieldOp)
	}
	p.at += len("CPUS")
	open := p.peek(0) == '{'
	p.at++
	if !open {
		return p.behind(FilterMissingBraceOpen)
	}
	list, _, closed := strings.Cut(p.s[min(p.at, len(p.s)):], "}")
	p.at += len(list)
	if !closed {
		return p.behind(FilterMissingBraceClose)
	}
	var ok bool
	if t.CPUs, ok = parseCPUList(list); !ok {
		return p.behind(FilterInvalidCPUList)
	}
	t.Kind = TestCPUs
	p.at++
	return nil
}

// str reads a string between quotes.
func (p *filterParser) str(t *FilterTest) error {
	switch {
	case t.Op != FilterEQ && t.Op != FilterNE && t.Op != FilterGlob:
		return p.behind(FilterIllegalFieldOp)
	case !t.Field.Text:
		return p.behind(FilterExpectDigit)
	}
	quote := p.s[p.at]
	p.at++
	n := strings.IndexByte(p.s[p.at:], quote)
	if n < 0 {
		p.at = len(p.s)
		return p.behind(FilterMissingQuote)
	}
	t.Str = p.s[p.at : p.at+n]
	p.at += n
	if n >= MaxFilterString {
		return p.behind(FilterOperandTooLong)
	}
	p.at++
	t.Kind = TestString
	if t.Op == FilterGlob {
		t.Kind = TestGlob
		t.Str, t.Not = strings.CutPrefix(t.Str, "!")
		if t.Str != "" && isDigit(t.Str[0]) { // the kernel takes such a pattern for the number of an event, and then as it is
			t.Kind = TestString
		}
	}
	return nil
}

// number reads a number: of a signed field it may be negative.
func (p *filterParser) number(t *FilterTest) error {
	switch {
	case t.Field.Text:
		return p.behind(FilterExpectString)
	case t.Op == FilterGlob, t.Field.Size == 0:
		return p.behind(FilterIllegalFieldOp)
	}
	start := p.at
	if p.peek(0) == '-' {
		p.at++
	}
	p.digits()
	if p.at-start >= maxFilterNumber {
		return p.behind(FilterOperandTooLong)
	}
	v, ok := parseFilterNumber(p.s[start:p.at], t.Field.Signed)
	if !ok {
		return p.fail(FilterIllegalIntval, start+1)
	}
	t.Num = v
	return nil
}
