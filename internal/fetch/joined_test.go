package fetch

import (
	"encoding/binary"
	"testing"

	"kprobes.dev/kprobes/event"
)

// failingEnv is testEnv with a function whose last result is an error, which is in memory.
type failingEnv struct{ testEnv }

func (failingEnv) Failed() *Var { return &Var{Base: reg(4), Derefs: []int64{8}, Result: true} }

// TestJoined compiles what no text has: where a call is on its stack, when it was entered, and whether it has failed.
func TestJoined(t *testing.T) {
	def := &event.Def{Text: "r f", Kind: event.Return}
	for _, k := range []event.ExprKind{event.ExprDepth, event.ExprEntered, event.ExprFailed} {
		def.Args = append(def.Args, event.Arg{Name: string(rune('a' + k)), Expr: &event.Expr{Kind: k}, Type: event.DefaultType})
	}
	for _, c := range []struct {
		env    Env
		at     Point
		failed Base
		loads  int
	}{
		{testEnv{}, PointReturn, Base{Kind: BaseImm}, 0},
		{failingEnv{}, PointReturn, reg(4), 1},
		{failingEnv{}, PointEntry, Base{Kind: BaseImm}, 0},
	} {
		p, err := Compile(def, c.env, c.at)
		if err != nil {
			t.Fatal(err)
		}
		depth, entered, failed := &p.Args[0], &p.Args[1], &p.Args[2]
		if depth.Base != (Base{Kind: BaseDepth, Reg: testEnv{}.Stack().Reg}) || depth.AtEntry {
			t.Errorf("depth: %+v", depth)
		}
		if entered.Base.Kind != BaseEntered || !entered.AtEntry || p.Durations() {
			t.Errorf("entered: %+v", entered)
		}
		if failed.Base != c.failed || len(failed.Derefs) != c.loads || failed.Result != (c.loads > 0) {
			t.Errorf("failed: %+v", failed)
		}
	}
	def.Args = def.Args[:1]
	p, err := Compile(def, testEnv{}, PointEntry)
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine()
	rec := p.Eval(&paged{m, map[uint64]bool{}}, nil, 4096)
	if got, sp := binary.LittleEndian.Uint64(rec), m.regs[testEnv{}.Stack().Reg]; got != -sp || sp == 0 {
		t.Errorf("depth 0x%x of a stack pointer 0x%x", got, sp)
	}
}
