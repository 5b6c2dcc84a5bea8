package engine

import (
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine/plan"
)

// works is what a probe does at each of its points.
func (p *Probe) works(e *Event, out map[uint64][]arch.ProbeOp) error {
	w := e.work
	w.Count = true
	if p.def.Kind == event.Return {
		return p.returnWorks(e, out)
	}
	var ws []arch.ProbeOp
	if !p.h.HasPre() && !p.h.HasPost() && p.h.Jump == nil {
		w.Role = arch.RoleRecord
		ws = append(ws, w)
	}
	calls := p.h.Calls()
	for _, c := range []*arch.Call{calls.Pre, calls.Post, calls.Jump} {
		if c != nil {
			ws = append(ws, arch.ProbeOp{Event: e.ID, Role: arch.RoleCall, Call: c, After: c == calls.Post})
		}
	}
	if c := calls.Fault; c != nil {
		ws = append(ws, arch.ProbeOp{Event: e.ID, Role: arch.RoleCall, Call: c, Fault: true})
	}
	add(out, e.points[0], ws...)
	return nil
}

func (p *Probe) returnWorks(e *Event, out map[uint64][]arch.ProbeOp) error {
	exits, err := e.exits()
	if err != nil {
		return err
	}
	calls, w := p.h.Calls(), e.work
	w.Count, w.Role, w.Epoch, w.Call = true, arch.RoleEntry, uint16(e.epoch.Load()), calls.Entry
	w.Room = p.exitRoom(exits)
	add(out, e.fn.Code.EntryPoint(), w)
	if e.byStub {
		w.Role, w.Instance, w.Call, w.Room = arch.RoleExit, e.ID, calls.Exit, 0
		add(out, plan.AtStub, w)
	}
	for _, x := range exits {
		w.Role, w.Instance, w.Unknown, w.Call, w.Room = arch.RoleExit, e.ID, x.Tail, calls.Exit, 0
		if x.Tail {
			w.Call = calls.Tail
		}
		add(out, x.Addr, w)
	}
	return nil
}

// exitRoom is the stack that a return handler which sleeps needs, from the entry on: an exit
// may stand below it by the function's frame.
func (p *Probe) exitRoom(exits []arch.Exit) int {
	c := p.h.Calls().Exit
	if c == nil || c.Room == 0 {
		return 0
	}
	below := 0
	for _, x := range exits {
		n, ok := p.ev.fn.Code.Ret(x.Addr)
		if !ok {
			n = unknownFrame
		}
		below = max(below, n)
	}
	return c.Room + below
}

// unknownFrame is more than most functions' frames take, in bytes.
const unknownFrame = 4096

// works adds to out what the event does at each of its points. In a function that is one ret
// the entry's work and the exit's stand at the same place, in this order.
func (e *Event) works(out map[uint64][]arch.ProbeOp, caught func(fn uint64) bool) error {
	if e.h != nil {
		return e.h.works(e, out)
	}
	w := e.work
	if caught != nil && !e.internalProbe && e.Prog.Loads() {
		w.PlainLoads = caught(e.fn.Start)
	}
	if e.Def.Kind != event.Return {
		switch {
		case e.leaving != nil:
			e.leaving.work(&w)
		case !e.internalProbe:
			w.Role = arch.RoleRecord
		}
		add(out, e.points[0], w)
		return nil
	}
	exits, err := e.exits()
	if err != nil {
		return err
	}
	plain := w
	w.Role, w.Epoch = arch.RoleEntry, uint16(e.epoch.Load())
	add(out, e.fn.Code.EntryPoint(), w)
	if e.byStub {
		w.Role, w.Instance = arch.RoleExit, e.ID
		add(out, plan.AtStub, w)
	}
	for _, x := range exits {
		w := plain
		w.Role, w.Epoch = arch.RoleExit, uint16(e.epoch.Load())
		if x.Tail {
			w.Event = e.tail
			w.Unknown = true
		}
		w.Instance = e.ID
		add(out, x.Addr, w)
	}
	return nil
}

// add adds work at a point.
func add(out map[uint64][]arch.ProbeOp, at uint64, ws ...arch.ProbeOp) {
	out[at] = append(out[at], ws...)
}
