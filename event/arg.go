package event

import (
	"fmt"
	"strings"
)

// isReserved has the names of fields that every record has.
func isReserved(name string) bool {
	switch name {
	case "common_type", "common_flags", "common_preempt_count", "common_pid",
		"common_tgid", "__probe_ip", "__probe_ret_ip", "__probe_func":
		return true
	}
	return false
}

func (d *Def) parseArgs(ws []text) error {
	if len(ws) > MaxArgs {
		return d.Refuse(TooManyArgs, ws[0].pos, "the most is 128", nil)
	}
	used := map[string]bool{}
	for i, w := range ws {
		a, err := d.parseArg(i, w, used)
		if err != nil {
			return err
		}
		used[a.Name] = true
		d.Args = append(d.Args, a)
	}
	return d.checkAllArgs()
}

// all says whether the argument stands for several.
func (a *Arg) all() bool {
	return a.Expr != nil && (a.Expr.Kind == ExprAllArgs || a.Expr.Kind == ExprAllVars)
}

// checkAllArgs lets $arg*, or $vars, stand once.
func (d *Def) checkAllArgs() error {
	n := 0
	for _, a := range d.Args {
		if !a.all() {
			continue
		}
		if n++; n > 1 {
			return d.Refuse(DoubleArgs, a.Pos, "", nil)
		}
	}
	return nil
}

func (d *Def) parseArg(i int, w text, used map[string]bool) (Arg, error) {
	a := Arg{Pos: w.pos}
	body, eq := w, w.index("=")
	if eq >= 0 {
		a.Name, body = w.s[:eq], w.from(eq+1)
		switch {
		case eq == 0:
			return a, d.Refuse(NoArgName, w.pos, "", nil)
		case eq > MaxArgName:
			return a, d.Refuse(ArgNameTooLong, w.pos, "the most is 32 characters", nil)
		}
	} else {
		a.Name = autoName(i, body)
	}
	switch {
	case !isName(a.Name, false):
		return a, d.Refuse(BadArgName, w.pos, "letters, digits and _ are taken, no digit in front", nil)
	case isReserved(a.Name):
		return a, d.Refuse(UsedArgName, w.pos, "the name is reserved", nil)
	case used[a.Name]:
		return a, d.Refuse(UsedArgName, w.pos, fmt.Sprintf("another argument is called %s", a.Name), nil)
	}
	a.Text = body.s
	if err := d.parseBody(&a, body, eq >= 0); err == nil || !d.kernel {
		return a, err
	}
	a.Expr, a.Type = nil, TypeSpec{Pos: body.pos}
	return a, nil
}

// autoName names an argument that has none.
func autoName(i int, body text) string {
	s, _, _ := strings.Cut(body.s, ":")
	if isName(s, false) && len(s) <= MaxArgName {
		return s
	}
	return fmt.Sprintf("arg%d", i+1)
}

// parseBody reads EXPRESSION[:TYPE].
func (d *Def) parseBody(a *Arg, body text, named bool) (err error) {
	switch {
	case len(body.s)-assertedLen(body.s) > MaxArgText:
		return d.Refuse(ArgTooLong, body.pos, "the most is 63 characters", nil)
	case body.s == "":
		return d.Refuse(NoArgBody, body.pos, "", nil)
	}
	expr := body
	a.Type = DefaultType
	a.Type.Pos = body.pos
	if i := body.colon(); i >= 0 {
		expr = body.until(i)
		if a.Type, err = d.parseType(body.from(i + 1)); err != nil {
			return err
		}
	}
	if (expr.s == allArgs || expr.s == allVars) && (named || len(expr.s) < len(body.s)) {
		return d.Refuse(BadVar, expr.pos, expr.s+" stands alone, without name and type", nil)
	}
	p := exprParser{d: d}
	if a.Expr, err = p.top(expr); err != nil {
		return err
	}
	if a.Expr.isPath() {
		return d.bits(&a.Type)
	}
	if a.all() {
		return nil
	}
	if err := d.watchType(a); err != nil {
		return err
	}
	if err := d.fit(a); err != nil {
		return err
	}
	return p.checkOps(a, body.pos)
}
