package event

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

const (
	allArgs = "$arg*"
	allVars = "$vars"
	// The kernel compiles an argument to at most 16 instructions, the last of which
	// ends it.
	maxOps = 15
)

const retval = "retval"

// isRetval says whether what stands behind a $ is the result, or something in it.
func isRetval(s string) bool {
	rest, ok := strings.CutPrefix(s, retval)
	return ok && (rest == "" || rest[0] == '-' || rest[0] == '.' || rest[0] == '[')
}

// isPath says whether the value is found by the types of the program: a name, or what is in the result.
func (e *Expr) isPath() bool { return e.Kind == ExprName || e.Kind == ExprRetVal && e.Name != "" }

const knownVars = "known are $argN, $retval, $duration, $stack, $stackN and $comm"

// isMemory says whether the value is loaded from memory.
func (e *Expr) isMemory() bool {
	return e.Kind == ExprDeref || e.Kind == ExprAddr || e.Kind == ExprSymbol || e.Kind == ExprFile
}

// twoWords says whether the value has a word behind it: the length of a gostring.
func (e *Expr) twoWords() bool {
	return e.Kind == ExprArg || e.Kind == ExprRetVal || e.Kind == ExprStackN
}

// exprParser reads one expression; ops counts the instructions that the kernel would
// take for it.
type exprParser struct {
	d   *Def
	ops int
}

func (p *exprParser) refuse(c Code, pos int, text string) error {
	return p.d.Refuse(c, pos, text, nil)
}

// top reads a whole argument: what only stands there, not in a dereference, is read here.
func (p *exprParser) top(t text) (*Expr, error) {
	switch {
	case p.d.Kind == Watch: // none of them
	case t.s == allArgs:
		return &Expr{Kind: ExprAllArgs, Pos: t.pos}, nil
	case t.s == allVars:
		return &Expr{Kind: ExprAllVars, Pos: t.pos}, nil
	}
	return p.parse(t)
}

func (p *exprParser) parse(t text) (*Expr, error) {
	e := &Expr{Pos: t.pos}
	if t.s == "" {
		return nil, p.refuse(BadFetchArg, t.pos, "the expression is missing")
	}
	if p.d.Kind == Watch {
		if done, err := p.watchExpr(e, t); done {
			return e, err
		}
	}
	switch c := t.s[0]; {
	case c == '$':
		return e, p.variable(e, t.s[1:])
	case c == '%':
		if p.d.Function {
			return nil, p.refuse(BadVar, t.pos, "f records no registers: name a parameter, or write $argN; p records registers")
		}
		e.Kind, e.Name = ExprReg, t.s[1:]
		if !isRegName(e.Name) {
			return nil, p.refuse(BadRegName, t.pos, "")
		}
		return e, nil
	case c == '@':
		return e, p.memory(e, t)
	case c == '+' || c == '-':
		return e, p.deref(e, t)
	case c == '\\':
		return e, p.immediate(e, t)
	case c == '(' && p.d.Kind == Watch:
		return nil, p.refuse(NosupBTFArg, t.pos, "a typecast reads memory")
	case c == '(':
		return e, p.cast(e, t)
	}
	return e, p.name(e, t)
}

func isRegName(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) && !isName(s[i:i+1], false) {
			return false
		}
	}
	return s != ""
}

// variable reads what stands behind a $.
func (p *exprParser) variable(e *Expr, s string) error {
	switch {
	case s == "comm" || s == "COMM":
		e.Kind = ExprComm
	case s == "stack":
		e.Kind = ExprStack
	case s == "addr":
		return p.refuse(BadVar, e.Pos, "an address is accessed at a watchpoint: w")
	case isRetval(s) && p.d.Kind != Return:
		return p.refuse(RetvalOnProbe, e.Pos, "make it a return probe: r, or FUNCTION%return")
	case s == retval:
		e.Kind = ExprRetVal
	case isRetval(s):
		if err := p.path(e, text{s: "$" + s, pos: e.Pos}, 1); err != nil {
			return err
		}
		e.Kind = ExprRetVal
	case s == "duration" && p.d.Kind != Return:
		return p.refuse(BadVar, e.Pos, "a call has a duration when it returns: make it a return probe: r, or FUNCTION%return")
	case s == "duration":
		e.Kind = ExprDuration
	case strings.HasPrefix(s, "stack"):
		return p.numbered(e, ExprStackN, s[len("stack"):], BadStackNum)
	case strings.HasPrefix(s, "arg"):
		return p.numbered(e, ExprArg, s[len("arg"):], BadArgNum)
	default:
		return p.refuse(BadVar, e.Pos, knownVars)
	}
	return nil
}

// numbered reads the N of $stackN and $argN. Words of the stack count from 0, arguments
// from 1.
func (p *exprParser) numbered(e *Expr, kind ExprKind, s string, bad Code) error {
	for i := range len(s) {
		if !isDigit(s[i]) {
			return p.refuse(BadVar, e.Pos, knownVars)
		}
	}
	n, err := strconv.ParseUint(s, 10, 64)
	switch {
	case err != nil:
		return p.refuse(BadVar, e.Pos, "behind it stands a number of 64 bits, in decimal")
	case kind == ExprArg && (n > MaxStackNum || n == 0):
		return p.refuse(bad, e.Pos, fmt.Sprintf("the arguments are $arg1 to $arg%d", MaxStackNum))
	case n > MaxStackNum && n < 1<<48:
		return p.refuse(bad, e.Pos, fmt.Sprintf("the words are $stack0 to $stack%d; memory farther away is read by its distance in bytes: +%d($stack)", MaxStackNum, 8*n))
	case n > MaxStackNum:
		return p.refuse(bad, e.Pos, fmt.Sprintf("the words are $stack0 to $stack%d", MaxStackNum))
	}
	e.Kind, e.Num = kind, n
	return nil
}

// memory reads @ADDR, @SYM[+-OFFSET] and @+OFFSET.
func (p *exprParser) memory(e *Expr, t text) error {
	p.ops = 1
	s := t.from(1)
	switch {
	case s.s == "":
		return p.refuse(BadMemAddr, t.pos, "behind @ stands an address or a symbol")
	case isDigit(s.s[0]):
		n, ok := parseUint(s.s)
		if !ok {
			return p.d.Refuse(BadMemAddr, t.pos, "", tooLarge(s.s))
		}
		e.Kind, e.Num = ExprAddr, n
		return nil
	case s.s[0] == '+':
		if !p.d.Uprobe {
			return p.refuse(FileOnKprobe, t.pos, "use @SYMBOL or @ADDRESS")
		}
		var ok bool
		if e.Off, ok = parseInt(s.s[1:]); ok {
			e.Kind = ExprFile
			return nil
		}
		return p.refuse(BadFileOffs, t.pos, "behind @+ stands a number, the offset in the file")
	}
	p.ops = 2
	e.Kind = ExprSymbol
	name := s
	if i := s.lastIndex("+-"); i >= 0 && i+1 < len(s.s) && isDigit(s.s[i+1]) {
		off, ok := parseInt(s.s[i:])
		if ok {
			e.Off, name = off, s.until(i)
		} else if s.s[i] == '+' {
			return p.refuse(BadMemAddr, t.pos, "behind the + stands a number")
		}
	}
	e.Name = name.unquoted()
	if e.Name == "" || name.index(`+*()"\%!=`) >= 0 {
		return p.refuse(BadMemAddr, t.pos, "put quotes around an unusual name")
	}
	return nil
}

// deref reads +OFFSET(EXPRESSION), the sign + or -, with a u behind it or not.
func (p *exprParser) deref(e *Expr, t text) error {
	e.Kind = ExprDeref
	sign, off := t.s[:1], t.from(1)
	if strings.HasPrefix(off.s, "u") {
		e.User, off = true, off.from(1)
	}
	open := off.index("(")
	if open < 0 {
		return p.refuse(DerefNeedBrace, t.pos, "write +OFFSET(EXPRESSION)")
	}
	num := off.s[:open]
	if sign == "-" {
		num = sign + num // the kernel drops the +, so that +-8(...) is -8(...)
	}
	var ok bool
	if e.Off, ok = parseInt(num); !ok {
		return p.d.Refuse(BadDerefOffs, t.pos, "", tooLarge(num))
	}
	in := off.from(open + 1)
	end := in.lastIndex(")")
	switch {
	case end < 0:
		return p.refuse(DerefOpenBrace, in.end(), "")
	case end+1 < len(in.s):
		return p.refuse(BadFetchArg, in.pos+end+1, "nothing may follow the brace")
	}
	return p.inner(e, in.until(end))
}

// inner reads what stands in the braces of a dereference.
func (p *exprParser) inner(e *Expr, in text) error {
	sub, err := p.parse(in)
	if err != nil {
		return err
	}
	switch sub.Kind {
	case ExprComm, ExprString:
		return p.refuse(CommCantDeref, in.pos, "")
	case ExprDuration:
		return p.refuse(BadFetchArg, in.pos, "a duration is no address")
	}
	if p.ops++; p.ops >= maxOps {
		return p.refuse(TooManyOps, in.pos, "the kernel takes 13 dereferences, one less of @SYM, of an array and of bits")
	}
	e.Sub = sub
	return nil
}

// immediate reads \NUMBER and \"STRING".
func (p *exprParser) immediate(e *Expr, t text) error {
	s := t.s[1:]
	if strings.HasPrefix(s, `"`) {
		e.Kind, e.Name = ExprString, strings.TrimSuffix(s[1:], `"`)
		if len(s) < 2 || s[len(s)-1] != '"' {
			return p.refuse(ImmstrNoClose, t.end(), "a string holds no space")
		}
		return nil
	}
	e.Kind = ExprImm
	if n, ok := parseUint(s); ok && s[0] != '+' {
		e.Num = n
		return nil
	}
	n, ok := parseInt(strings.TrimPrefix(s, "+"))
	if !ok {
		return p.d.Refuse(BadImm, t.pos+1, "", tooLarge(s))
	}
	e.Num = uint64(n)
	return nil
}

// name reads a variable with fields.
func (p *exprParser) name(e *Expr, t text) error {
	if strings.HasPrefix(t.s, "this_cpu_") {
		return p.refuse(NosupPercpu, t.pos, "")
	}
	return p.path(e, t, 0)
}

// path reads a variable, whose name begins behind skip bytes, with the steps behind it.
func (p *exprParser) path(e *Expr, t text, skip int) error {
	for i := skip; i < len(t.s); i++ {
		switch c := t.s[i]; {
		case isDigit(c) && i > 0 || isName(string(c), false):
		case i == 0 && c == '~' && !p.d.kernel: // a result of Go that has no name
		case i > 0 && strings.HasPrefix(t.s[i:], ".(") && !p.d.kernel:
			n := assertionEnd(t.s[i:])
			if n == 0 {
				return p.refuse(BadFetchArg, t.pos+i+2, "in the braces of a type assertion stands a type of the program: w.(*net/http.response)")
			}
			i += n - 1
		case i > 0 && c == '.':
		case i > 0 && c == '-' && strings.HasPrefix(t.s[i:], "->"):
			i++
		case i > 0 && c == '-':
			return p.refuse(BadHyphen, t.pos+i, "")
		case i > 0 && c == '[' && !p.d.kernel:
			n := indexEnd(t.s[i:])
			if n == 0 {
				return p.refuse(BadFetchArg, t.pos+i, "in brackets stands the number of an element, from 0")
			}
			i += n - 1
		default:
			return p.refuse(BadFetchArg, t.pos, "")
		}
	}
	e.Kind, e.Name = ExprName, t.s
	return nil
}

// indexEnd is the length of [NUMBER] at the start of s; 0: there is none.
func indexEnd(s string) int {
	end := strings.IndexByte(s, ']')
	if end < 0 {
		return 0
	}
	if n, ok := parseUint(s[1:end]); !ok || n > math.MaxInt32 {
		return 0
	}
	return end + 1
}

// checkOps counts the instructions of storing the value.
func (p *exprParser) checkOps(a *Arg, pos int) error {
	t := &a.Type
	if !a.Expr.isMemory() || t.IsString() && t.Count > 0 {
		p.ops++
	}
	if t.Kind == Bits {
		p.ops++
	}
	if t.Count > 0 {
		p.ops++
	}
	if p.ops >= maxOps {
		return p.refuse(TooManyOps, pos, "the kernel takes 13 dereferences, one less of @SYM, of an array and of bits")
	}
	return nil
}
