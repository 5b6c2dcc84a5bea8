package process

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/kmod"
	"kprobes.dev/kprobes/internal/target"
)

// compiled compiles a module of testdata.
func compiled(t testing.TB, name string) *kmod.Object {
	t.Helper()
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
	return o
}

// registrar answers the requests of a module: it arms its kprobes.
type registrar struct {
	*handled
	m     *Kmod
	calls []*arch.Call
	asked []int64
}

func (r *registrar) serve(q Request) int64 {
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
	p, err := kmod.ReadProbe(r.tg.Read, kmod.Kprobe, at, r.m.Text())
	if err != nil || p.Symbol == "" {
		r.t.Error(p, err)
		return -int64(unix.EINVAL)
	}
	fn, place := r.function(p.Symbol)
	next := fn.Next(place.Addr)
	call := func(addr, at uint64, post bool) *arch.ProbeOp {
		c := r.callOf(&target.Handler{Point: amd64.Point{Addr: at}, InLine: &target.InLine{Addr: addr, Of: p.At, Post: post}})
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
	at, ok := r.m.Image().Symbol(name)
	b := make([]byte, 8)
	if err := r.tg.Read(at, b); err != nil || !ok {
		r.t.Fatal(name, ok, err)
	}
	return le.Uint64(b)
}

// call runs the module's start or end.
func (r *registrar) call(name string, want int64) {
	r.t.Helper()
	fn, ok := r.m.Image().Symbol(name)
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
	retry(h.t, func() (err error) {
		r.m, err = h.tg.LoadKmod(o, ps, func(name string) { h.t.Errorf("unknown parameter %s", name) }, &InLine{Event: 3, Clock: &Clock{Length: 1 << 31}})
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
