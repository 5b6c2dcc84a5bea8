package kprobes

import (
	"io"
	"reflect"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/target"
)

// Core is the registry of one target's probes.
type Core struct {
	e *engine.Core
}

func init() { engine.Of = func(core any) *engine.Core { return core.(*Core).e } }

// Sym is what lies at an address: its Name, the Module that it belongs to, how many bytes the address lies behind its start
// (Off), and its Size.
type Sym = fetch.Sym

// Line is where in the source an instruction comes from: Line of File. Func is the function that was inlined there, "" for the one
// that the instruction lies in.
type Line = fetch.Line

// Hit is one record of an event: which event, when (CLOCK_MONOTONIC, in nanoseconds) and where it was written. It is valid
// while the function runs that is given it; one that Core.Hits gives stays valid. Its Values are those of the arguments. Package
// trace makes text of hits, package hitlog records of log/slog.
type Hit = hit.Hit

// ErrRegister wraps the reason why an event could not be registered; the errno that
// the kernel would give is in its chain.
var ErrRegister = engine.ErrRegister

// Open makes a registry for a target. The target is not touched before the first Add.
func Open(t target.Target, o *Options) (*Core, error) {
	e, err := engine.Open(t, o.engine())
	if err != nil {
		return nil, err
	}
	return &Core{e: e}, nil
}

// Target is what the Core probes.
func (c *Core) Target() target.Target { return c.e.Target() }

// Events lists the events in the order of their numbers, removed ones too.
func (c *Core) Events() []*Event { return shown(c.e.Events()) }

// Add registers and arms events: all of them in one stop of the target, or none.
func (c *Core) Add(defs []*event.Def, o *AddOptions) ([]*Event, error) {
	evs, err := c.e.Add(defs, o.engine())
	return shown(evs), err
}

// Remove disarms events and forgets them. What they counted stays readable. The number of one
// that only counted may serve another event, once no thread can be in its code.
func (c *Core) Remove(evs []*Event) error {
	es := make([]*engine.Event, len(evs))
	for i, e := range evs {
		es[i] = e.e
	}
	return c.e.Remove(es)
}

// Check says why Add would refuse a definition, as far as that can be told without touching
// the target: its place, its instruction, its arguments. Nothing is registered or armed. A
// pattern is refused: it stands for many events.
func (c *Core) Check(d *event.Def, o *AddOptions) error { return c.e.Check(d, o.engine()) }

// Symbol finds the function at a run-time address of the target; ok is false if none is
// known there. The name of its object is left out if that is the program's own file. It waits
// for nothing, so a handler may call it where it may allocate.
func (c *Core) Symbol(addr uint64) (s Sym, ok bool) { return c.e.Symbol(addr) }

// Lines tells where in the source the instruction at an address comes from, by debug information: the place itself first, then
// those at which the functions were inlined that it lies in. nil: nothing is known. It may be called at any time; the first call
// for an object reads its debug information.
func (c *Core) Lines(addr uint64) []Line { return c.e.Lines(addr) }

// Poll reads the records that are there, in the order of their times, and returns how
// many. A Hit is valid while f runs. f must not call the Core. Poll does not wait for a change that
// another goroutine makes. What a loop over Hits has read and left comes first.
func (c *Core) Poll(f func(*Hit)) int { return c.e.GiveKept(f) + c.e.Poll(f) }

// Counts sums up what an event has counted so far.
func (c *Core) Counts(e *Event) Counts { return Counts(c.e.Counts(e.e)) }

// Unreturned looks at the target, in one stop, for the calls of return events that have begun and have not returned: as
// Counts has them, with those of which only an instance tells.
func (c *Core) Unreturned() (map[*Event]Unreturned, error) {
	calls, err := c.e.Unreturned()
	if err != nil {
		return nil, err
	}
	out := make(map[*Event]Unreturned, len(calls))
	for e, n := range calls {
		out[e.Shown.(*Event)] = Unreturned(n)
	}
	return out, nil
}

// Sync looks at what the target has mapped now. Events in objects that were unmapped
// become gone; gone ones whose object is there (again, or for the first time) are armed.
// An event that can not be armed in the object that came stays gone, and why is in the
// error. What happened between an object's arrival and Sync is not seen. In a Go program that process.Start has made,
// Sync installs the engine's signal handlers once the runtime has its own; with AddOptions.Late the program waits for that
// a second, before its init functions. Where return addresses
// are replaced the Core does the same by itself, ten times a second, and the next Sync has the error.
func (c *Core) Sync() error { return c.e.Sync() }

// Stats tells what was so when the last change ended, and what Poll has come upon. It waits for nothing, also not for a
// change that another goroutine makes. After Close it tells of probes what was so before.
func (c *Core) Stats() Stats { return Stats(c.e.Stats()) }

// SetEnabled arms (true) or disarms (false) all probes and events at once, in one stop of
// the target: kprobes/enabled. Probes that are disabled stay so. What is registered while
// all is disarmed is armed with the rest.
func (c *Core) SetEnabled(on bool) error { return c.e.SetEnabled(on) }

// Enabled says whether probes are armed.
func (c *Core) Enabled() bool { return c.e.Enabled() }

// SetOptimization says whether probes may be armed by jumps (true, the default): the knob
// debug.kprobes_optimization. With false all of them become breakpoints, but for those at which
// none may stand, and a changed IP is taken at all. It is an error (EOPNOTSUPP) where the target
// allows no breakpoint at all. In another process it asks for breakpoints by name: a thread that
// comes to block SIGTRAP later, as the C library's do where they begin and end, dies of one.
func (c *Core) SetOptimization(on bool) error { return c.e.SetOptimization(on) }

// Optimization says whether probes may be armed by jumps.
func (c *Core) Optimization() bool { return c.e.Optimization() }

// List writes the probes and events in the order of their registration, a line for each as
// in kprobes/list (Linux 6.18): address, kind (k, r or j), symbol+offset, the object
// if it is not the program's own file, and without spaces between them [GONE], [DISABLED],
// [OPTIMIZED], where a jump leads to the probe and a changed path is not taken. Behind [DISABLED]
// stands what went wrong in a handler, if that is why. For a probe that has none of these the tactic
// stands there, and why it is no jump, or why a changed path is taken:
//
//	jump: has a post handler
//	boost: queued: thread 12 is in the way at 0x55d0c0de1f21: …
//	postponed: thread 12 is in the way at 0x55d0c0de1f21: …
//	unarmed: kprobes/enabled is 0
//	taken out: a breakpoint that is not ours (a kernel uprobe, a debugger) stands in its patch: …
func (c *Core) List(w io.Writer) error { return c.e.List(w) }

// ListDisabled writes, as List does, a line for each of some definitions of which no event is
// registered at present.
func (c *Core) ListDisabled(w io.Writer, defs []*event.Def) error { return c.e.ListDisabled(w, defs) }

// Blacklist writes the functions that no probe may stand in, a line for each as in
// kprobes/blacklist: 0xSTART-0xEND, a tab, the symbol.
func (c *Core) Blacklist(w io.Writer) error { return c.e.Blacklist(w) }

// Close disarms every event, reads what is left and takes everything out of the target.
// f gets the records, as in Poll; it may be nil.
func (c *Core) Close(f func(*Hit)) error {
	if f != nil {
		c.e.GiveKept(f)
	}
	return c.e.Close(f)
}

// NoKprobe puts a function on the blacklist: a func, or a string with its name. Probes
// that are registered there stay; no further ones are (EINVAL). Errors: EINVAL if fn is
// neither, or a func without a name of its own in the target (a method value: give T.Method
// or (*T).Method); ENOENT if the target has no such function. A func is one of this program: the
// target's is that of the same address, if it has the same name, else that of the same name.
func (c *Core) NoKprobe(fn any) error {
	if err := c.e.Outside(); err != nil {
		return err
	}
	if name, ok := fn.(string); ok {
		return c.e.NoKprobe(name, 0)
	}
	v := reflect.ValueOf(fn)
	if v.Kind() != reflect.Func || v.IsNil() {
		return errno.Errorf(unix.EINVAL, "NoKprobe of %s: give a func or a function's name", describe(v))
	}
	pc := v.Pointer()
	name := runtime.FuncForPC(pc).Name()
	if strings.HasSuffix(name, "-fm") {
		return methodValue(name)
	}
	return c.e.NoKprobe(name, uint64(pc))
}

// methodValue refuses a method value.
func methodValue(name string) error {
	return errno.Errorf(unix.EINVAL, "%s is a method value, which has code of its own: give the method expression T.Method or (*T).Method", name)
}

func describe(v reflect.Value) string {
	switch {
	case !v.IsValid():
		return "nil"
	case v.Kind() == reflect.Func:
		return "a nil func"
	}
	return "a value of type " + v.Type().String()
}
