// Package conformance holds what Linux's own unit tests of kprobes expect (lib/tests/
// test_kprobes.c, kernel/test_kprobes.c with jprobes, the boot test of kernel/trace/trace_kprobe.c,
// kernel/trace/kprobe_event_gen_test.c), as cases that any
// target can be put to. The numbers are the kernel's.
package conformance

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"kprobes.dev/kprobes"
)

// Functions that a target has for the cases. Each takes a number and returns one:
//
//	target    v/3
//	target2   v/3 + 1
//	recursed  v/3
//	inner     its own return address, whatever v is
//	outer     its own return address, after a call of inner
//	sum       1+2+3+4+5+6, by a function with these six arguments (sum6)
const (
	Target   = "target"
	Target2  = "target2"
	Recursed = "recursed"
	Inner    = "inner"
	Outer    = "outer"
	Sum      = "sum"
	Sum6     = "sum6" // the function that is probed
)

// Env is a target under test.
type Env struct {
	Core *kprobes.Core
	// Symbol is the name that a function has in the target.
	Symbol func(fn string) string
	// Call makes the target call a function.
	Call func(fn string, v uint64) uint64
	// Inside calls a function of the target within a handler; nil where handlers run in
	// another process than the one that is probed.
	Inside func(fn string, v uint64) uint64
	// Preemptible says, within a handler, whether the scheduler could take the thread away
	// from it; nil where nobody can tell.
	Preemptible func() bool
	// Without are the cases that can not be had on this target, with the reason.
	Without map[string]string
}

// cases, by the kernel's names of them.
var cases = []struct {
	name string
	run  func(*testing.T, *Env)
}{
	{"test_kprobe", testKprobe},
	{"test_kprobes", testKprobes},
	{"test_kprobe_missed", testKprobeMissed},
	{"test_kretprobe", testKretprobe},
	{"test_kretprobes", testKretprobes},
	{"test_stacktrace_on_kretprobe", testStack},
	{"test_stacktrace_on_nested_kretprobe", testNested},
	{"test_jprobe", testJprobe},
	{"test_jprobes", testJprobes},
	{"kprobe_trace_self_tests", testTrace},
	{"kprobe_event_gen_test", testGenerated},
}

// Run puts a target to all cases.
func Run(t *testing.T, env *Env) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if why := env.Without[c.name]; why != "" {
				t.Logf("not on this target: %s", why)
				return
			}
			c.run(t, env)
		})
	}
	for name := range env.Without {
		if !slices.ContainsFunc(cases, func(c struct {
			name string
			run  func(*testing.T, *Env)
		},
		) bool {
			return c.name == name
		}) {
			t.Errorf("a target is said to be without %q, which is no case", name)
		}
	}
}

// seen is what handlers have seen. They store numbers only: they must not allocate.
type seen struct {
	env         *Env
	rand        uint64
	pre, post   atomic.Uint64
	krp         atomic.Uint64
	jp          atomic.Uint64
	preemptible atomic.Uint64 // handlers that could have been preempted
	wrong       atomic.Uint64 // handlers in which an expectation failed, by bit
}

func newSeen(env *Env) *seen { return &seen{env: env, rand: 4 + rand.Uint64N(math.MaxInt32-3)} }

func (s *seen) expect(bit int, ok bool) {
	if !ok {
		s.wrong.Or(1 << bit)
	}
}

func (s *seen) context() {
	if p := s.env.Preemptible; p != nil && p() {
		s.preemptible.Add(1)
	}
}

// recursed is a call of that function within the handler, where one can be made.
func (s *seen) recursed() uint64 {
	if s.env.Inside == nil {
		return s.rand / 3
	}
	return s.env.Inside(Recursed, s.rand)
}

func (s *seen) onPre(*kprobes.Kprobe, *kprobes.Regs) int {
	s.context()
	s.pre.Store(s.recursed())
	return 0
}

func (s *seen) onPost(_ *kprobes.Kprobe, _ *kprobes.Regs, flags uint64) {
	s.context()
	s.expect(0, flags == 0)
	s.expect(1, s.recursed() == s.pre.Load())
	s.post.Store(s.pre.Load() + 3)
}

// onPost2 is the post handler of target2's probe.
func (s *seen) onPost2(*kprobes.Kprobe, *kprobes.Regs, uint64) {
	s.context()
	s.expect(2, s.pre.Load() == s.rand/3+1)
	s.post.Store(s.pre.Load() + 3)
}

func (s *seen) onPre2(*kprobes.Kprobe, *kprobes.Regs) int {
	s.context()
	s.pre.Store(s.rand/3 + 1)
	return 0
}

func (s *seen) onEntry(ri *kprobes.KretprobeInstance, _ *kprobes.Regs) int {
	s.context()
	s.expect(3, ri.Rp != nil)
	s.krp.Store(s.rand / 3)
	return 0
}

func (s *seen) onReturn(ri *kprobes.KretprobeInstance, regs *kprobes.Regs) int {
	s.context()
	s.expect(4, regs.ReturnValue() == s.rand/3)
	s.expect(5, s.krp.Load() != 0 && ri.RetAddr != 0)
	s.krp.Store(s.rand)
	return 0
}

func (s *seen) onReturn2(_ *kprobes.KretprobeInstance, regs *kprobes.Regs) int {
	s.context()
	s.expect(6, regs.ReturnValue() == s.rand/3+1)
	s.expect(7, s.krp.Load() != 0)
	s.krp.Store(s.rand)
	return 0
}

// call has the target call a function and checks its result.
func (s *seen) call(t *testing.T, fn string) {
	t.Helper()
	want := s.rand / 3
	if fn == Target2 {
		want++
	}
	if got := s.env.Call(fn, s.rand); got != want {
		t.Errorf("%s(%d) = %d, want %d", fn, s.rand, got, want)
	}
}

// ran checks and resets what the handlers of a kprobe have stored.
func (s *seen) ran(t *testing.T) {
	t.Helper()
	if s.pre.Swap(0) == 0 {
		t.Error("the pre handler did not run")
	}
	if s.post.Swap(0) == 0 {
		t.Error("the post handler did not run")
	}
	s.clean(t)
}

// returned checks and resets what the handlers of a kretprobe have stored.
func (s *seen) returned(t *testing.T) {
	t.Helper()
	if got := s.krp.Swap(0); got != s.rand {
		t.Errorf("after the return handler there is %d, want %d", got, s.rand)
	}
	s.clean(t)
}

func (s *seen) clean(t *testing.T) {
	t.Helper()
	if bits := s.wrong.Swap(0); bits != 0 {
		t.Errorf("expectations in handlers failed: %b", bits)
	}
	if n := s.preemptible.Swap(0); n != 0 {
		t.Errorf("%d handlers were preemptible", n)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testKprobe(t *testing.T, env *Env) {
	s := newSeen(env)
	kp := &kprobes.Kprobe{SymbolName: env.Symbol(Target), PreHandler: s.onPre, PostHandler: s.onPost}
	must(t, env.Core.RegisterKprobe(kp))
	s.call(t, Target)
	env.Core.UnregisterKprobe(kp)
	s.ran(t)
	s.call(t, Target)
	if s.pre.Load()+s.post.Load() != 0 {
		t.Error("a handler ran after its probe was unregistered")
	}
	if st := kp.State(); st.Hits != 1 || kp.NMissed() != 0 || st.Registered {
		t.Errorf("after one call: %+v", st)
	}
}

func testKprobes(t *testing.T, env *Env) {
	s := newSeen(env)
	kp := &kprobes.Kprobe{SymbolName: env.Symbol(Target), PreHandler: s.onPre, PostHandler: s.onPost}
	kp2 := &kprobes.Kprobe{SymbolName: env.Symbol(Target2), PreHandler: s.onPre2, PostHandler: s.onPost2}
	must(t, env.Core.RegisterKprobe(kp))
	env.Core.UnregisterKprobe(kp)
	kp.Addr, kp.Flags = 0, 0 // to be used again
	both := []*kprobes.Kprobe{kp, kp2}
	must(t, env.Core.RegisterKprobes(both))
	s.call(t, Target)
	s.ran(t)
	s.call(t, Target2)
	s.ran(t)
	env.Core.UnregisterKprobes(both)
}

func testKprobeMissed(t *testing.T, env *Env) {
	s := newSeen(env)
	kp := &kprobes.Kprobe{SymbolName: env.Symbol(Recursed), PreHandler: s.onPre, PostHandler: s.onPost}
	must(t, env.Core.RegisterKprobe(kp))
	s.call(t, Recursed)
	if n := kp.NMissed(); n != 2 {
		t.Errorf("nmissed %d, want 2", n)
	}
	env.Core.UnregisterKprobe(kp)
	if n := kp.NMissed(); n != 2 {
		t.Errorf("nmissed %d after unregistration, want 2", n)
	}
	s.ran(t)
}

func testKretprobe(t *testing.T, env *Env) {
	s := newSeen(env)
	rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: env.Symbol(Target)}, EntryHandler: s.onEntry, Handler: s.onReturn}
	must(t, env.Core.RegisterKretprobe(rp))
	s.call(t, Target)
	env.Core.UnregisterKretprobe(rp)
	s.returned(t)
	if st := rp.State(); st.Hits != 1 || rp.NMissed() != 0 || rp.Unwound() != 0 {
		t.Errorf("after one call: %+v", st)
	}
}

func testKretprobes(t *testing.T, env *Env) {
	s := newSeen(env)
	rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: env.Symbol(Target)}, EntryHandler: s.onEntry, Handler: s.onReturn}
	rp2 := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: env.Symbol(Target2)}, EntryHandler: s.onEntry, Handler: s.onReturn2}
	both := []*kprobes.Kretprobe{rp, rp2}
	must(t, env.Core.RegisterKretprobes(both))
	s.call(t, Target)
	s.returned(t)
	s.call(t, Target2)
	s.returned(t)
	env.Core.UnregisterKretprobes(both)
}

// stack is a call stack that a return handler has taken.
type stack struct {
	pcs   [64]uint64
	n     int
	ret   uint64 // the instance's return address
	value uint64 // what the function returned: its own return address
	runs  atomic.Uint64
}

func (k *stack) take(ri *kprobes.KretprobeInstance, regs *kprobes.Regs) int {
	k.n = len(regs.Stack(k.pcs[:]))
	k.ret, k.value = ri.RetAddr, regs.ReturnValue()
	k.runs.Add(1)
	return 0
}

func (k *stack) check(t *testing.T, name string) {
	t.Helper()
	if k.runs.Load() != 1 {
		t.Fatalf("%s: the return handler ran %d times, want once", name, k.runs.Load())
	}
	if k.n == 0 || k.pcs[0] != k.value || k.ret != k.value {
		t.Errorf("%s: the stack is %#x, RetAddr %#x; the real return address is %#x", name, k.pcs[:k.n], k.ret, k.value)
	}
}

func testStack(t *testing.T, env *Env) {
	var k stack
	rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: env.Symbol(Outer)}, Handler: k.take}
	must(t, env.Core.RegisterKretprobe(rp))
	value := env.Call(Outer, 0)
	env.Core.UnregisterKretprobe(rp)
	k.check(t, Outer)
	if k.value != value {
		t.Errorf("the handler saw %#x returned, the caller %#x", k.value, value)
	}
}

func testNested(t *testing.T, env *Env) {
	var in, out stack
	rps := []*kprobes.Kretprobe{
		{Kp: kprobes.Kprobe{SymbolName: env.Symbol(Outer)}, Handler: out.take},
		{Kp: kprobes.Kprobe{SymbolName: env.Symbol(Inner)}, Handler: in.take},
	}
	must(t, env.Core.RegisterKretprobes(rps))
	value := env.Call(Outer, 0)
	env.Core.UnregisterKretprobes(rps)
	in.check(t, Inner)
	out.check(t, Outer)
	if in.n < 2 || in.pcs[1] != value || out.value != value {
		t.Errorf("the inner stack is %#x, want the outer function's real return address %#x behind its own", in.pcs[:in.n], value)
	}
}

func testJprobe(t *testing.T, env *Env) {
	s := newSeen(env)
	jp := &kprobes.Jprobe{Kp: kprobes.Kprobe{SymbolName: env.Symbol(Target)}, Entry: func(v uint64) uint64 {
		s.context()
		s.expect(8, v == s.rand)
		s.jp.Store(v)
		v = 0 // the probed function keeps its own
		return v
	}}
	must(t, env.Core.RegisterJprobe(jp))
	s.call(t, Target)
	env.Core.UnregisterJprobe(jp)
	if s.jp.Load() == 0 {
		t.Error("the jprobe's handler did not run")
	}
	s.clean(t)
}

func testJprobes(t *testing.T, env *Env) {
	s := newSeen(env)
	entry := func(v uint64) uint64 {
		s.expect(8, v == s.rand)
		s.jp.Store(v)
		return 0
	}
	js := []*kprobes.Jprobe{
		{Kp: kprobes.Kprobe{SymbolName: env.Symbol(Target)}, Entry: entry},
		{Kp: kprobes.Kprobe{SymbolName: env.Symbol(Target2)}, Entry: entry},
	}
	must(t, env.Core.RegisterJprobes(js))
	for _, fn := range []string{Target, Target2} {
		s.jp.Store(0)
		s.call(t, fn)
		if s.jp.Load() == 0 {
			t.Errorf("%s: the jprobe's handler did not run", fn)
		}
	}
	env.Core.UnregisterJprobes(js)
	s.clean(t)
}
