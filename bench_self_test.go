//go:build linux && amd64 && !race

package kprobes_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/cbuild"
	"kprobes.dev/kprobes/internal/kuprobe"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/workload"
)

// benchHook is what a program without probes has: a hook of its own in the function.
var benchHook = func(a, b int) { benchHooked(a, b) }

//go:noinline
func benchHooked(_, _ int) {}

//go:noinline
func benchWithHook(a, b int) int {
	benchHook(a, b)
	return a*3 + b
}

var benchSink int

func loopHook(n int) {
	for i := range n {
		benchSink = benchWithHook(i, 1)
	}
}

// Calls of a round: few where each costs microseconds.
const (
	fastCalls = 10000
	slowCalls = 500
)

// selfRow is a row of the table.
type selfRow struct {
	name        string
	plain, loop func(n int)
	calls       int
	// arm places the probe; calls, which may be nil, is told the calls so far after each
	// round; end takes the probe out and gives its hits.
	arm func(b *testing.B) (after func(calls uint64), end func() uint64)
	bar float64 // the most that is wanted, in ns; 0: nothing is
}

// BenchmarkSelf is the table of what a hit costs in the own process, beside an unprobed call,
// a hook written by hand, and the kernel's uprobe in a copy of this program. Rounds of the
// function without a probe and with it alternate; ns/op is the median call with it, ns/hit
// what it has cost more. uprobe/hit says how many hits the kernel's uprobe is worth, bar-ns
// the most that is wanted.
func BenchmarkSelf(b *testing.B) {
	for _, r := range selfRows {
		b.Run(r.name, r.run)
	}
	b.Run("uprobe", func(b *testing.B) {
		ns, err := uprobeCost()
		if err != nil {
			b.Skipf("no uprobe can be placed here: %v", err)
		}
		for b.Loop() { // it has been measured: nothing is done here
		}
		b.ReportMetric(ns, "ns/hit")
		b.ReportMetric(0, "ns/op")
	})
}

var selfRows = []selfRow{
	{name: "call", plain: workload.LoopPlainLeaf, loop: workload.LoopLeaf, calls: fastCalls},
	{name: "hook", plain: workload.LoopPlainLeaf, loop: loopHook, calls: fastCalls},
	{name: "counter", plain: workload.LoopPlainLeaf, loop: workload.LoopLeaf, calls: fastCalls, arm: armCounter, bar: 10},
	{name: "event", plain: workload.LoopPlainLeaf, loop: workload.LoopLeaf, calls: fastCalls, arm: armEvent},
	{name: "atomic", plain: workload.LoopPlainLeaf, loop: workload.LoopLeaf, calls: fastCalls, arm: armKprobe(workload.OwnLeaf, 0, false), bar: 40},
	{name: "atomic-checked", plain: workload.LoopPlainDeep, loop: workload.LoopDeep, calls: fastCalls, arm: armKprobe(workload.OwnDeep, 0, false), bar: 40},
	{name: "sleepable", plain: workload.LoopPlainDeep, loop: workload.LoopDeep, calls: slowCalls, arm: armKprobe(workload.OwnDeep, kprobes.FlagSleepable, false), bar: 3000},
	{name: "post", plain: workload.LoopPlainLeaf, loop: workload.LoopLeaf, calls: fastCalls, arm: armKprobe(workload.OwnLeaf, 0, true), bar: 40},
	{name: "kretprobe", plain: workload.LoopPlainLeaf, loop: workload.LoopLeaf, calls: fastCalls, arm: armKretprobe},
	{name: "jprobe", plain: workload.LoopPlainLeaf, loop: workload.LoopLeaf, calls: fastCalls, arm: armJprobe},
}

func (r *selfRow) run(b *testing.B) {
	after, end := func(uint64) {}, func() uint64 { return 0 }
	if r.arm != nil {
		after, end = r.arm(b)
	}
	var plain, probed []float64
	var calls uint64
	for b.Loop() {
		plain = append(plain, perCall(r.plain, r.calls))
		probed = append(probed, perCall(r.loop, r.calls))
		calls += uint64(r.calls)
		after(calls)
	}
	if hits := end(); r.arm != nil && hits != calls {
		b.Errorf("%d hits for %d calls", hits, calls)
	}
	with := middle(probed)
	hit := with - middle(plain)
	b.ReportMetric(with, "ns/op")
	b.ReportMetric(hit, "ns/hit")
	if r.bar > 0 {
		b.ReportMetric(r.bar, "bar-ns")
	}
	if r.arm == nil || os.Getenv(inCopy) != "" {
		return
	}
	if ns, err := uprobeCost(); err == nil {
		b.ReportMetric(ns/hit, "uprobe/hit")
	}
}

// perCall is the time of one of n calls, in ns.
func perCall(loop func(int), n int) float64 {
	start := time.Now()
	loop(n)
	return float64(time.Since(start).Nanoseconds()) / float64(n)
}

func middle(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

func armCounter(b *testing.B) (func(uint64), func() uint64) {
	return armDef(b, "p:bench_count "+workload.OwnLeaf, &kprobes.AddOptions{Count: true})
}

// armEvent records both arguments. The records of a round are read before the next one, so
// that each is truly stored.
func armEvent(b *testing.B) (func(uint64), func() uint64) {
	return armDef(b, "p:bench_event "+workload.OwnLeaf+" a=$arg1 b=$arg2", nil)
}

func armDef(b *testing.B, text string, o *kprobes.AddOptions) (func(uint64), func() uint64) {
	b.Helper()
	def, err := event.Parse(text)
	if err != nil {
		b.Fatal(err)
	}
	core, err := kprobes.Self()
	if err != nil {
		b.Fatal(err)
	}
	evs, err := core.Add([]*event.Def{def}, o)
	if err != nil {
		b.Fatal(err)
	}
	end := func() uint64 {
		if err := core.Remove(evs); err != nil {
			b.Error(err)
		}
		n := core.Counts(evs[0])
		if n.Lost > 0 {
			b.Errorf("%d records lost", n.Lost)
		}
		return n.Hits
	}
	if o != nil {
		return func(uint64) {}, end
	}
	var read uint64
	return func(calls uint64) {
		for deadline := time.Now().Add(time.Minute); read < calls && time.Now().Before(deadline); {
			read += uint64(core.Poll(func(*hit.Hit) {}))
		}
	}, end
}

func armKprobe(name string, flags kprobes.Flags, post bool) func(*testing.B) (func(uint64), func() uint64) {
	return func(b *testing.B) (func(uint64), func() uint64) {
		b.Helper()
		k := &kprobes.Kprobe{SymbolName: name, Flags: flags}
		if post {
			k.PostHandler = func(*kprobes.Kprobe, *kprobes.Regs, uint64) {}
		} else {
			k.PreHandler = func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }
		}
		if err := kprobes.RegisterKprobe(k); err != nil {
			b.Fatal(err)
		}
		return func(uint64) {}, func() uint64 { kprobes.UnregisterKprobe(k); return k.State().Hits }
	}
}

// armKretprobe has a handler at the entry and one at the return.
func armKretprobe(b *testing.B) (func(uint64), func() uint64) {
	b.Helper()
	h := func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return 0 }
	r := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: workload.OwnLeaf}, EntryHandler: h, Handler: h, DataSize: 8}
	if err := kprobes.RegisterKretprobe(r); err != nil {
		b.Fatal(err)
	}
	return func(uint64) {}, func() uint64 { kprobes.UnregisterKretprobe(r); return r.State().Hits }
}

func armJprobe(b *testing.B) (func(uint64), func() uint64) {
	b.Helper()
	j := &kprobes.Jprobe{Kp: kprobes.Kprobe{SymbolName: workload.OwnLeaf}, Entry: func(_, _ int) int { return 0 }}
	if err := kprobes.RegisterJprobe(j); err != nil {
		b.Fatal(err)
	}
	return func(uint64) {}, func() uint64 { kprobes.UnregisterJprobe(j); return j.State().Hits }
}

// inCopy is set in the environment of the copy that the kernel probes.
const inCopy = "KPROBES_BENCH_COPY"

// uprobeCost is what a hit of the kernel's uprobe costs, in ns: the row "call", run by a copy
// of this program in which the kernel probes the leaf and records both arguments. An error says
// why there is none here.
var uprobeCost = sync.OnceValues(func() (ns float64, err error) {
	if os.Getenv(inCopy) != "" {
		return 0, errors.New("this is the copy")
	}
	if _, err := kuprobe.Mount(); err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "kprobes-bench-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	exe, err := os.Executable()
	if err != nil {
		return 0, err
	}
	path, err := cbuild.Copy(dir, exe)
	if err != nil {
		return 0, err
	}
	off, err := fileOffset(uint64(reflect.ValueOf(workload.Leaf).Pointer()))
	if err != nil {
		return 0, err
	}
	probe, err := kuprobe.Tracefs{Place: kuprobe.Place{Path: path, Offset: off}, Args: "a=%ax b=%bx", Record: true}.Open()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, probe.Close()) }()
	cmd := exec.Command(path, "-test.run=^$", "-test.bench=^BenchmarkSelf$/^call$", "-test.benchtime=15x")
	cmd.Env = append(os.Environ(), inCopy+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("the copy: %w: %s", err, out)
	}
	if n, err := probe.Count(); err != nil || n == 0 {
		return 0, errors.Join(err, fmt.Errorf("the uprobe has counted %d", n))
	}
	return metric(string(out), "ns/hit")
})

// fileOffset is where the program's file holds what is mapped at an address.
func fileOffset(addr uint64) (uint64, error) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, err
	}
	maps, err := procfs.ParseMaps(text)
	if err != nil {
		return 0, err
	}
	for _, m := range maps {
		if m.Start <= addr && addr < m.End {
			return addr - m.Start + m.Offset, nil
		}
	}
	return 0, fmt.Errorf("nothing is mapped at 0x%x", addr)
}

// metric finds a benchmark's figure by its unit.
func metric(out, unit string) (float64, error) {
	f := strings.Fields(out)
	if i := slices.Index(f, unit); i > 0 {
		return strconv.ParseFloat(f[i-1], 64)
	}
	return 0, fmt.Errorf("no %s in %q", unit, out)
}
