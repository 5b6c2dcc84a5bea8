package event

import (
	"math"
	"strings"
)

// WatchGroup is the group of a watchpoint that names none.
const WatchGroup = "wprobes"

// parseWatch reads [r|w|rw|x]@PLACE[:LEN].
func (d *Def) parseWatch(w text) error {
	p, watched, bad := parseWatch(w)
	if bad == nil && watched.Access == Read && !d.kernel {
		bad = &errPlace{BadProbeAddr, 0, "the processor can not watch reads alone: use rw"}
	}
	if bad != nil {
		return d.Refuse(bad.code, w.pos+bad.at, bad.text, nil)
	}
	p.Pos += w.pos
	d.Place, d.Watched = p, watched
	return nil
}

// parseWatch gives a Place whose Pos counts from the word's start.
func parseWatch(w text) (p Place, watched Watched, bad *errPlace) {
	if i := w.strayQuote(); i >= 0 {
		return p, watched, &errPlace{BadProbeAddr, i, "the quote is not closed"}
	}
	at := w.index("@")
	if at < 0 {
		return p, watched, &errPlace{BadProbeAddr, 0, "an @ stands before what is watched: @SYMBOL, w@SYMBOL+OFFSET, @ADDRESS"}
	}
	if at > 0 {
		for watched.Access = 0; accesses[watched.Access] != w.s[:at]; {
			if watched.Access++; int(watched.Access) == len(accesses) {
				return p, watched, &errPlace{BadProbeAddr, 0, "before the @ stands w, rw or x"}
			}
		}
	}
	p.Pos = at + 1
	t, bad := watched.length(w.from(at + 1))
	if bad == nil {
		bad = p.watched(t)
	}
	if bad != nil {
		bad.at += at + 1
	}
	return p, watched, bad
}

// length takes the :LEN off the end of a place.
func (x *Watched) length(t text) (text, *errPlace) {
	i := t.lastIndex(":")
	if i < 0 || i > 0 && t.s[i-1] == ':' {
		return t, nil
	}
	s := t.s[i+1:]
	switch {
	case s == "":
		return t, &errPlace{BadProbeAddr, i, "behind the colon stands the length"}
	case strings.Trim(s, "0123456789") != "": // MOD:SYM, MOD:0xADDR
		return t, nil
	case len(s) > 1 || !strings.Contains("1248", s):
		return t, &errPlace{BadProbeAddr, i + 1, "the length is 1, 2, 4 or 8; an address of an object begins with 0x"}
	}
	x.Len = int(s[0] - '0')
	if x.Access == Execute && x.Len != 8 {
		return t, &errPlace{BadProbeAddr, i + 1, "x watches an instruction, which has no length"}
	}
	return t.until(i), nil
}

// watched reads [MOD:]SYM[+-OFFSET] and [MOD:]ADDR.
func (p *Place) watched(t text) *errPlace {
	if i := suffix(t); i >= 0 {
		return &errPlace{BadAddrSuffix, i, "nothing follows what is watched but its length"}
	}
	if v, ok := parseUint(t.s); ok {
		p.Kind, p.Addr = PlaceAddr, v
		return nil
	}
	at := 0
	if i := t.colon(); i >= 0 {
		left, right := t.until(i), t.from(i+1)
		if left.unquoted() == "" || right.s == "" {
			return &errPlace{BadProbeAddr, 0, "on both sides of the colon stands something: OBJECT:SYMBOL"}
		}
		p.Module, t, at = left.unquoted(), right, i+1
		if v, ok := parseUint(t.s); ok {
			p.Kind, p.Addr = PlaceAddr, v
			return nil
		}
	}
	return p.variable(t, at)
}

// variable reads SYM[+-OFFSET], which starts at byte at of the place. The offset of a variable may be
// negative: then Offset is its two's complement.
func (p *Place) variable(t text, at int) *errPlace {
	name, off := t, int64(0)
	if i := t.lastIndex("+-"); i > 0 && i+1 < len(t.s) && isDigit(t.s[i+1]) {
		if n, ok := parseInt(t.s[i:]); ok {
			if n > math.MaxUint32 || n < -math.MaxUint32 {
				return &errPlace{BadProbeAddr, at + i, "an offset is less than 1<<32"}
			}
			name, off = t.until(i), n
		}
	}
	if bad := p.symbol(name, 0); bad != nil {
		if name.s == "" {
			bad.text = "the symbol is missing"
		}
		bad.at += at
		return bad
	}
	if p.Glob || p.Offset != 0 {
		return &errPlace{BadProbeAddr, at, "one symbol, or SYMBOL+OFFSET, is watched, and no pattern; put quotes around an unusual name"}
	}
	p.Offset = uint64(off)
	return nil
}

// watchedOnly begins the errors of arguments that a watchpoint can not record: what the kernel keeps of an access
// are the thread's registers.
const watchedOnly = "a watchpoint records registers (%REG), $stack, $addr and constants: "

// watchExpr refuses an expression that a watchpoint can not record. It reads $addr.
func (p *exprParser) watchExpr(e *Expr, t text) (done bool, err error) {
	switch {
	case t.s == "$addr":
		e.Kind = ExprWatched
		return true, nil
	case t.s == "$stack", t.s[0] == '%', t.s[0] == '\\':
		return false, nil
	case t.s == "$comm", t.s == "$COMM":
		return true, p.refuse(BadVar, t.pos, watchedOnly+"the line begins with the thread's name")
	case t.s[0] == '$':
		return true, p.refuse(BadVar, t.pos, watchedOnly+"take the register that holds the value, or probe the function (p, r)")
	case t.s[0] == '+' || t.s[0] == '-' || t.s[0] == '@':
		return true, p.refuse(BadFetchArg, t.pos, watchedOnly+"it reads no memory; to read some, probe the instruction (p)")
	}
	return true, p.refuse(NosupBTFArg, t.pos, watchedOnly+"names belong to a function; take the register that holds the value")
}

// watchType refuses a type that needs memory.
func (d *Def) watchType(a *Arg) error {
	if d.Kind == Watch && a.Expr.Kind != ExprString && (a.Type.IsString() || a.Type.Count > 0) {
		return d.Refuse(BadString, a.Type.Pos, watchedOnly+"it reads no memory; take a number", nil)
	}
	return nil
}
