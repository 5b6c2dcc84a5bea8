package modules_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/modules"
)

// Sum and Deep are probed. They count their calls themselves.
//
//go:noinline
func Sum(a, b int) int {
	sums.Add(1)
	return a + b
}

// Deep takes some hundred bytes of stack for each of n calls.
//
//go:noinline
func Deep(n int) int {
	deeps.Add(1)
	var room [32]int
	for i := range room {
		room[i] = n
	}
	if n > 0 {
		return Deep(n-1) + room[n%32]
	}
	return room[0]
}

var sums, deeps atomic.Uint64

// done is a context that is done.
var done = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// objects are modules that have been compiled, by file.
var objects sync.Map

// object compiles a module of testdata.
func object(tb testing.TB, name string) *bytes.Reader {
	tb.Helper()
	o, ok := objects.Load(name)
	if !ok {
		text, err := os.ReadFile(filepath.Join("testdata", name+".c"))
		if err != nil {
			tb.Fatal(err)
		}
		o = source(tb, name, string(text))
		objects.Store(name, o)
	}
	return bytes.NewReader(o.([]byte))
}

func source(tb testing.TB, name, text string) []byte {
	tb.Helper()
	o, err := modules.Compile(name, []byte(text))
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

func own(tb testing.TB) *modules.Table {
	tb.Helper()
	table, err := modules.Of(nil)
	if err != nil {
		tb.Fatal(err)
	}
	for range table.Lines(done) { // of tests before
	}
	return table
}

func insert(tb testing.TB, table *modules.Table, name string, params ...string) *modules.Module {
	tb.Helper()
	m, err := table.Insert(name, object(tb, name), params...)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// remove removes a module and gives what it has written.
func remove(tb testing.TB, table *modules.Table, m *modules.Module) (lines []string) {
	tb.Helper()
	if err := m.Remove(); err != nil {
		tb.Fatal(err)
	}
	for l := range table.Lines(done) {
		lines = append(lines, l.Text)
	}
	return lines
}

// last is the last of some lines.
func last(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

// call calls the probed functions, n times on each of some goroutines, whose stacks grow from nothing.
func call(t *testing.T, goroutines, n int) {
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range n {
				if got := Sum(g*n+i, g*n+i+1); got != 2*(g*n+i)+1 {
					t.Errorf("Sum(%d, %d) = %d", g*n+i, g*n+i+1, got)
					return
				}
				if i%64 == 0 {
					wg.Go(func() {
						if got := Deep(i % 500); got != (i%500)*(i%500+1)/2 {
							t.Errorf("Deep(%d) = %d", i%500, got)
						}
					})
				}
			}
		})
	}
	wg.Wait()
}

// collect has the garbage collector run until end is called.
func collect() (end func()) {
	stop, ended := make(chan bool), make(chan bool)
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	return func() {
		close(stop)
		<-ended
	}
}

// TestCounts has a module count calls by several goroutines, before an instruction, behind one, and at returns with data from the entry, while the collector runs, stacks
// grow, and threads are sampled in handlers.
func TestCounts(t *testing.T) {
	table := own(t)
	for _, spin := range []int{0, 2000} {
		m := insert(t, table, "counts", fmt.Sprintf("spin=%d", spin))
		if err := pprof.StartCPUProfile(io.Discard); err != nil {
			t.Fatal(err)
		}
		end := collect()
		was, deep := sums.Load(), deeps.Load()
		call(t, 8, 3000)
		end()
		pprof.StopCPUProfile()
		was, deep = sums.Load()-was, deeps.Load()-deep
		want := fmt.Sprintf("calls=%d behind=%d returned=%d wrong=0 missed=0", was, deep, was)
		if lines := remove(t, table, m); last(lines) != want || was == 0 || deep == 0 {
			t.Errorf("spin=%d: %q, want %s", spin, lines, want)
		}
	}
	call(t, 2, 100)
}

// TestMissed has hits come on top of a handler, and calls that find no instance.
func TestMissed(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	table := own(t)
	m := insert(t, table, "missed")
	const calls, depth = 200, 9
	for i := range calls {
		if Sum(i, i) != 2*i || Deep(depth) != depth*(depth+1)/2 {
			t.Fatal("a wrong result")
		}
	}
	lines := remove(t, table, m)
	var sent, missed, outer, deep int
	if _, err := fmt.Sscanf(last(lines), "sent=%d signals=%d outer=%d calls=%d", &sent, &missed, &outer, &deep); err != nil {
		t.Fatalf("%q: %v", lines, err)
	}
	if sent != calls || missed < calls || outer != 0 || deep != calls*depth {
		t.Errorf("%q: want %d signals, as many hits missed or some more, and %d calls", lines, calls, calls*depth)
	}
	<-signals
}

// TestRuntime probes the runtime where no goroutine runs.
func TestRuntime(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	table := own(t)
	m := insert(t, table, "runtime")
	const n = 100
	for range n {
		if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		<-signals
	}
	if lines, want := remove(t, table, m), fmt.Sprintf("signals=%d choices=1", n); last(lines) != want {
		t.Errorf("%q, want %s", lines, want)
	}
}

// TestSwitchedOff: what is not armed is not counted, and what is armed again is, beside other probes at the same place.
func TestSwitchedOff(t *testing.T) {
	table := own(t)
	core, err := kprobes.Self()
	if err != nil {
		t.Fatal(err)
	}
	k := &kprobes.Kprobe{SymbolName: "kprobes.dev/kprobes/modules_test.Sum"}
	if err := core.RegisterKprobe(k); err != nil {
		t.Fatal(err)
	}
	m := insert(t, table, "counts")
	var want, deep uint64
	for i := range 20 {
		if err := core.SetEnabled(i%2 == 0); err != nil {
			t.Fatal(err)
		}
		was, wasDeep := sums.Load(), deeps.Load()
		call(t, 3, 200)
		if i%2 == 0 {
			want, deep = want+sums.Load()-was, deep+deeps.Load()-wasDeep
		}
	}
	if err := core.SetEnabled(true); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("calls=%d behind=%d returned=%d wrong=0 missed=0", want, deep, want)
	if lines := remove(t, table, m); last(lines) != text {
		t.Errorf("%q, want %s", lines, text)
	}
	if n := k.State().Hits; n != want {
		t.Errorf("%d hits beside the module, want %d", n, want)
	}
	core.UnregisterKprobe(k)
}

// TestInsertAgain: a name stands for one module.
func TestInsertAgain(t *testing.T) {
	table := own(t)
	m := insert(t, table, "counts")
	if _, err := table.Insert("counts", object(t, "counts")); err == nil || !strings.Contains(err.Error(), "loaded already") {
		t.Errorf("inserted twice: %v", err)
	}
	if list := table.List(); len(list) != 1 || list[0].Name != "counts" || list[0].Size == 0 || list[0].Permanent() {
		t.Errorf("%+v", list)
	}
	remove(t, table, m)
	if err := m.Remove(); err == nil || !strings.Contains(err.Error(), "not loaded") {
		t.Errorf("removed twice: %v", err)
	}
	if list := table.List(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

// starting counts the threads of modules' starts: they block all signals but those that instructions cause.
func starting(t *testing.T) (n int) {
	const mask = "fffffffffffbfa27" // as proc(5) has it: without SIGKILL and SIGSTOP, too
	es, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		b, err := os.ReadFile(filepath.Join("/proc/self/task", e.Name(), "status"))
		if err != nil {
			continue // it has ended
		}
		if strings.Contains(string(b), "\nSigBlk:\t"+mask+"\n") {
			n++
		}
	}
	return n
}

// begin is what the module waits waits for.
var begin atomic.Int32

// TestStartTakesTime: while a module's start runs, the program does, its collector too, and probes come and go. What the start returns is told.
func TestStartTakesTime(t *testing.T) {
	table := own(t)
	for _, result := range []int{0, -int(syscall.ENODEV)} {
		begin.Store(0)
		loaded := make(chan error)
		go func() {
			_, err := table.Insert("waits", object(t, "waits"), fmt.Sprintf("word=%d", uintptr(unsafe.Pointer(&begin))), fmt.Sprintf("result=%d", result))
			loaded <- err
		}()
		for starting(t) == 0 {
			runtime.Gosched()
		}
		for range 3 {
			runtime.GC()
			k := &kprobes.Kprobe{SymbolName: "kprobes.dev/kprobes/modules_test.Sum"}
			if err := kprobes.RegisterKprobe(k); err != nil {
				t.Error(err)
			}
			call(t, 2, 100)
			kprobes.UnregisterKprobe(k)
		}
		begin.Store(1)
		switch err := <-loaded; {
		case result == 0 && err != nil:
			t.Error(err)
		case result != 0 && !errors.Is(err, syscall.ENODEV):
			t.Errorf("a start that fails: %v", err)
		}
		if n := starting(t); n > 0 {
			t.Errorf("%d threads of a start are left", n)
		}
		for _, m := range table.List() {
			if lines := remove(t, table, m); result != 0 || !slices.Equal(lines, []string{"started"}) {
				t.Errorf("result %d: %q", result, lines)
			}
		}
	}
}

// low lists what is mapped in the first 2 GB and above the program, where modules lie.
func low(t *testing.T) string {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		var lo, hi uint64
		if _, err := fmt.Sscanf(line, "%x-%x", &lo, &hi); err == nil && lo >= 1<<30 && hi <= 1<<31 {
			out.WriteString(line)
		}
	}
	return out.String()
}

// TestRepeated loads and removes a module again and again, under load: nothing stays.
func TestRepeated(t *testing.T) {
	table := own(t)
	remove(t, table, insert(t, table, "counts"))
	before := low(t)
	if before == "" {
		t.Error("the gates are not where modules lie")
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !stop.Load() {
				call(t, 1, 100)
			}
		})
	}
	end := collect()
	for range 20 {
		lines := remove(t, table, insert(t, table, "counts"))
		if !strings.Contains(last(lines), "wrong=0") {
			t.Errorf("%q", lines)
		}
	}
	end()
	stop.Store(true)
	wg.Wait()
	if after := low(t); after != before {
		t.Errorf("mapped before:\n%safter:\n%s", before, after)
	}
	if n := starting(t); n > 0 {
		t.Errorf("%d threads of starts are left", n)
	}
}
