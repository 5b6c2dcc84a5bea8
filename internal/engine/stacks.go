package engine

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/arch/objfile"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
)

// ruleAtEntry is the rule at a function's entry, and where it returns: the return address is on top of the stack.
var ruleAtEntry = objfile.FrameRule{CFA: objfile.FrameBySP, Off: 8}

// stackOf finds how the walk over the stack begins at an event's points. The error says why its stack can not be recorded.
func (c *Core) stackOf(e *Event) error {
	if k := c.t.CodegenEnv().Kernel; k != nil {
		e.Prog.Kernel = true
		if k.Callers == 0 {
			return errno.Errorf(unix.EOPNOTSUPP, "%s: the guest's kernel has no function stack_trace_save_regs, which walks over its stack (CONFIG_STACKTRACE, Linux 5.2)", e.Place.Func.Pretty())
		}
		return nil
	}
	if c.can.Unwinder == nil {
		return errno.Errorf(unix.EOPNOTSUPP, "%s: no stack can be recorded in this target", e.Place.Func.Pretty())
	}
	e.work.Frame = ruleAtEntry
	if e.Def.Kind == event.Return {
		return nil
	}
	if e.points[0] == e.fn.Code.EntryPoint() {
		if fn := e.Place.Func; fn.Lang != symbol.LangGo && e.Place.Module.Image.Called(fn) != nil {
			if r := e.Place.Module.Image.FrameAt(e.Place.Module.Linktime(e.points[0])); r.CFA != objfile.FrameUnknown {
				e.work.Frame = r // it is not entered by a call
			}
		}
		return nil
	}
	e.work.Frame = c.ruleAt(e, e.points[0])
	if native.UnwindRule(e.work.Frame) == 0 {
		return errno.Errorf(unix.EOPNOTSUPP, "%s+0x%x: neither unwind tables nor the code tell where the return address is, so no stack can be recorded there; probe the function's entry",
			e.Place.Func.Pretty(), e.points[0]-e.fn.Start)
	}
	return nil
}

// ruleAt is the rule at an instruction inside a function.
func (c *Core) ruleAt(e *Event, at uint64) objfile.FrameRule {
	if e.Place.Func.Lang != symbol.LangGo {
		return e.Place.Module.Image.FrameAt(e.Place.Module.Linktime(at))
	}
	n, ok := e.fn.Code.Ret(at)
	switch {
	case !ok:
		return objfile.FrameRule{}
	case n == 0:
		return ruleAtEntry
	}
	return objfile.FrameRule{CFA: objfile.FrameBySP, Off: int32(n) + 8, FP: objfile.FPAtCFA, FPOff: -16} // the frame pointer is pushed first
}

// needUnwind brings in the tables that events' walks over the stack need.
func (c *Core) needUnwind(evs []*Event) error {
	if c.can.Unwinder == nil || c.unwind == nil && !slices.ContainsFunc(evs, recordsStack) {
		return nil
	}
	if c.unwind == nil {
		c.unwind = &unwindTables{t: c.can.Unwinder, images: map[*symbol.Image]native.UnwindObject{}}
	}
	return c.updateUnwind()
}

func recordsStack(e *Event) bool { return !e.gone && e.Prog != nil && e.Prog.Stack > 0 }

// updateUnwind brings in the tables of objects that have come, where there is a walk at all.
func (c *Core) updateUnwind() error {
	if c.unwind == nil {
		return nil
	}
	var stubs interval.Range
	for _, e := range c.events {
		if e != nil && e.work.Trampoline != nil {
			stubs = interval.Range{Start: e.work.Trampoline.Lo, End: e.work.Trampoline.Lo + e.work.Trampoline.Size}
		}
	}
	err := c.unwind.update(c.t.Space(), stubs)
	if c.unwind.owed = err != nil; err != nil {
		return fmt.Errorf("unwind tables: %w", err)
	}
	return nil
}

// lateUnwind brings in tables that could not be brought in before.
func (c *Core) lateUnwind() error {
	if c.unwind == nil || !c.unwind.owed {
		return nil
	}
	return c.once(c.updateUnwind())
}
