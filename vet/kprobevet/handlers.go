package kprobevet

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
)

// Analyzer is the check.
var Analyzer = &analysis.Analyzer{
	Name:     "kprobevet",
	Doc:      "report operations that an atomic handler of a probe must not do\n\nSee docs/HANDLERS.md of kprobes.dev/kprobes for the list and the reasons.",
	URL:      "https://kprobes.dev/kprobes/docs/HANDLERS.md",
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run:      run,
}

const (
	kprobesPath = "kprobes.dev/kprobes"
	sleepable   = "FlagSleepable"
)

// handlerFields are the fields that hold handlers, by type.
var handlerFields = map[string][]string{
	"Kprobe":    {"PreHandler", "PostHandler", "FaultHandler"},
	"Kretprobe": {"Handler", "EntryHandler"},
	"Jprobe":    {"Entry"},
}

// handler is an expression that stands in a handler field, or is given to OnCall or OnReturn.
type handler struct {
	expr  ast.Expr
	label string       // Kprobe.PreHandler
	probe types.Object // the variable or field that holds the probe, nil if unknown
}

// finder collects handlers, and what is needed to judge them.
type finder struct {
	pass     *analysis.Pass
	handlers []handler
	sleeps   map[types.Object]bool           // probes whose Flags hold FlagSleepable, or may
	copies   map[types.Object]types.Object   // probes whose Kp is set to another variable's value
	decls    map[*types.Func]*ast.FuncDecl   // functions of the package
	lits     map[types.Object][]*ast.FuncLit // func literals that variables hold
}

func run(pass *analysis.Pass) (any, error) {
	f := &finder{
		pass: pass, sleeps: map[types.Object]bool{}, copies: map[types.Object]types.Object{},
		decls: map[*types.Func]*ast.FuncDecl{}, lits: map[types.Object][]*ast.FuncLit{},
	}
	kinds := []ast.Node{(*ast.FuncDecl)(nil), (*ast.AssignStmt)(nil), (*ast.ValueSpec)(nil), (*ast.CompositeLit)(nil), (*ast.CallExpr)(nil)}
	pass.ResultOf[inspect.Analyzer].(*inspector.Inspector).WithStack(kinds, func(n ast.Node, push bool, stack []ast.Node) bool {
		if push {
			f.node(n, stack)
		}
		return true
	})
	c := &checker{finder: f, seen: map[token.Pos]bool{}}
	for _, h := range f.handlers {
		if h.probe == nil || !f.sleeps[h.probe] && !f.sleeps[f.copies[h.probe]] {
			c.handler(h)
		}
	}
	return nil, nil
}

// node takes one node.
func (f *finder) node(n ast.Node, stack []ast.Node) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		if fn, ok := f.pass.TypesInfo.Defs[n.Name].(*types.Func); ok && n.Body != nil {
			f.decls[fn] = n
		}
	case *ast.AssignStmt:
		if len(n.Lhs) == len(n.Rhs) {
			for i := range n.Lhs {
				f.assign(n.Lhs[i], n.Rhs[i])
			}
		}
	case *ast.ValueSpec:
		for i, v := range n.Values {
			if len(n.Names) == len(n.Values) {
				f.assign(n.Names[i], v)
			}
		}
	case *ast.CompositeLit:
		if name := probeType(f.pass.TypesInfo.TypeOf(n)); name != "" {
			f.literal(n, name, f.holder(stack))
		}
	case *ast.CallExpr:
		if name := f.typed(n); name != "" && len(n.Args) == 2 {
			f.handlers = append(f.handlers, handler{n.Args[1], name, nil})
		}
	}
}

// typed is the name of the function that a call gives a typed handler to, "" if it does not.
func (f *finder) typed(call *ast.CallExpr) string {
	id, _ := ast.Unparen(call.Fun).(*ast.Ident)
	if sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr); ok {
		id = sel.Sel
	}
	if id == nil {
		return ""
	}
	fn, ok := f.pass.TypesInfo.ObjectOf(id).(*types.Func)
	if !ok || fn.Pkg() == nil || fn.Pkg().Path() != kprobesPath || fn.Name() != "OnCall" && fn.Name() != "OnReturn" {
		return ""
	}
	return fn.Name()
}

// assign takes an assignment to a handler field, to Flags, or of a func literal.
func (f *finder) assign(to, from ast.Expr) {
	if lit, ok := ast.Unparen(from).(*ast.FuncLit); ok {
		if o := f.object(to); o != nil {
			f.lits[o] = append(f.lits[o], lit)
		}
	}
	sel, ok := ast.Unparen(to).(*ast.SelectorExpr)
	if !ok {
		return
	}
	name := probeType(f.pass.TypesInfo.TypeOf(sel.X))
	if name == "" {
		return
	}
	f.field(name, sel.Sel.Name, from, f.object(sel.X))
}

// field takes what a field of a probe is set to.
func (f *finder) field(typ, name string, v ast.Expr, probe types.Object) {
	switch {
	case slices.Contains(handlerFields[typ], name):
		f.handlers = append(f.handlers, handler{v, typ + "." + name, probe})
	case probe == nil:
	case typ == "Kprobe" && name == "Flags" && f.maySleep(v):
		f.sleeps[probe] = true
	case name == "Kp":
		f.setKp(v, probe)
	}
}

// literal takes the fields of a composite literal. One without a holder gets one of its own,
// so that its flags are known to belong to its handlers.
func (f *finder) literal(lit *ast.CompositeLit, typ string, probe types.Object) {
	if probe == nil {
		probe = types.NewLabel(lit.Pos(), f.pass.Pkg, typ)
	}
	st, _ := types.Unalias(f.pass.TypesInfo.TypeOf(lit)).Underlying().(*types.Struct)
	if p, ok := f.pass.TypesInfo.TypeOf(lit).Underlying().(*types.Pointer); ok {
		st, _ = p.Elem().Underlying().(*types.Struct)
	}
	for i, e := range lit.Elts {
		name, v := "", e
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if id, ok := kv.Key.(*ast.Ident); ok {
				name = id.Name
			}
			v = kv.Value
		} else if st != nil && i < st.NumFields() {
			name = st.Field(i).Name()
		}
		f.field(typ, name, v, probe)
	}
}

// setKp takes what the Kprobe in a Kretprobe or a Jprobe is set to: a literal, a copy of
// a variable, or what can not be told.
func (f *finder) setKp(v ast.Expr, probe types.Object) {
	if kp, ok := ast.Unparen(v).(*ast.CompositeLit); ok {
		f.literal(kp, "Kprobe", probe)
	} else if o := f.object(v); o != nil {
		f.copies[probe] = o
	} else {
		f.sleeps[probe] = true
	}
}

// holder gives the variable or field that the composite literal at the end of a stack of
// nodes becomes the value of, nil if there is none.
func (f *finder) holder(stack []ast.Node) types.Object {
	n := stack[len(stack)-1].(ast.Expr)
	for i := len(stack) - 2; i >= 0; i-- {
		switch p := stack[i].(type) {
		case *ast.UnaryExpr:
			n = p
			continue
		case *ast.ParenExpr:
			n = p
			continue
		case *ast.AssignStmt:
			if j := slices.Index(p.Rhs, n); j >= 0 && len(p.Lhs) == len(p.Rhs) {
				return f.object(p.Lhs[j])
			}
		case *ast.ValueSpec:
			if j := slices.Index(p.Values, n); j >= 0 && len(p.Names) == len(p.Values) {
				return f.object(p.Names[j])
			}
		}
		break
	}
	return nil
}

// object gives the variable or field that an expression names; for the Kprobe in a Kretprobe
// or a Jprobe the whole.
func (f *finder) object(e ast.Expr) types.Object {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return f.pass.TypesInfo.ObjectOf(e)
	case *ast.SelectorExpr:
		if e.Sel.Name == "Kp" && probeType(f.pass.TypesInfo.TypeOf(e.X)) != "" {
			return f.object(e.X)
		}
		return f.pass.TypesInfo.ObjectOf(e.Sel)
	case *ast.IndexExpr:
		return f.object(e.X)
	case *ast.StarExpr:
		return f.object(e.X)
	}
	return nil
}

// maySleep reports whether flags hold FlagSleepable, or can not be told.
func (f *finder) maySleep(flags ast.Expr) bool {
	tv := f.pass.TypesInfo.Types[flags]
	bit := f.sleepableBit(tv.Type)
	if tv.Value == nil || bit == nil {
		return true
	}
	return constant.Sign(constant.BinaryOp(tv.Value, token.AND, bit)) != 0
}

// sleepableBit is the value of FlagSleepable, nil if there is none.
func (f *finder) sleepableBit(flags types.Type) constant.Value {
	named, ok := types.Unalias(flags).(*types.Named)
	if !ok || named.Obj().Pkg() == nil {
		return nil
	}
	c, ok := named.Obj().Pkg().Scope().Lookup(sleepable).(*types.Const)
	if !ok {
		return nil
	}
	return c.Val()
}

// probeType is the name of a probe's type, or of what a pointer to one points to; "" for
// other types.
func probeType(t types.Type) string {
	if t == nil {
		return ""
	}
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	named, ok := types.Unalias(t).(*types.Named)
	if !ok || named.Obj().Pkg() == nil || named.Obj().Pkg().Path() != kprobesPath {
		return ""
	}
	if _, ok := handlerFields[named.Obj().Name()]; !ok {
		return ""
	}
	return named.Obj().Name()
}
