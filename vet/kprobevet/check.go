package kprobevet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// checker walks what handlers do.
type checker struct {
	*finder
	seen map[token.Pos]bool // operations that have been reported
}

// walk is the way through the functions that one handler calls.
type walk struct {
	*checker
	h    handler
	done map[ast.Node]bool // function bodies that were entered
	via  string            // the function that is being looked at, "" for the handler itself
}

// handler checks one handler.
func (c *checker) handler(h handler) {
	w := &walk{checker: c, h: h, done: map[ast.Node]bool{}}
	w.value(h.expr)
}

// value checks the functions that an expression may be.
func (w *walk) value(e ast.Expr) {
	switch e := ast.Unparen(e).(type) {
	case *ast.FuncLit:
		w.body(e.Body)
	case *ast.Ident:
		w.named(w.pass.TypesInfo.ObjectOf(e))
	case *ast.SelectorExpr:
		w.named(w.pass.TypesInfo.ObjectOf(e.Sel))
	case *ast.IndexExpr: // an instance of a generic function
		w.value(e.X)
	case *ast.CallExpr: // a conversion to a func type
		if tv := w.pass.TypesInfo.Types[e.Fun]; tv.IsType() && len(e.Args) == 1 {
			w.value(e.Args[0])
		}
	}
}

// named checks a declared function of this package, or the literals that a variable holds.
func (w *walk) named(o types.Object) {
	if fn, ok := o.(*types.Func); ok {
		if d := w.decls[fn.Origin()]; d != nil {
			outer := w.via
			w.via = d.Name.Name
			w.body(d.Body)
			w.via = outer
		}
		return
	}
	for _, lit := range w.lits[o] {
		w.body(lit.Body)
	}
}

// body checks a function's body.
func (w *walk) body(b *ast.BlockStmt) {
	if w.done[b] {
		return
	}
	w.done[b] = true
	w.defers(b)
	w.block(b)
}

// block checks statements and expressions, and what they call.
func (w *walk) block(root ast.Node) {
	ast.Inspect(root, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			w.body(n.Body)
			return false
		case *ast.GoStmt: // runs elsewhere; its arguments are evaluated here
			w.arguments(n.Call)
			return false
		case *ast.SelectStmt:
			w.choice(n)
			return false
		case *ast.SendStmt:
			w.report(n.Arrow, opChannel, "send to a channel")
			w.sent(n)
			return false
		case *ast.UnaryExpr:
			if n.Op == token.ARROW {
				w.report(n.OpPos, opChannel, "receive from a channel")
			}
		case *ast.RangeStmt:
			if t := w.pass.TypesInfo.TypeOf(n.X); t != nil {
				if _, ok := t.Underlying().(*types.Chan); ok {
					w.report(n.For, opChannel, "range over a channel")
				}
			}
		case *ast.CallExpr:
			w.call(n)
		}
		return true
	})
}

// arguments checks the arguments of a call that runs elsewhere.
func (w *walk) arguments(call *ast.CallExpr) {
	for _, a := range call.Args {
		if _, ok := ast.Unparen(a).(*ast.FuncLit); !ok {
			w.block(a)
		}
	}
}

// sent checks the operands of a send. A func literal that is sent runs elsewhere.
func (w *walk) sent(n *ast.SendStmt) {
	w.block(n.Chan)
	if _, ok := ast.Unparen(n.Value).(*ast.FuncLit); !ok {
		w.block(n.Value)
	}
}

// choice checks a select statement. Its own sends and receives do not wait if it has a
// default.
func (w *walk) choice(n *ast.SelectStmt) {
	waits := true
	for _, c := range n.Body.List {
		waits = waits && c.(*ast.CommClause).Comm != nil
	}
	if waits {
		w.report(n.Select, opSelect, "select without default")
	}
	for _, c := range n.Body.List {
		clause := c.(*ast.CommClause)
		if clause.Comm != nil {
			w.operands(clause.Comm)
		}
		for _, s := range clause.Body {
			w.block(s)
		}
	}
}

// operands checks what a clause of a select statement evaluates before it is chosen.
func (w *walk) operands(comm ast.Stmt) {
	var receive ast.Expr
	switch s := comm.(type) {
	case *ast.SendStmt:
		w.sent(s)
		return
	case *ast.ExprStmt:
		receive = s.X
	case *ast.AssignStmt:
		for _, l := range s.Lhs {
			w.block(l)
		}
		receive = s.Rhs[0]
	}
	if u, ok := ast.Unparen(receive).(*ast.UnaryExpr); ok {
		w.block(u.X)
	}
}

// call checks one call.
func (w *walk) call(n *ast.CallExpr) {
	switch fn := typeutil.Callee(w.pass.TypesInfo, n).(type) {
	case *types.Builtin:
		if fn.Name() == "panic" {
			w.report(n.Pos(), opPanic, "panic")
		}
	case *types.Func:
		if op := ofCall(fn); op != nil {
			w.report(n.Pos(), op.name, callName(fn))
		}
		w.named(fn)
	case *types.Var:
		w.named(fn)
	}
}

// defers checks a function's defer statements. The compiler gives each of them a place in
// the function's frame (which is what an atomic handler may have) only where none is in a
// loop and they are few (cmd/compile/internal/walk, stmt.go, and ssagen, ssa.go: openDefers).
func (w *walk) defers(b *ast.BlockStmt) {
	const maxDefers, maxProduct = 8, 15
	d := &deferCount{}
	d.visit(b, false)
	for _, s := range d.all {
		switch {
		case slices.Contains(d.looped, s):
			w.report(s, opDefer, "defer in a loop")
		case len(d.looped) > 0:
			w.report(s, opDefer, "defer beside one in a loop")
		case len(d.all) > maxDefers:
			w.report(s, opDefer, "more than 8 defers in a function")
		case len(d.all)*d.returns > maxProduct:
			w.report(s, opDefer, "defers times returns above 15")
		}
	}
}

// deferCount counts the defers and returns of one function.
type deferCount struct {
	all, looped []token.Pos
	returns     int
}

func (d *deferCount) visit(root ast.Node, loop bool) {
	ast.Inspect(root, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.ForStmt:
			if !loop {
				d.visit(n.Body, true)
				return false
			}
		case *ast.RangeStmt:
			if !loop {
				d.visit(n.Body, true)
				return false
			}
		case *ast.ReturnStmt:
			d.returns++
		case *ast.DeferStmt:
			d.all = append(d.all, n.Defer)
			if loop {
				d.looped = append(d.looped, n.Defer)
			}
		}
		return true
	})
}

// report tells of an operation, once.
func (w *walk) report(pos token.Pos, op, what string) {
	if w.seen[pos] {
		return
	}
	w.seen[pos] = true
	through := ""
	if w.via != "" {
		through = ", in " + w.via + " that it calls"
	}
	if fn := w.handlerFunc(); fn != "" && fn == w.via {
		through = ""
	}
	w.pass.Report(analysis.Diagnostic{
		Pos: pos, Category: op,
		Message: op + ": " + what + " in an atomic handler, " + w.h.label + through + ": " + find(op).instead + ", or set " + sleepable,
		Related: []analysis.RelatedInformation{{Pos: w.h.expr.Pos(), Message: "the handler"}},
	})
}

// handlerFunc is the name of the declared function that is the handler, "" for a literal.
func (w *walk) handlerFunc() string {
	switch e := ast.Unparen(w.h.expr).(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}
