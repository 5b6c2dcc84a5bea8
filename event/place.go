package event

import (
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
)

const returnSuffix = "%return"

// errPlace is a place that was refused, at a byte of its word.
type errPlace struct {
	code Code
	at   int
	text string
}

func (d *Def) parsePlace(w text) error {
	p, bad := parsePlace(w)
	if bad != nil {
		return d.Refuse(bad.code, w.pos+bad.at, bad.text, nil)
	}
	p.Pos = w.pos
	d.Place = p
	if p.Return {
		d.Kind = Return
	}
	return nil
}

func parsePlace(w text) (p Place, bad *errPlace) {
	if i := w.strayQuote(); i >= 0 {
		return p, &errPlace{BadProbeAddr, i, "the quote is not closed"}
	}
	if i := w.lastIndex("%"); i >= 0 && w.s[i:] == returnSuffix {
		p.Return, w = true, w.until(i)
	}
	if i := suffix(w); i >= 0 {
		return p, &errPlace{BadAddrSuffix, i, "the only suffix is %return"}
	}
	if v, ok := parseUint(w.s); ok {
		p.Kind, p.Addr = PlaceAddr, v
		return p, nil
	}
	i := w.colon()
	if i < 0 {
		bad = p.symbol(w, 0)
		return p, bad
	}
	left, right := w.until(i), w.from(i+1)
	if left.unquoted() == "" || right.s == "" {
		return p, &errPlace{BadProbeAddr, 0, "on both sides of the colon stands something: OBJECT:FUNCTION"}
	}
	if done, bad := p.number(left, right); done || bad != nil {
		return p, bad
	}
	p.Module = left.unquoted()
	bad = p.symbol(right, i+1)
	return p, bad
}

// suffix finds a % that is not part of a C++ operator; -1 if there is none.
func suffix(w text) int {
	for i := range len(w.s) {
		if w.s[i] == '%' && !w.in[i] && !strings.HasSuffix(w.s[:i], "operator") {
			return i
		}
	}
	return -1
}

// number takes LEFT:NUMBER.
func (p *Place) number(left, right text) (done bool, bad *errPlace) {
	slash := left.index("/") >= 0 || strings.Contains(left.unquoted(), "/")
	v, ok := parseUint(right.s)
	switch {
	case ok && isSource(left.unquoted()) && right.s[0] != '0':
		if v > math.MaxInt32 {
			return false, &errPlace{BadProbeAddr, len(left.s) + 1, "no file has so many lines"}
		}
		p.Kind, p.Path, p.Line = PlaceLine, left.unquoted(), int(v)
	case ok && slash:
		p.Kind, p.Path, p.Addr = PlaceFile, left.unquoted(), v
	case ok:
		p.Kind, p.Module, p.Addr = PlaceAddr, left.unquoted(), v
	case slash && isDigit(right.s[0]):
		if i := right.index("("); i >= 0 {
			return false, &errPlace{BadRefcnt, len(left.s) + 1 + i, "reference counters are not supported: leave it out"}
		}
		return false, &errPlace{BadUprobeOffs, len(left.s) + 1, "behind PATH: stands a number, the offset in the file"}
	default:
		return false, nil
	}
	return true, nil
}

// isSource tells whether FILE:LINE may name a file, by its ending.
func isSource(name string) bool {
	switch path.Ext(name) {
	case ".go", ".c", ".h", ".cc", ".cpp", ".cxx", ".C", ".hh", ".hpp", ".hxx", ".rs", ".s", ".S", ".zig", ".d":
		return true
	}
	return false
}

// symbol takes SYM[+OFFSET], which starts at byte at of the place.
func (p *Place) symbol(t text, at int) *errPlace {
	name := t
	if i := t.lastIndex("+-"); i >= 0 && i+1 < len(t.s) && isDigit(t.s[i+1]) {
		off, ok := parseUint(t.s[i+1:])
		switch {
		case ok && t.s[i] == '-' && off != 0:
			return &errPlace{BadProbeAddr, 0, "an offset can not be negative"}
		case ok && off > math.MaxUint32:
			return &errPlace{BadProbeAddr, 0, "an offset is less than 1<<32"}
		case ok:
			p.Offset, name = off, t.until(i)
		case t.s[i] == '+':
			return &errPlace{BadProbeAddr, 0, "behind the + stands a number; put quotes around a name that holds a +"}
		}
	}
	if name.s == "" {
		return &errPlace{BadProbeAddr, 0, "the function is missing"}
	}
	if why := badSymbol(name); why != "" {
		return &errPlace{BadProbeAddr, 0, why}
	}
	p.Symbol = name.unquoted()
	if p.Symbol == "" {
		return &errPlace{BadProbeAddr, at, "the quotes are empty"}
	}
	if p.Glob = isGlob(name); p.Glob && (name.quoted() || name.colon() >= 0) {
		return &errPlace{BadProbeAddr, at, "a pattern holds neither quotes nor a second colon"}
	}
	return nil
}

// badSymbol says what is wrong with a name, "" if nothing is.
func badSymbol(t text) string {
	if isDigit(t.s[0]) && !isGlob(t) { // a function without a name goes by its address
		return "neither a number nor a name"
	}
	plus := t.index("+")
	plain := !t.quoted() && !strings.ContainsAny(t.s, ":./<(")
	if plus >= 0 && plain && !strings.Contains(t.s, "operator") {
		return "behind the + stands a number"
	}
	return ""
}

// isGlob says whether an unquoted name is a pattern. No patterns are: the pointers of
// (*T).M and of parameter lists, type arguments in brackets (a name with a dot before
// them), and the operators of C++.
func isGlob(t text) bool {
	s := t.s
	depth := 0
	for i := range len(s) {
		if t.in[i] {
			continue
		}
		switch s[i] {
		case '(':
			depth++
		case ')':
			depth--
		case '*', '?':
			if depth <= 0 && !strings.HasSuffix(s[:i], "operator") {
				return true
			}
		case '[':
			args := strings.IndexByte(s[:i], '.') >= 0 || strings.HasSuffix(s[:i], "operator")
			if depth <= 0 && !args && strings.IndexByte(s[i:], ']') > 1 {
				return true
			}
		}
	}
	return false
}

// String is the place in the form of a listing, without %return.
func (p Place) String() string {
	switch p.Kind {
	case PlaceAddr:
		return left(p.Module) + fmt.Sprintf("0x%x", p.Addr)
	case PlaceFile:
		return left(p.Path) + fmt.Sprintf("0x%x", p.Addr)
	case PlaceLine:
		return left(p.Path) + strconv.Itoa(p.Line)
	}
	plain := p.plainSymbol()
	s := left(p.Module) + quoteIf(p.Symbol, !plain && !p.Glob)
	if p.Offset != 0 || p.Glob && !plain { // in quotes it would be no pattern
		s += fmt.Sprintf("%+d", int64(p.Offset))
	}
	return s
}

// left is what stands left of a place's colon, and the colon.
func left(s string) string {
	if s == "" {
		return ""
	}
	return quoteIf(s, !plainLeft(s)) + ":"
}

func quoteIf(s string, quote bool) string {
	switch {
	case !quote:
		return s
	case strings.Contains(s, `"`):
		return "'" + s + "'"
	}
	return `"` + s + `"`
}

// plainLeft says whether what stands left of a colon needs no quotes.
func plainLeft(s string) bool {
	_, words := split(s)
	if len(words) != 1 || words[0].s != s {
		return false
	}
	return words[0].index(":%\"") < 0 && !words[0].quoted() && words[0].strayQuote() < 0
}

// plainSymbol says whether the symbol, behind its module, reads back as itself without
// quotes.
func (p Place) plainSymbol() bool {
	s := left(p.Module) + p.Symbol
	_, words := split(s)
	if len(words) != 1 || words[0].s != s {
		return false
	}
	if q, bad := parsePlace(words[0]); bad != nil || q != (Place{Module: p.Module, Symbol: p.Symbol, Glob: p.Glob}) {
		return false
	}
	var w Watched // where it is watched, no end of it may read as a length
	t, bad := w.length(words[0])
	return bad == nil && t.s == s
}
