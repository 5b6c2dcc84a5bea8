package engine

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
)

func placeOf(d *event.Def) symbol.Place {
	p := symbol.Place{Mod: d.Place.Module, Sym: d.Place.Symbol, Offset: d.Place.Offset}
	switch d.Place.Kind {
	case event.PlaceAddr:
		p.Addr = d.Place.Addr
	case event.PlaceFile:
		p.Path, p.Addr = d.Place.Path, d.Place.Addr
	}
	return p
}

// newEvent makes an event that has no place yet.
func newEvent(d *event.Def, c *Core, o *AddOptions) *Event {
	e := &Event{Def: d, knobs: &c.knobs, Group: d.Group, Name: d.Name, tail: -1, force: o.Tactic, wantStub: o.Trampoline, deferred: o.Late}
	e.work.Count = o.Count
	return e
}

// name gives an event its name: its own, which must be free, or one that is made up.
func (c *Core) name(e *Event) error {
	if e.Name == "" {
		e.Name = c.namer.Name(e.Def, e.Def.Place)
		return nil
	}
	for _, o := range append(c.events, c.batch...) {
		if o != nil && !o.ended && o.Group == e.Group && o.Name == e.Name {
			return e.Def.Appends(o.Def)
		}
	}
	c.namer.Reserve(e.Name)
	return nil
}

// locate ties an event to a place: its function, its points and its program.
func (c *Core) locate(e *Event, r symbol.Resolved) error { return c.locateIn(e, r, nil) }

// locateIn is locate in a function that was analysed; nil: it is found out.
func (c *Core) locateIn(e *Event, r symbol.Resolved, f *function) error {
	d := e.Def
	if r.Func == nil {
		return d.Refuse(event.BadProbeAddr, d.Place.Pos, "", errno.Errorf(unix.EINVAL, "no function is known around 0x%x, so its code can not be followed", r.Addr))
	}
	r, err := c.implementation(r)
	if err != nil {
		return d.Refuse(event.FailRegProbe, d.Place.Pos, "", err)
	}
	if err := c.blacklisted(r); err != nil {
		return d.Refuse(event.FailRegProbe, d.Place.Pos, "", err)
	}
	if f == nil {
		if f, err = c.function(r); err != nil {
			return d.Refuse(event.FailRegProbe, d.Place.Pos, "", err)
		}
	}
	if t := c.can.Describer; t != nil && e.h == nil {
		if err := t.Notrace(r); err != nil {
			return d.Refuse(event.FailRegProbe, d.Place.Pos, "", err)
		}
	}
	e.Place, e.fn = r, f
	at, err := c.points(e)
	if err == nil {
		err = c.inPlace(e)
	}
	if err != nil || e.work.Count {
		return err
	}
	e.Prog, err = fetch.Compile(d, c.env(e), at)
	e.work.Prog = e.Prog
	return err
}

// inPlace refuses an event at an instruction that no tactic may run elsewhere.
func (c *Core) inPlace(e *Event) error {
	t := c.can.Describer
	for _, p := range e.points {
		if t != nil {
			if err := t.InsnDenied(p); err != nil {
				return e.refused(fmt.Errorf("%s+0x%x: %w", e.fn.name, p-e.fn.start, err))
			}
		}
		if slices.ContainsFunc(e.fn.keep, func(r arch.Range) bool { return r.Holds(p) }) {
			return e.refused(errno.Errorf(unix.EINVAL, "%s+0x%x belongs to a restartable sequence (rseq), which the kernel starts anew only where it stands",
				e.fn.name, p-e.fn.start))
		}
	}
	return nil
}

// points finds the instructions at which the event's work is done.
func (c *Core) points(e *Event) (fetch.Point, error) {
	d := e.Def
	if d.Kind == event.Return {
		if !e.atEntry() {
			return 0, d.Refuse(event.BadRetprobe, d.Place.Pos, "a return probe belongs to a function, not to an instruction in it", nil)
		}
		var err error
		if e.points, err = c.returnPoints(e); err != nil {
			return 0, d.Refuse(event.FailRegProbe, d.Place.Pos, "", err)
		}
		return fetch.PointReturn, nil
	}
	if e.Place.Addr == e.fn.start || e.Place.Addr == e.fn.a.EntryPoint() {
		e.setPoint(e.fn.a.EntryPoint())
		return fetch.PointEntry, nil
	}
	if err := e.fn.a.Check(e.Place.Addr); err != nil {
		return 0, d.Refuse(event.BadInsnBndry, d.Place.Pos, "", err)
	}
	e.setPoint(e.Place.Addr)
	return fetch.PointInside, nil
}

// function analyses the function that holds a place, once.
func (c *Core) function(r symbol.Resolved) (*function, error) {
	start := r.Module.Runtime(r.Func.Addr)
	if f := c.fns[start]; f != nil {
		return f, nil
	}
	f, err := c.newFunction(r)
	if err == nil {
		c.fns[start] = f
	}
	return f, err
}

// newFunction analyses the function that holds a place. It may be called by several
// goroutines at once.
func (c *Core) newFunction(r symbol.Resolved) (*function, error) {
	start := r.Module.Runtime(r.Func.Addr)
	if r.Func.Size > maxFunction {
		return nil, errno.Errorf(unix.EFBIG, "%s has %d bytes: more than the %d that are analysed", r.Func, r.Func.Size, maxFunction)
	}
	f := &function{knobs: &c.knobs, name: r.Func.Pretty(), start: start, image: r.Module.Image}
	m := r.Module
	x := c.text(m.Image)
	af := new(arch.Func)
	*af = c.around
	af.Name, af.Addr, af.Go, af.ABI0 = f.name, start, r.Func.Lang == symbol.LangGo, r.Func.ABI0 || r.Func.Asm
	var err error
	if f.body, err = x.body(r.Func); err != nil {
		return nil, fmt.Errorf("code of %s: %w", f.name, err)
	}
	n := r.Func.Size
	af.Code, af.After = f.body[:n:n], f.body[n:]
	parts := m.Image.Parts(r.Func)
	namesakes := len(parts) > 0 && m.Image.Namesakes(r.Func)
	for _, p := range parts {
		code := make([]byte, p.Size)
		if err := x.read(p.Addr, code); err != nil {
			return nil, fmt.Errorf("code of %s: %w", p.Name, err)
		}
		if lo := m.Runtime(p.Addr); namesakes && !native.JumpsInto(af.Code, start, lo, lo+p.Size) {
			continue // it is another's part
		}
		af.Parts = append(af.Parts, arch.Part{Addr: m.Runtime(p.Addr), Code: code})
	}
	pads, err := m.Image.LandingPads(r.Func)
	if err != nil {
		return nil, fmt.Errorf("exception table of %s: %w", f.name, err)
	}
	for _, p := range pads {
		af.Entries = append(af.Entries, m.Runtime(p))
	}
	if x.keepErr != nil {
		return nil, fmt.Errorf("restartable sequences of %s: %w", m.Name, x.keepErr)
	}
	keep, entries := x.kept(m, r.Func)
	f.keep, af.Keep, af.Entries = keep, keep, append(af.Entries, entries...)
	for _, at := range x.entered(r.Func) {
		af.Entries = append(af.Entries, m.Runtime(at))
	}
	if t := c.can.Describer; t != nil {
		if err := t.Describe(r, af); err != nil {
			return nil, err
		}
	}
	f.parts = af.Parts
	f.a, err = c.t.Arch().Analyse(af)
	return f, err
}

// maxFunction bounds the functions that are analysed, in bytes.
const maxFunction = 4 << 20

// inside gives the start of the function that holds an address.
func (c *Core) inside(addr uint64) (uint64, bool) {
	m := c.t.Space().ModuleAt(addr)
	if m == nil {
		return 0, false
	}
	fn, _, ok := m.Image.At(m.Linktime(addr))
	if !ok {
		return 0, false
	}
	return m.Runtime(fn.Addr), true
}

func (c *Core) nameAt(addr uint64) string {
	m := c.t.Space().ModuleAt(addr)
	if m == nil {
		return ""
	}
	fn, off, ok := m.Image.At(m.Linktime(addr))
	if !ok || off != 0 {
		return ""
	}
	return fn.Name
}

// noReturn says whether a function never returns to its caller.
func (c *Core) noReturn(addr uint64) bool {
	name := strings.TrimSuffix(c.nameAt(addr), "@plt")
	name, _, _ = strings.Cut(name, "@")
	return name != "" && (neverReturns(name) || strings.HasPrefix(name, "_ZSt") && strings.Contains(name, "__throw_"))
}

// neverReturns has the functions of the C, C++ and Go libraries that are known not to
// return. One that is missing only makes the analysis follow code that is never run.
func neverReturns(name string) bool {
	switch name {
	case "exit", "_exit", "_Exit", "quick_exit", "abort", "__stack_chk_fail",
		"__assert_fail", "__assert_perror_fail", "__assert", "__fortify_fail", "__chk_fail",
		"__cxa_throw", "__cxa_rethrow", "__cxa_bad_cast", "__cxa_bad_typeid",
		"__cxa_throw_bad_array_new_length", "__cxa_call_unexpected", "_Unwind_Resume",
		"longjmp", "_longjmp", "siglongjmp", "__longjmp_chk", "pthread_exit",
		"err", "errx", "verr", "verrx", "_ZSt9terminatev", "__libc_start_call_main",
		"runtime.gopanic", "runtime.throw", "runtime.fatal", "runtime.goexit", "runtime.Goexit",
		"runtime.panicIndex", "runtime.panicIndexU", "runtime.panicSliceAlen", "runtime.panicSliceAlenU",
		"runtime.panicSliceAcap", "runtime.panicSliceAcapU", "runtime.panicSliceB", "runtime.panicSliceBU",
		"runtime.panicSlice3Alen", "runtime.panicSlice3Acap", "runtime.panicSlice3B", "runtime.panicSlice3C",
		"runtime.panicSliceConvert", "runtime.panicdivide", "runtime.panicshift", "runtime.panicoverflow",
		"runtime.panicmem", "runtime.panicmemAddr", "runtime.panicdottypeE", "runtime.panicdottypeI",
		"runtime.panicnildottype", "runtime.panicwrap", "runtime.panicunsafealignment", "runtime.panicBounds",
		"runtime.panicrangestate", "runtime.panicnil", "runtime.abort", "os.Exit", "runtime.fatalpanic",
		"runtime.fatalthrow", "runtime.unreachableMethod", "runtime.panicunsafeslicelen":
		return true
	}
	return false
}

// morestack says whether a call there makes a Go function start anew.
func (c *Core) morestack(addr uint64) bool {
	return strings.HasPrefix(c.nameAt(addr), "runtime.morestack")
}
