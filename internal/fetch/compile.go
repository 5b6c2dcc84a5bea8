package fetch

import (
	"errors"
	"fmt"
	"slices"

	"kprobes.dev/kprobes/event"
)

// MaxFixed is the most bytes that the fixed part of a record's arguments takes (Linux 7,
// EVENT_TOO_BIG).
const MaxFixed = 3072

// Compile makes the program of a definition's arguments for one point. Its errors are
// *event.Error, with the column of what cannot be had there.
func Compile(def *event.Def, env Env, at Point) (*Program, error) {
	p := &Program{Args: make([]Arg, 0, len(def.Args)), Return: at == PointReturn}
	for i := range def.Args {
		a := &def.Args[i]
		if a.Expr.Kind == event.ExprAllArgs || a.Expr.Kind == event.ExprAllVars {
			if err := p.addAll(def, env, at, a); err != nil {
				return nil, err
			}
			continue
		}
		if err := p.add(def, env, at, a); err != nil {
			return nil, err
		}
	}
	if def.Stack > 0 {
		if err := p.addStack(def.Stack); err != nil {
			return nil, def.Refuse(event.EventTooBig, 0, err.Error(), nil)
		}
	}
	return p, nil
}

// add compiles an argument.
func (p *Program) add(def *event.Def, env Env, at Point, a *event.Arg) error {
	c := compiler{def: def, env: env, at: at, src: a}
	if err := c.compile(); err != nil {
		return err
	}
	if slices.ContainsFunc(p.Args, func(o Arg) bool { return o.Name == c.arg.Name }) { // one that $arg* stands for
		return def.Refuse(event.UsedArgName, a.Pos, fmt.Sprintf("%s is among those of $arg* or $vars", c.arg.Name), nil)
	}
	if err := p.place(&c.arg); err != nil {
		return def.Refuse(event.EventTooBig, a.Pos, err.Error(), nil)
	}
	if s, ok := c.arg.Chain.(saver); ok && c.arg.AtEntry {
		s.Save(&c.arg, len(p.Args))
	}
	p.Args = append(p.Args, c.arg)
	return nil
}

// addAll compiles $arg*, each parameter of the function that has a name, or $vars, inside of a function each variable there. One that
// can not be recorded is left out.
func (p *Program) addAll(def *event.Def, env Env, at Point, all *event.Arg) error {
	n, ok := env.(Namer)
	if !ok {
		return def.Refuse(event.NosupBTFArg, all.Pos, all.Text+" needs debug info; name the arguments: $arg1 $arg2", nil)
	}
	if in, ok := env.(Inliner); at == PointInside && all.Expr.Kind == event.ExprAllArgs && !(ok && in.Inlined()) {
		return def.Refuse(event.NofentryArgs, all.Pos, "$vars has the variables at the place", nil)
	}
	names, err := n.Params(at, all.Expr.Kind == event.ExprAllVars)
	if err != nil {
		return def.Refuse(event.NosupBTFArg, all.Pos, "name the arguments: $arg1 $arg2", err)
	}
	for _, name := range names {
		a := event.Arg{Name: name, Text: name, Pos: all.Pos, Expr: &event.Expr{Kind: event.ExprName, Name: name, Pos: all.Pos}, Type: event.DefaultType}
		a.Type.Pos = all.Pos
		var bad *event.Error
		switch err := p.add(def, env, at, &a); {
		case err == nil:
		case errors.As(err, &bad) && bad.Code != event.EventTooBig && bad.Code != event.UsedArgName:
			p.LeftOut = append(p.LeftOut, LeftOut{Name: name, Why: bad.Text})
		default:
			return err
		}
	}
	return nil
}

// place gives an argument its slot.
func (p *Program) place(a *Arg) error {
	a.Off = p.Fixed
	p.Fixed += a.slot()
	switch a.Store {
	case StoreString, StorePtrs, StoreCounted:
		p.Dynamic = true
	}
	if p.Fixed > MaxFixed {
		return fmt.Errorf("the arguments up to this one take %d bytes of %d", p.Fixed, MaxFixed)
	}
	return nil
}

// slot is the size of an argument's slot in bytes.
func (a *Arg) slot() int {
	switch a.Store {
	case StoreNone:
		return 0
	case StoreComm:
		return commSize
	case StoreSpan:
		return SpanSize
	case StoreArray:
		return (a.Count*a.Size + 7) &^ 7
	case StorePtrs:
		return 8 * a.Count
	}
	return 8
}

// compiler compiles one argument.
type compiler struct {
	def *event.Def
	env Env
	at  Point
	src *event.Arg
	arg Arg
	v   *Var // of a name
}

func (c *compiler) refuse(code event.Code, e *event.Expr, why string, cause error) error {
	return c.def.Refuse(code, e.Pos, why, cause)
}

func (c *compiler) compile() error {
	t := c.src.Type
	c.arg = Arg{
		Name: c.src.Name, Text: c.src.Text, Count: t.Count,
		Type: Type{Kind: t.Kind, Size: t.Size, Width: t.Width, Shift: t.Shift},
	}
	if e, ok := c.env.(TypeRefuser); ok {
		if why := e.RefuseType(t.Kind); why != "" {
			return c.def.Refuse(event.BadType, t.Pos, why, nil)
		}
	}
	if err := c.expr(c.src.Expr); err != nil {
		return err
	}
	if c.v != nil {
		if err := c.typed(c.v); err != nil {
			return err
		}
	}
	c.store()
	if c.arg.Counted() {
		return c.length(c.src.Expr)
	}
	return nil
}

// store picks the form in the record.
func (c *compiler) store() {
	a := &c.arg
	a.Size = a.Type.Size
	switch {
	case a.Chain != nil:
		a.Store = StoreSpan
	case a.Base.Kind == BaseComm && c.storesComm():
		a.Store = StoreComm
	case a.Base.Kind == BaseComm || a.Base.Kind == BaseImmStr:
		a.Store = StoreNone
	case a.Type.Kind == event.GoString:
		a.Store, a.Size = StoreCounted, 1
	case a.Type.IsString():
		a.Store, a.Size = StoreString, 1
		if a.Count > 0 {
			a.Store = StorePtrs
		}
		if len(a.Derefs) == 0 {
			a.Derefs = []int64{0} // a number that is the address of a string
		}
		c.userString()
	case a.Count > 0:
		a.Store = StoreArray
	default:
		a.Store = StoreValue
	}
}

func (c *compiler) storesComm() bool {
	e, ok := c.env.(CommStorer)
	return ok && e.StoresComm()
}

// userString marks the strings of a ustring.
func (c *compiler) userString() {
	a := &c.arg
	switch {
	case a.Type.Kind != event.UString:
	case a.Store == StorePtrs:
		a.User |= 1 << len(a.Derefs)
	default:
		a.User |= 1 << (len(a.Derefs) - 1)
	}
}

// expr finds the base and the dereferences of an expression, innermost first.
func (c *compiler) expr(e *event.Expr) (err error) {
	a := &c.arg
	switch e.Kind {
	case event.ExprDeref:
		err = c.deref(e)
	case event.ExprAddr, event.ExprFile:
		a.Base, a.Derefs = Base{Kind: BaseImm, Imm: c.address(e)}, []int64{0}
	case event.ExprSymbol:
		err = c.symbol(e)
	case event.ExprImm:
		a.Base = Base{Kind: BaseImm, Imm: e.Num}
	case event.ExprString:
		a.Base = Base{Kind: BaseImmStr, Str: e.Name}
	case event.ExprComm:
		a.Base = Base{Kind: BaseComm}
	case event.ExprStack:
		a.Base = c.env.Stack()
	case event.ExprStackN:
		a.Base = Base{Kind: BaseStack, N: int(e.Num)}
	case event.ExprReg:
		err = c.register(e)
	case event.ExprArg:
		a.Base, err = c.argument(e, 0)
	case event.ExprRetVal:
		err = c.returned(e)
	case event.ExprDuration:
		err = c.duration(e)
	case event.ExprWatched:
		err = c.watched(e)
	case event.ExprName:
		err = c.name(e)
	case event.ExprDepth, event.ExprEntered, event.ExprFailed:
		c.joined(e)
	default:
		err = c.refuse(event.BadFetchArg, e, "", nil)
	}
	return err
}

// address is that of @ADDR and @+OFFSET.
func (c *compiler) address(e *event.Expr) uint64 {
	if e.Kind == event.ExprFile {
		return c.env.File(e.Off)
	}
	return c.env.Addr(e.Num)
}

// name finds what a name of the program stands for.
func (c *compiler) name(e *event.Expr) error {
	if e.Cast != nil {
		return c.cast(e)
	}
	n, ok := c.env.(Namer)
	if !ok {
		return c.refuse(event.NoBTFArg, e, fmt.Sprintf("names such as %q need debug info; use $argN, %%REG or @SYMBOL", e.Name), nil)
	}
	v, err := n.Name(e, c.at)
	if err != nil {
		return c.unnamed(e, err)
	}
	c.take(v)
	return nil
}

// duration is a decimal number if nothing else is asked for.
func (c *compiler) duration(e *event.Expr) error {
	if c.at != PointReturn {
		return c.refuse(event.BadVar, e, "a call has a duration when it returns", nil)
	}
	c.arg.Base, c.arg.AtEntry = Base{Kind: BaseDuration}, true
	if c.src.Type.Text == "" {
		c.arg.Type = Type{Kind: event.Unsigned, Size: 8}
	}
	return nil
}

// joined finds what tells that an entry and a return belong together, and how the call has ended.
func (c *compiler) joined(e *event.Expr) {
	a := &c.arg
	switch e.Kind {
	case event.ExprEntered:
		a.Base, a.AtEntry = Base{Kind: BaseEntered}, true
	case event.ExprDepth:
		a.Base = Base{Kind: BaseDepth, Reg: c.env.Stack().Reg}
	default:
		a.Base, a.Failed = Base{Kind: BaseImm}, true
		if f, ok := c.env.(Failer); ok && c.at == PointReturn {
			if v := f.Failed(); v != nil {
				a.Base, a.Derefs, a.Result = v.Base, v.Derefs, true
			}
		}
	}
}

func (c *compiler) watched(e *event.Expr) error {
	w, ok := c.env.(Watcher)
	if !ok {
		return c.refuse(event.BadVar, e, "an address is accessed at a watchpoint: w", nil)
	}
	c.arg.Base = Base{Kind: BaseImm, Imm: w.Watched()}
	return nil
}

func (c *compiler) symbol(e *event.Expr) error {
	addr, err := c.env.Symbol(e.Name)
	if err != nil {
		return c.refuse(event.BadMemAddr, e, fmt.Sprintf("symbol %q", e.Name), err)
	}
	c.arg.Base = Base{Kind: BaseImm, Imm: addr + uint64(e.Off)}
	c.arg.Derefs = []int64{0}
	return nil
}

func (c *compiler) register(e *event.Expr) error {
	b, ok := c.env.Reg(e.Name)
	if !ok {
		return c.refuse(event.BadRegName, e, fmt.Sprintf("no register is called %q here; on x86-64 names go without r and e: %%ax, %%di, %%r8", e.Name), nil)
	}
	c.arg.Base = b
	return nil
}

// argument gives the base of $argN and of the word that follows it by next. At a return
// it is the value that the function was entered with.
func (c *compiler) argument(e *event.Expr, next int) (Base, error) {
	if in, ok := c.env.(Inliner); ok && in.Inlined() {
		return Base{}, c.refuse(event.NofentryArgs, e, "a call that was inlined passes none: name the parameters, or write $arg*", nil)
	}
	if c.at == PointInside {
		return Base{}, c.refuse(event.NofentryArgs, e, "inside a function name the register or the word of the stack: %REG, $stackN", nil)
	}
	b, err := c.env.Arg(int(e.Num) + next)
	if err != nil {
		return Base{}, c.refuse(event.BadArgNum, e, "", err)
	}
	c.arg.AtEntry = c.at == PointReturn
	return b, nil
}

func (c *compiler) result(e *event.Expr, n int) (Base, error) {
	if c.at != PointReturn {
		return Base{}, c.refuse(event.RetvalOnProbe, e, "make it a return probe: r, or FUNCTION%return", nil)
	}
	b, err := c.env.RetVal(n)
	if err != nil {
		return Base{}, c.refuse(event.BadFetchArg, e, "", err)
	}
	c.arg.Result = true
	return b, nil
}

// length finds the word that follows the pointer of a gostring, or the first word of a context.
func (c *compiler) length(e *event.Expr) (err error) {
	switch e.Kind {
	case event.ExprArg:
		c.arg.Len, err = c.argument(e, 1)
	case event.ExprRetVal:
		c.arg.Len, err = c.result(e, 1)
	case event.ExprStackN:
		c.arg.Len = Base{Kind: BaseStack, N: int(e.Num) + 1}
	case event.ExprName:
		c.arg.Len = c.v.Next
	default:
		err = c.def.Refuse(event.BadString, c.src.Type.Pos, "a gostring is two words: take it from $argN, $retval, $stackN or memory", nil)
	}
	return err
}
