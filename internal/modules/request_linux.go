package modules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/kmod"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// probe is a probe that a module has registered.
type probe struct {
	*kmod.Probe
	p    *engine.Probe
	addr uint64
}

// maxArray is the most probes that a module registers in one call.
const maxArray = 1 << 16

// serving answers what a module's start or end asks. What is wrong is told in the log.
func (tb *Table) serving(m *Module) func(target.ModuleRequest) int64 {
	return func(r target.ModuleRequest) int64 {
		n, err := tb.serve(m, r)
		if err != nil {
			tb.log.say(3, fmt.Sprintf("%s: %v\n", m.Name, err))
			return -int64(number(err))
		}
		return n
	}
}

// number is the error number that an error is for a module.
func number(err error) unix.Errno {
	var missing *symbol.NotFoundError
	if errors.As(err, &missing) {
		return unix.ENOENT
	}
	var no unix.Errno
	if errors.As(err, &no) {
		return no
	}
	for _, e := range []unix.Errno{unix.EBUSY, unix.EAGAIN, unix.ETIMEDOUT, unix.ESRCH, unix.ESTALE, unix.EACCES, unix.EPERM, unix.EFAULT, unix.ENOEXEC} { // errors that only compare to one
		if errors.Is(err, e) {
			return e
		}
	}
	return unix.EINVAL
}

func (tb *Table) serve(m *Module, r target.ModuleRequest) (int64, error) {
	switch r.What {
	case kmod.RegisterKprobe:
		return 0, tb.registerAll(m, r, kmod.Kprobe)
	case kmod.UnregisterKprobe, kmod.UnregisterKretprobe, kmod.UnregisterJprobe:
		return 0, tb.unregisterAll(m, r)
	case kmod.EnableKprobe, kmod.DisableKprobe:
		p := m.probes[r.Of]
		if p == nil {
			return 0, errno.Errorf(unix.EINVAL, "the struct at 0x%x is not registered", r.Of)
		}
		err := tb.core.Enable(p.p, r.What == kmod.EnableKprobe)
		return 0, errors.Join(err, tb.tell(m, p))
	case kmod.LookupName:
		return tb.lookup(m, r.Of)
	case kmod.RegisterKretprobe:
		return 0, tb.registerAll(m, r, kmod.Kretprobe)
	case kmod.RegisterJprobe:
		return 0, tb.registerAll(m, r, kmod.Jprobe)
	}
	return 0, errno.Errorf(unix.ENOSYS, "request %d", r.What)
}

// structs reads an array of pointers out of the process.
func (tb *Table) structs(r target.ModuleRequest) ([]uint64, error) {
	if r.N < 1 || r.N > maxArray {
		return nil, errno.Errorf(unix.EINVAL, "%d probes: from 1 to %d", r.N, maxArray)
	}
	b := make([]byte, 8*r.N)
	if err := tb.t.Read(r.Of, b); err != nil {
		return nil, errno.Errorf(unix.EFAULT, "the array of probes at 0x%x: %w", r.Of, err)
	}
	at := make([]uint64, r.N)
	for i := range at {
		at[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return at, nil
}

// registerAll registers all probes of an array, or none.
func (tb *Table) registerAll(m *Module, r target.ModuleRequest, kind kmod.Kind) error {
	at, err := tb.structs(r)
	if err != nil {
		return err
	}
	var ps []*probe
	var es []*engine.Probe
	for i, a := range at {
		p, err := tb.read(m, kind, a)
		if err != nil {
			return engine.Numbered(err, i, len(at))
		}
		if m.probes[a] != nil || slices.ContainsFunc(ps, func(o *probe) bool { return o.At == a }) {
			return engine.Numbered(errno.Errorf(unix.EINVAL, "the struct at 0x%x is registered already", a), i, len(at))
		}
		ps, es = append(ps, p), append(es, p.p)
	}
	if err := tb.core.Register(es, false); err != nil {
		for _, p := range ps { // it can be registered again
			err = errors.Join(err, p.TellAddr(m.m.Write, p.Addr))
		}
		return err
	}
	for _, p := range ps {
		m.probes[p.At] = p
		err = errors.Join(err, tb.tell(m, p))
	}
	if err != nil { // its memory is gone
		tb.unregister(m, ps)
	}
	return err
}

// read makes the probe of a struct.
func (tb *Table) read(m *Module, kind kmod.Kind, at uint64) (*probe, error) {
	k, err := kmod.ReadProbe(tb.t.Read, kind, at, m.m.Memory().Text)
	if err != nil {
		return nil, err
	}
	p := &probe{Probe: k}
	h := engine.Handlers{Changed: func(addr uint64, _ bool) { // before the first hit
		p.addr = addr
		_ = p.TellAddr(m.m.Write, addr) // it is written again when the probe stands
	}}
	o := engine.ProbeOptions{Disabled: k.Disabled, Return: kind == kmod.Kretprobe, MaxActive: k.MaxActive}
	if o.MaxActive <= 0 {
		o.MaxActive = tb.runtime.MaxActive
	}
	var calls *target.InLineCalls
	if kind == kmod.Jprobe {
		if k.Offset != 0 {
			return nil, errno.Errorf(unix.EINVAL, "a jprobe at offset 0x%x: it stands at a function's entry", k.Offset)
		}
		h.InLine = []*target.InLine{{Addr: k.Entry, Of: at, Kind: target.InLineJump, Vectors: m.vectors, Fault: k.Fault}}
		k.Entry = 0
	}
	if o.Return {
		calls = &target.InLineCalls{Data: int(k.DataSize), Entry: k.Entry != 0}
		h.NewCall = func(*engine.Call) {}
	}
	for _, f := range []struct {
		addr uint64
		kind target.InLineKind
	}{{k.Pre, target.InLinePre}, {k.Post, target.InLinePost}, {k.Entry, target.InLineEntry}, {k.Return, target.InLineReturn}} {
		if f.addr != 0 {
			in := &target.InLine{Addr: f.addr, Of: at, Kind: f.kind, Vectors: m.vectors, Use: native.SlotChanges, Fault: k.Fault, Calls: calls}
			if k.Fault == 0 { // else the handler may go on where its own code does not lead
				in.Use = m.m.use(f.addr)
			}
			h.InLine = append(h.InLine, in)
		}
	}
	place := event.Place{Kind: event.PlaceSymbol, Symbol: m.named(k.Symbol), Offset: uint64(k.Offset)}
	if k.Symbol == "" {
		place = event.Place{Kind: event.PlaceAddr, Addr: k.Addr + uint64(k.Offset)}
	}
	p.p = engine.NewProbe(place, h, o)
	return p, nil
}

// tell writes into a probe's struct what it is to know.
func (tb *Table) tell(m *Module, p *probe) error {
	s := tb.core.State(p.p)
	st := &kmod.State{Addr: p.addr, Missed: s.Misses.Total(), Disabled: s.Disabled, Optimized: s.Optimized, Gone: s.Gone}
	if p.Kind == kmod.Kretprobe {
		st.Missed, st.Uncalled = st.Missed-s.Misses.Pool, s.Misses.Pool
	}
	var b [1]byte
	if tb.t.Read(p.addr, b[:]) == nil {
		st.Opcode = b[0]
	}
	return p.Tell(m.m.Write, st)
}

// unregisterAll takes out those probes of an array that are registered.
func (tb *Table) unregisterAll(m *Module, r target.ModuleRequest) error {
	at, err := tb.structs(r)
	if err != nil {
		return err
	}
	var ps []*probe
	for _, a := range at {
		if p := m.probes[a]; p != nil {
			ps = append(ps, p)
		}
	}
	tb.unregister(m, ps)
	return nil
}

// unregister takes probes out. No handler of theirs runs when it returns.
func (tb *Table) unregister(m *Module, ps []*probe) {
	if len(ps) == 0 {
		return
	}
	tb.core.Unregister(func(end func(*engine.Probe)) {
		for _, p := range ps {
			end(p.p)
		}
	})
	for _, p := range ps {
		delete(m.probes, p.At)
		_ = tb.tell(m, p) // it may be in memory that the module has given back
	}
}

// lookup is kallsyms_lookup_name: 0 if nothing has the name.
func (tb *Table) lookup(m *Module, at uint64) (int64, error) {
	name, err := kmod.ReadName(tb.t.Read, at)
	if err != nil {
		return 0, err
	}
	name = m.named(name)
	if r, err := tb.t.Space().Resolve(symbol.Place{Sym: name}); err == nil {
		return int64(r.Addr), nil
	}
	if find := tb.runtime.Lookup; find != nil {
		if addr, ok := find(name); ok {
			return int64(addr), nil
		}
	}
	return 0, nil
}
