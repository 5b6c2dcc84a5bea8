// This file is added to a package of the standard library when its tests are built
// (see ../stdtest_linux_amd64_test.go). Before the first test it probes each
// function of the package in three ways, and when the program exits it writes down what
// became of the probes.

package probes_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"internal/runtime/exithook"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"unsafe"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/target/self"
)

// What the test that started this program asks for.
const (
	envPackage = "KPROBES_STDTEST_PACKAGE" // whose functions are probed
	envReport  = "KPROBES_STDTEST_REPORT"  // the file that the report is written to
)

// kprobesRefusal is a function in which one of the kinds of probes can not stand.
type kprobesRefusal struct{ Kind, Name, Why string }

// kprobesReport is what the test reads.
type kprobesReport struct {
	Functions int               // of the package, as far as they are in the program
	Armed     map[string]int    // those of them that have a probe, by kind
	Hit       map[string]int    // those that were run
	Hits      map[string]uint64 // runs
	Missed    map[string]uint64 // runs that were counted as missed
	Refused   []kprobesRefusal
	Traps     []kprobesRefusal // functions whose Kprobe takes a trap, and why
	Wrong     []string         // what must not be
}

// kprobesFunc is a function of the package with what stands in it; nil: it was refused.
type kprobesFunc struct {
	name  string
	addr  uint64
	text  []byte // as the program's file has it
	event *kprobes.Event
	k     *kprobes.Kprobe
	r     *kprobes.Kretprobe
	calls atomic.Uint64 // runs of r's EntryHandler
}

// kprobesRun is the probes of this program.
type kprobesRun struct {
	core    *kprobes.Core
	fns     []*kprobesFunc
	handled atomic.Uint64
	strays  atomic.Uint64 // return handlers that had another call's Data
	report  kprobesReport
}

func init() {
	pkg, file := os.Getenv(envPackage), os.Getenv(envReport)
	if file == "" {
		return
	}
	os.Unsetenv(envReport) // programs that the tests start are not probed
	run, err := kprobesArm(pkg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "probes:", err)
		os.Exit(3)
	}
	exithook.Add(exithook.Hook{RunOnFailure: true, F: func() {
		if err := run.finish(file); err != nil {
			fmt.Fprintln(os.Stderr, "probes:", err)
		}
	}})
}

// kprobesArm probes all functions of a package.
func kprobesArm(pkg string) (*kprobesRun, error) {
	var o self.Options
	o.Events = 1 << 15
	t, err := self.Attach(&o)
	if err != nil {
		return nil, err
	}
	core, err := kprobes.Open(t, nil)
	if err != nil {
		return nil, err
	}
	run := &kprobesRun{core: core, report: kprobesReport{
		Armed: map[string]int{}, Hit: map[string]int{}, Hits: map[string]uint64{}, Missed: map[string]uint64{},
	}}
	if err := run.list(t, pkg); err != nil {
		return nil, err
	}
	if err := run.events(pkg); err != nil {
		return nil, err
	}
	run.report.Functions = len(run.fns)
	run.halve("kprobe", run.fns, run.kprobes)
	run.halve("kretprobe", run.fns, run.kretprobes)
	return run, nil
}

// list finds the package's functions: those of its name whose source is no test's.
func (run *kprobesRun) list(t *self.Target, pkg string) error {
	main := t.Space().Main()
	for _, fn := range main.Image.Glob(pkg + ".*") {
		addr := main.Runtime(fn.Addr)
		if !fn.PLT && fn.Candidate() && !kprobesOfTest(uintptr(addr)) {
			text := make([]byte, fn.Size)
			if err := main.Image.ReadAt(fn.Addr, text); err != nil {
				return fmt.Errorf("%s: %w", fn.Pretty(), err)
			}
			run.fns = append(run.fns, &kprobesFunc{name: fn.Pretty(), addr: addr, text: text})
		}
	}
	return nil
}

// kprobesOfTest says whether the function that begins at an address is in a test's source.
func kprobesOfTest(addr uintptr) bool {
	frames := runtime.CallersFrames([]uintptr{addr + 1})
	for {
		f, more := frames.Next()
		if !more { // the last is the function itself, those before it were inlined there
			return strings.HasSuffix(f.File, "_test.go")
		}
	}
}

// refuse notes that a kind of probe can not stand in a function.
func (run *kprobesRun) refuse(kind string, f *kprobesFunc, why error) {
	run.report.Refused = append(run.report.Refused, kprobesRefusal{kind, f.name, why.Error()})
}

// events arms a counter event on each function that a pattern finds: also on those of the
// package's own tests.
func (run *kprobesRun) events(pkg string) error {
	d, err := event.Parse("p " + pkg + ".*")
	if err != nil {
		return err
	}
	refused := map[string]error{}
	evs, err := run.core.Add([]*event.Def{d}, &kprobes.AddOptions{
		Count: true, Skip: func(name string, why error) { refused[name] = why },
	})
	if err != nil {
		return err
	}
	at := map[uint64]*kprobes.Event{}
	for _, e := range evs {
		pl := e.Place()
		at[pl.Addr-pl.Offset] = e
	}
	for _, f := range run.fns {
		if f.event = at[f.addr]; f.event == nil {
			run.refuse("event", f, cmp.Or(refused[f.name], errors.New("no event, and no reason")))
		}
	}
	return nil
}

// halve arms probes on functions: on all at once, or, if that is refused, on either half.
func (run *kprobesRun) halve(kind string, fns []*kprobesFunc, arm func([]*kprobesFunc) error) {
	err := arm(fns)
	switch {
	case err == nil:
	case len(fns) == 1:
		run.refuse(kind, fns[0], err)
	default:
		run.halve(kind, fns[:len(fns)/2], arm)
		run.halve(kind, fns[len(fns)/2:], arm)
	}
}

// kprobes registers a Kprobe on each function, or none.
func (run *kprobesRun) kprobes(fns []*kprobesFunc) error {
	ks := make([]*kprobes.Kprobe, len(fns))
	for i, f := range fns {
		ks[i] = &kprobes.Kprobe{Addr: f.addr, PreHandler: run.handler}
	}
	if err := run.core.RegisterKprobes(ks); err != nil {
		return err
	}
	for i, f := range fns {
		f.k = ks[i]
	}
	return nil
}

// handler is the atomic handler of all Kprobes.
func (run *kprobesRun) handler(*kprobes.Kprobe, *kprobes.Regs) int {
	run.handled.Add(1)
	return 0
}

// kretprobes registers a Kretprobe on each function, or none.
func (run *kprobesRun) kretprobes(fns []*kprobesFunc) error {
	rs := make([]*kprobes.Kretprobe, len(fns))
	for i, f := range fns {
		rs[i] = run.kretprobe(f)
	}
	if err := run.core.RegisterKretprobes(rs); err != nil {
		return err
	}
	for i, f := range fns {
		f.r = rs[i]
	}
	return nil
}

// kretprobe makes a return probe whose Data carries whose call it is from the entry to the
// return, where that must be the same.
func (run *kprobesRun) kretprobe(f *kprobesFunc) *kprobes.Kretprobe {
	return &kprobes.Kretprobe{
		Kp: kprobes.Kprobe{Addr: f.addr}, DataSize: 2,
		EntryHandler: func(ri *kprobes.KretprobeInstance, _ *kprobes.Regs) int {
			f.calls.Add(1)
			ri.Data[0], ri.Data[1] = byte(ri.RetAddr), byte(ri.Task.ID)
			return 0
		},
		Handler: func(ri *kprobes.KretprobeInstance, _ *kprobes.Regs) int {
			if ri.Data[0] != byte(ri.RetAddr) || ri.Data[1] != byte(ri.Task.ID) {
				run.strays.Add(1)
			}
			return 0
		},
	}
}

// wrong notes what must not be.
func (run *kprobesRun) wrong(format string, args ...any) {
	run.report.Wrong = append(run.report.Wrong, fmt.Sprintf(format, args...))
}

// finish takes the probes out, the events last, and writes the report.
func (run *kprobesRun) finish(file string) error {
	for _, f := range run.fns {
		if f.k == nil {
			continue
		}
		if s := f.k.State(); s.Tactic != kprobes.TacticJump {
			run.report.Traps = append(run.report.Traps, kprobesRefusal{"jump", f.name, fmt.Sprint(s.Tactic, ", for: ", s.Why)})
		}
	}
	run.out()
	for _, f := range run.fns {
		run.tally(f)
	}
	if n := run.handled.Load(); n != run.report.Hits["kprobe"] {
		run.wrong("handlers counted %d runs, their probes %d", n, run.report.Hits["kprobe"])
	}
	if n := run.strays.Load(); n > 0 {
		run.wrong("%d return handlers had another call's data", n)
	}
	if err := run.core.Close(nil); err != nil {
		run.wrong("close: %v", err)
	}
	run.intact()
	out, err := json.Marshal(&run.report)
	if err != nil {
		return err
	}
	return os.WriteFile(file, out, 0o644)
}

// out unregisters all Kprobes and Kretprobes.
func (run *kprobesRun) out() {
	var ks []*kprobes.Kprobe
	var rs []*kprobes.Kretprobe
	for _, f := range run.fns {
		if f.k != nil {
			ks = append(ks, f.k)
		}
		if f.r != nil {
			rs = append(rs, f.r)
		}
	}
	run.core.UnregisterKretprobes(rs)
	run.core.UnregisterKprobes(ks)
}

// add sums up what a kind of probe has counted on one function.
func (run *kprobesRun) add(kind string, hits, missed uint64) {
	r := &run.report
	r.Armed[kind]++
	if hits > 0 {
		r.Hit[kind]++
	}
	r.Hits[kind] += hits
	r.Missed[kind] += missed
}

// tally sums up what was counted on a function. Its event was there before the Kprobe and
// is there after it, so it has counted each run that the Kprobe has.
func (run *kprobesRun) tally(f *kprobesFunc) {
	var runs uint64
	if f.event != nil {
		n := run.core.Counts(f.event)
		runs = n.Hits
		run.add("event", n.Hits, n.Missed)
	}
	if f.k != nil {
		s := f.k.State()
		run.add("kprobe", s.Hits, s.Misses.Total())
		if err := f.k.Fault(); err != nil {
			run.wrong("%s: %v", f.name, err)
		}
		if n := s.Hits + s.Misses.Total(); f.event != nil && n > runs {
			run.wrong("%s: the Kprobe has counted %d runs, the event %d", f.name, n, runs)
		}
	}
	if f.r != nil {
		s := f.r.State()
		run.add("kretprobe", s.Hits, s.Misses.Total())
		if err := f.r.Fault(); err != nil {
			run.wrong("%s: %v", f.name, err)
		}
		if n := s.Hits + s.Unwound; n > f.calls.Load() {
			run.wrong("%s: %d calls, but %d returns and %d unwound", f.name, f.calls.Load(), s.Hits, s.Unwound)
		}
	}
}

// intact compares the functions with the program's file.
func (run *kprobesRun) intact() {
	for _, f := range run.fns {
		if !bytes.Equal(f.text, unsafe.Slice((*byte)(unsafe.Pointer(uintptr(f.addr))), len(f.text))) {
			run.wrong("%s: not as in the file", f.name)
		}
	}
}
