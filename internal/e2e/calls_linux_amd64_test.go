package e2e

import (
	"fmt"
	"maps"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// TestSystemCallsOfHits: a hit makes no system call, but for those that are documented: the
// question for the signal mask before arguments are read from memory, one, or two, signals at a
// breakpoint, and the wait for a handler in another process.
func TestSystemCallsOfHits(t *testing.T) {
	const n = 200
	p := program(t, "redzone")
	core := openWith(t, p, &process.TargetOptions{HandlerWait: handlerWait})
	work := func() map[uint64]int {
		c, err := testprog.SystemCalls(p.PID, func() { p.Send(fmt.Sprint("go ", n)) })
		if err != nil {
			t.Fatal(err)
		}
		p.Line()
		return c
	}
	work() // the first has the C library make its buffers
	plain := work()
	same := func(what string, more map[uint64]int) {
		t.Helper()
		got := work()
		want := maps.Clone(plain)
		for nr, k := range more {
			want[nr] += k
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: system calls %v, want %v; without probes %v", what, got, want, plain)
		}
	}
	same("no probe", nil)
	for _, c := range []struct {
		tactic arch.Tactic
		count  bool
		def    string
		more   map[uint64]int
	}{
		{"", true, "p:a redzone", nil},
		{"", false, "p:b redzone", nil},
		{"", false, "p:c redzone i=%di fl=%flags ip=%ip comm=$comm", map[uint64]int{unix.SYS_PRCTL: n}},
		{"", false, "p:d redzone ret=+0(+0(%sp)):x64", map[uint64]int{unix.SYS_RT_SIGPROCMASK: n}},
		{"", false, "p:e redzone a=+0(+0(%sp)):x8[8] s=+0(%sp):string d=+0(+0(%sp)):string", map[uint64]int{unix.SYS_RT_SIGPROCMASK: n}},
		{"", false, "p:j redzone s=+0(%ip):string", map[uint64]int{unix.SYS_RT_SIGPROCMASK: n}},
		{"", false, "p:k redzone v=+0(%ip):u32", map[uint64]int{unix.SYS_RT_SIGPROCMASK: n}},
		{"", true, "r:f redzone", nil},
		{"", false, "r:g redzone ret=$retval i=$arg1", nil},
		{arch.TacticBoost, false, "p:h redzone i=%di", map[uint64]int{unix.SYS_RT_SIGRETURN: n}},
		{arch.TacticStep, false, "p:i redzone i=%di", map[uint64]int{unix.SYS_RT_SIGRETURN: 2 * n}},
	} {
		evs, err := core.Add(parsed(t, c.def), &kprobes.AddOptions{Tactic: c.tactic, Count: c.count})
		if err != nil {
			t.Fatal(err)
		}
		same(c.def, c.more)
		if err := core.Remove(evs); err != nil {
			t.Fatal(err)
		}
	}
	handlerCalls(t, core, work, plain, n)
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
	same("after all", nil)
}

// handlerCalls counts those of a handler's gate: it asks for its process, its thread and the
// time once, wakes the tracer if that sleeps, and waits at least once if it is not answered
// before.
func handlerCalls(t *testing.T, core *kprobes.Core, work func() map[uint64]int, plain map[uint64]int, n int) {
	t.Helper()
	k := &kprobes.Kprobe{SymbolName: "redzone", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }}
	if err := core.RegisterKprobe(k); err != nil {
		t.Fatal(err)
	}
	got := work()
	core.UnregisterKprobe(k)
	if s := k.State(); s.Hits != uint64(n) || s.Misses.Total() != 0 {
		t.Errorf("%+v", s)
	}
	waits := got[unix.SYS_FUTEX]
	delete(got, unix.SYS_FUTEX)
	want := maps.Clone(plain)
	want[unix.SYS_GETPID] += n
	want[unix.SYS_GETTID] += n
	want[unix.SYS_CLOCK_GETTIME] += n
	if !maps.Equal(got, want) || waits == 0 || waits > 4*n {
		t.Errorf("a handler: system calls %v, want %v; %d of futex for %d hits", got, want, waits, n)
	}
}
