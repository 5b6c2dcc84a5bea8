package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/kmod"
	"kprobes.dev/kprobes/internal/modules"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/testprog"
)

// objects are modules that have been compiled, by name.
var objects sync.Map

// compiled compiles a module of testdata.
func compiled(t testing.TB, name string) *kmod.Object {
	t.Helper()
	if o, ok := objects.Load(name); ok {
		return o.(*kmod.Object)
	}
	dir := t.TempDir()
	headers, object := filepath.Join(dir, "include"), filepath.Join(dir, name+".o")
	if err := kmod.WriteHeaders(headers); err != nil {
		t.Fatal(err)
	}
	args := append(kmod.Flags(name, headers), "-c", "-o", object, filepath.Join("testdata", name+".c"))
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v (install gcc)\n%s", err, out)
	}
	b, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}
	o, err := kmod.Parse(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	objects.Store(name, o)
	return o
}

// registrar answers the requests of a module: it arms its kprobes.
type registrar struct {
	*handled
	m     *modules.Linked
	calls []*arch.Call
	asked []int64
}

func (r *registrar) serve(q target.ModuleRequest) int64 {
	r.asked = append(r.asked, q.What)
	b := make([]byte, 8)
	switch {
	case q.What != kmod.RegisterKprobe && q.What != kmod.UnregisterKprobe, q.N != 1, r.tg.Read(q.Of, b) != nil:
		return -int64(unix.EINVAL)
	case q.What == kmod.UnregisterKprobe:
		r.disarm()
		return 0
	}
	at := le.Uint64(b)
	p, err := kmod.ReadProbe(r.tg.Read, kmod.Kprobe, at, r.m.Memory().Text)
	if err != nil || p.Symbol == "" {
		r.t.Error(p, err)
		return -int64(unix.EINVAL)
	}
	fn, place := r.function(p.Symbol)
	next := fn.Next(place.Addr)
	call := func(addr, at uint64, post bool) *arch.ProbeOp {
		kind := target.InLinePre
		if post {
			kind = target.InLinePost
		}
		c := r.callOf(&target.Handler{Point: amd64.Point{Addr: at, Go: r.tg.golang != nil}, InLine: &target.InLine{Addr: addr, Of: p.At, Kind: kind}})
		r.calls = append(r.calls, c)
		return &arch.ProbeOp{Role: arch.RoleCall, Call: c, After: post}
	}
	r.armAll(p.Symbol, map[uint64][]arch.ProbeOp{place.Addr: {*call(p.Pre, place.Addr, false), *call(p.Post, next, true)}})
	if err := p.Tell(r.tg.p.WriteMem, &kmod.State{Addr: place.Addr}); err != nil {
		r.t.Error(err)
	}
	return 0
}

func (r *registrar) word(name string) uint64 {
	r.t.Helper()
	at, ok := r.m.Image.Symbol(name)
	b := make([]byte, 8)
	if err := r.tg.Read(at, b); err != nil || !ok {
		r.t.Fatal(name, ok, err)
	}
	return le.Uint64(b)
}

// call runs the module's start or end.
func (r *registrar) call(name string, want int64) {
	r.t.Helper()
	fn, ok := r.m.Image.Symbol(name)
	if !ok {
		r.t.Fatalf("the module has no %s", name)
	}
	result, err := r.m.Call(fn, r.serve)
	if err != nil || result != want {
		r.t.Fatalf("%s: %d, %v; want %d", name, result, err, want)
	}
}

func loadModule(h *handled, name string, params ...string) *registrar {
	h.t.Helper()
	r := &registrar{handled: h}
	var ps []kmod.Param
	for _, p := range params {
		ps = append(ps, kmod.ParseParam(p))
	}
	o := compiled(h.t, name)
	retry(h.t, func() error {
		rt, err := h.tg.OpenModules(&target.ModuleOptions{Event: 3, Clock: target.ModuleClock{Length: 1 << 31}})
		if err == nil {
			r.m, err = modules.Link(h.tg, rt, o, ps, func(name string) { h.t.Errorf("unknown parameter %s", name) })
		}
		return err
	})
	return r
}

func tasksOf(t testing.TB, p *Proc) []int {
	t.Helper()
	tids, err := p.Tasks()
	if err != nil {
		t.Fatal(err)
	}
	return tids
}

// TestKmod loads a module into a process: its start registers a probe, its handlers run at every hit, with the registers, and its end takes the probe out.
func TestKmod(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	before := tasksOf(t, h.tg.proc)
	r := loadModule(h, "count")
	r.call("init_module", 0)
	const threads, each = 8, 20000
	h.want(fmt.Sprintf("go %d %d", threads, each), fmt.Sprintf("ok %d 0", threads*each))
	h.want("leaf 5", h.Ask("leaf 5"))
	if n, args := r.word("counted"), r.word("arguments"); n != threads*each+2 || r.word("behind") != n || args < threads*each*(each-1)/2 {
		t.Errorf("%d hits with %d, and %d behind; want %d with %d", n, args, r.word("behind"), threads*each+2, threads*each*(each-1)/2)
	}
	for _, c := range r.calls {
		if m := h.tg.Missed(c); m != (target.Missed{}) {
			t.Errorf("missed: %+v", m)
		}
	}
	r.call("cleanup_module", 0)
	if want := []int64{kmod.RegisterKprobe, kmod.UnregisterKprobe}; !slices.Equal(r.asked, want) {
		t.Errorf("asked %v, want %v", r.asked, want)
	}
	for _, c := range r.calls {
		h.tg.EndCall(c)
	}
	retry(t, r.m.Unload)
	if after := tasksOf(t, h.tg.proc); !slices.Equal(after, before) {
		t.Errorf("threads %v, before %v", after, before)
	}
	h.want("go 2 1000", "ok 2000 0")
	h.end()
}

// TestKmodFaults has a handler fault at some hits: the first one ends it, and the program computes as before.
func TestKmodFaults(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	r := loadModule(h, "count", "fault_every=100")
	r.call("init_module", 0)
	h.want("go 4 5000", "ok 20000 0")
	pre, post := r.calls[0], r.calls[1]
	if n, behind := r.word("counted"), r.word("behind"); n == 0 || n >= 20000 || behind != 20000 {
		t.Errorf("%d hits were counted before the handler faulted, %d behind", n, behind)
	}
	if _, n := h.tg.inLine.counts(pre); n == 0 || n > 4 {
		t.Errorf("%d faults of 4 threads", n)
	}
	if _, n := h.tg.inLine.counts(post); n != 0 {
		t.Errorf("%d faults behind the instruction", n)
	}
	h.want("flags 2261", h.Ask("flags 2261"))
	r.remove()
	h.end()
}

// remove takes out what the module has armed, and the module.
func (r *registrar) remove() {
	r.t.Helper()
	r.disarm()
	for _, c := range r.calls {
		r.tg.EndCall(c)
	}
	retry(r.t, r.m.Unload)
}

// TestKmodStart has a module's start fail, and fault: it ends, and nothing of the program does.
func TestKmodStart(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	for _, c := range []struct {
		param string
		want  int64
	}{{"result=-19", -19}, {"fault_in_init=1", -14}, {"result=0", 0}} {
		r := loadModule(h, "count", c.param)
		r.call("init_module", c.want)
		h.want("go 2 1000", "ok 2000 0")
		if n := r.word("counted"); n < 2000 {
			t.Errorf("%s: %d hits", c.param, n)
		}
		r.remove()
	}
	h.end()
}

// TestKmodInGo loads a module into a program of Go, whose goroutines have little stack and move: its handlers have stacks of their own.
func TestKmodInGo(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "gowork"), "4")
	h := handle(t, &running{&testprog.Talker{PID: prog.PID}, t}, never)
	r := loadModule(h, "count", "symbol=main.Ints")
	r.call("init_module", 0)
	before := prog.Counts("count")
	for range 3 {
		prog.Counts("go 2000")
		prog.Counts("gc")
	}
	after := prog.Counts("count")
	n := after["main.Ints"] - before["main.Ints"]
	missed := h.tg.Missed(r.calls[0]).Busy
	if got := r.word("counted"); n == 0 || got != n || missed != 0 || after["bad"] != 0 {
		t.Errorf("%d hits and %d missed; the program counts %d: %v", got, missed, n, after)
	}
	r.remove()
	h.end()
	if again := prog.Counts("go 10"); again["bad"] != 0 {
		t.Errorf("wrong results after all was taken out: %v", again)
	}
}

// TestKmodEnds has the process end while a module's start waits for its answer: who waits is told.
func TestKmodEnds(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	r := loadModule(h, "count")
	fn, _ := r.m.Image.Symbol("init_module")
	_, err := r.m.Call(fn, func(target.ModuleRequest) int64 {
		if err := h.tg.proc.Signal(unix.SIGKILL); err != nil {
			t.Error(err)
		}
		return 0
	})
	if !errors.Is(err, target.ErrGone) {
		t.Errorf("the process was killed: %v", err)
	}
	if err := h.tg.Close(); err != nil {
		t.Error(err)
	}
}

// TestKmodLeft takes out what a tracer has left that was killed with a module loaded, while handlers run.
func TestKmodLeft(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	r := loadModule(h, "count")
	r.call("init_module", 0)
	h.want("run 4", "ok")
	l, err := findLeftover(h.tg.p) // as one sees it that comes after us
	if err != nil || l == nil || len(l.Sites) != 1 {
		t.Fatalf("left: %+v, %v", l, err)
	}
	retry(t, func() error { _, err := l.Undo(); return err })
	h.clean()
	if a := h.Ask("stop"); !strings.HasSuffix(a, " 0") {
		t.Errorf("stop: %s", a)
	}
	h.tg.control = nil // nothing of it is there any more
	if err := h.tg.closeInLine(); err != nil {
		t.Error(err)
	}
}

// TestKmodLeftAsking takes out what a tracer has left that was killed while a module's start asked it: the start is answered that nobody does, and ends.
func TestKmodLeftAsking(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	before := tasksOf(t, h.tg.proc)
	r := loadModule(h, "count")
	fn, _ := r.m.Image.Symbol("init_module")
	result, err := r.m.Call(fn, func(target.ModuleRequest) int64 {
		l, err := findLeftover(h.tg.p) // as one sees it that comes after us
		if err != nil || l == nil {
			t.Fatal(l, err)
		}
		retry(t, func() error { _, err := l.Undo(); return err })
		h.clean()
		return 0
	})
	if err != nil || result != -int64(unix.ETIMEDOUT) {
		t.Errorf("the start has returned %d, %v", result, err)
	}
	if after := tasksOf(t, h.tg.proc); !slices.Equal(after, before) {
		t.Errorf("threads %v, before %v", after, before)
	}
	h.want("go 2 1000", "ok 2000 0")
	h.tg.control = nil // nothing of it is there any more
	if err := h.tg.closeInLine(); err != nil {
		t.Error(err)
	}
}

// TestKmodToggles loads and removes modules while the program's threads hit: mappings and threads are as before.
func TestKmodToggles(t *testing.T) {
	toggle := func(h *handled, params ...string) {
		r := loadModule(h, "count", params...)
		r.call("init_module", 0)
		eventually(t, "a hit", func() bool { return r.word("counted") > 0 })
		r.call("cleanup_module", 0)
		r.remove()
	}
	mapped := func(h *handled) (n int) {
		for _, m := range mapsOf(t, h.tg.proc) {
			if ours(m) {
				n++
			}
		}
		return n
	}
	t.Run("c", func(t *testing.T) {
		h := handle(t, handledProgram(t), never)
		h.want("run 4", "ok")
		toggle(h)
		before := mapped(h)
		for range 30 {
			toggle(h)
		}
		if after := mapped(h); after != before {
			t.Errorf("%d mappings of ours, %d after the first module", after, before)
		}
		if a := h.Ask("stop"); !strings.HasSuffix(a, " 0") {
			t.Errorf("stop: %s", a)
		}
		h.end()
	})
	t.Run("go", func(t *testing.T) {
		prog := testprog.Start(t, testprog.Build(t, "gowork"), "4")
		h := handle(t, &running{&testprog.Talker{PID: prog.PID}, t}, never)
		done := make(chan map[string]uint64)
		go func() {
			var n map[string]uint64
			for range 10 {
				n = prog.Counts("go 30000")
			}
			done <- n
		}()
		for {
			select {
			case n := <-done:
				if n["bad"] != 0 {
					t.Errorf("wrong results: %v", n)
				}
				h.end()
				return
			default:
			}
			r := loadModule(h, "count", "symbol=main.Ints")
			r.call("init_module", 0)
			r.call("cleanup_module", 0)
			r.remove()
		}
	})
}
