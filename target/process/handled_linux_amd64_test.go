package process

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// handled is a program with handlers in its functions, put there by the target's own
// methods.
type handled struct {
	*running
	t     testing.TB
	tg    *Target
	sites map[string]*target.Site
}

// never is a wait that no handler of a test exceeds: what a program computes then does not
// depend on the machine's load.
const never = maxHandlerWait

func handle(t testing.TB, r *running, wait time.Duration) *handled {
	t.Helper()
	p, err := OpenUnwaited(r.PID)
	if err != nil {
		t.Fatal(err)
	}
	tg, err := Attach(p, &TargetOptions{HandlerWait: wait})
	if err != nil {
		t.Fatal(err)
	}
	h := &handled{running: r, t: t, tg: tg, sites: map[string]*target.Site{}}
	retry(t, tg.Prepare)
	t.Cleanup(func() {
		if tg.control != nil {
			h.end()
		}
	})
	return h
}

// retry calls f until the machine lets it: a stop of many threads takes its time under load.
func retry(t testing.TB, f func() error) {
	t.Helper()
	var err error
	for range 20 {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// callOf makes a handler callable.
func (h *handled) callOf(th *target.Handler) *arch.Call {
	h.t.Helper()
	var c *arch.Call
	retry(h.t, func() (err error) { c, err = h.tg.NewCall(th); return err })
	return c
}

// function finds and analyses a function.
func (h *handled) function(name string) (arch.Function, symbol.Resolved) {
	h.t.Helper()
	return h.analysed(name, func(uint64, []byte) {})
}

// analysed is function with the code that mend makes of what stands there.
func (h *handled) analysed(name string, mend func(addr uint64, code []byte)) (arch.Function, symbol.Resolved) {
	h.t.Helper()
	at, err := h.tg.Space().Resolve(symbol.Place{Sym: name})
	if err != nil {
		h.t.Fatal(err)
	}
	f := &arch.Func{Name: name, Addr: at.Addr, Code: make([]byte, at.Func.Size), Go: h.tg.golang != nil}
	if err := h.tg.Read(at.Addr, f.Code); err != nil {
		h.t.Fatal(err)
	}
	mend(at.Addr, f.Code)
	fn, err := amd64.X86.Analyse(f)
	if err != nil {
		h.t.Fatal(err)
	}
	return fn, at
}

// arm puts work at the entry of a function and, with exit, at each of its returns; nil: none.
func (h *handled) arm(name string, entry, exit *arch.ProbeOp) {
	h.t.Helper()
	fn, _ := h.function(name)
	work := map[uint64][]arch.ProbeOp{}
	if entry != nil {
		work[fn.EntryPoint()] = []arch.ProbeOp{*entry}
	}
	if exit != nil {
		exits, err := fn.Exits()
		if err != nil {
			h.t.Fatal(err)
		}
		for _, e := range exits {
			work[e.Addr] = append(work[e.Addr], *exit)
		}
	}
	h.armAll(name, work)
}

// armAll puts work at instructions of a function.
func (h *handled) armAll(name string, work map[uint64][]arch.ProbeOp) {
	h.t.Helper()
	fn, _ := h.function(name)
	var points []uint64
	for at := range work {
		points = append(points, at)
	}
	slices.Sort(points)
	regions, refused := fn.Plan(points, arch.Policy{})
	if len(refused) > 0 {
		h.t.Fatalf("%s: %v", name, refused)
	}
	ch := &target.Change{}
	for i, r := range regions {
		s := h.site(name, fn, r, work)
		h.sites[fmt.Sprint(name, i)] = s
		ch.Add = append(ch.Add, s)
	}
	retry(h.t, func() error { return h.tg.Commit(ch) })
}

func (h *handled) site(name string, fn arch.Function, r arch.Region, work map[uint64][]arch.ProbeOp) *target.Site {
	h.t.Helper()
	size, err := fn.DetourSize(r, work, h.tg.CodegenEnv())
	if err != nil {
		h.t.Fatalf("%s: %v", name, err)
	}
	var at uint64
	retry(h.t, func() (err error) { at, err = h.tg.Code(r.Start(), r.Start()+16, size); return err })
	s := &target.Site{Addr: r.Start(), Room: size, Trap: r.Tactic() != arch.TacticJump}
	if s.Detour, err = fn.Detour(at, r, work, h.tg.CodegenEnv()); err != nil {
		h.t.Fatalf("%s: %v", name, err)
	}
	if s.Patch, err = fn.Patch(r, at); err != nil {
		h.t.Fatalf("%s: %v", name, err)
	}
	s.Orig = make([]byte, len(s.Patch))
	if err := h.tg.Read(s.Addr, s.Orig); err != nil {
		h.t.Fatal(err)
	}
	return s
}

// handle calls run at the entry of a function.
func (h *handled) handle(name string, run func(*amd64.Regs) arch.Action) *arch.Call {
	h.t.Helper()
	_, at := h.function(name)
	th := &target.Handler{Run: plain(run), Point: amd64.Point{Addr: at.Addr, Go: h.tg.golang != nil}}
	c := h.callOf(th)
	h.arm(name, &arch.ProbeOp{Role: arch.RoleCall, Call: c}, nil)
	return c
}

// disarm takes out what was armed.
func (h *handled) disarm() {
	h.t.Helper()
	ch := &target.Change{}
	for _, s := range h.sites {
		ch.Remove = append(ch.Remove, s)
	}
	if len(ch.Remove) > 0 {
		retry(h.t, func() error { return h.tg.Commit(ch) })
	}
	clear(h.sites)
}

// end takes everything out, and checks that nothing is left.
func (h *handled) end() {
	h.t.Helper()
	h.disarm()
	retry(h.t, h.tg.Close)
	h.clean()
	h.tg.proc.Close()
}

func (h *handled) clean() {
	h.t.Helper()
	l, err := findLeftover(h.tg.p)
	if err != nil || l != nil {
		h.t.Errorf("left in the process: %+v, %v", l, err)
	}
	for _, m := range mapsOfTB(h.t, h.tg.p) {
		if ours(m) {
			h.t.Errorf("left in the process: %+v", m)
		}
	}
}

func mapsOfTB(t testing.TB, p *ptrace.Process) []procfs.Map {
	t.Helper()
	maps, err := p.Maps()
	if err != nil {
		t.Fatal(err)
	}
	return maps
}

// want asks the program and compares its answer.
func (h *handled) want(ask, answer string) {
	h.t.Helper()
	order.Add(1)
	if a := h.Ask(ask); a != answer {
		h.t.Errorf("%s: %q, want %q", ask, a, answer)
	}
	order.Add(1)
}
