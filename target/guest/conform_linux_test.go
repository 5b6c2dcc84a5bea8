package guest_test

import (
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/conformance"
)

// TestConformance puts the kernel of a guest to the cases of the kernel's own unit tests. What a
// test would add to the kernel as functions of its own are functions here that are there: those
// that a system call of a program of ours runs once, and that give back a number of its choice.
func TestConformance(t *testing.T) {
	p := handlers(t, never, false)
	call := func(what string, v uint64) uint64 { return p.g.Hit("value", int(v), -1, what).Bytes }
	conformance.Run(t, &conformance.Env{
		Core: p.core,
		Symbol: func(fn string) string {
			return map[string]string{conformance.Target: "ksys_lseek", conformance.Target2: "write_null", conformance.Sum6: "write_null"}[fn]
		},
		Call: func(fn string, v uint64) uint64 {
			switch fn {
			case conformance.Target:
				return call("lseek", v/3)
			case conformance.Target2:
				return call("write", v/3+1)
			}
			return call("write", 1+2+3+4+5+6)
		},
		Without: map[string]string{
			"test_kprobe_missed":                  "handlers run in the tracer: what they call is not the guest's kernel",
			"test_stacktrace_on_kretprobe":        "no function of a kernel returns its own return address, and none of ours can be put there",
			"test_stacktrace_on_nested_kretprobe": "no function of a kernel returns its own return address, and none of ours can be put there",
			"test_jprobe":                         "the arguments' pointers belong to another address space",
			"test_jprobes":                        "the arguments' pointers belong to another address space",
		},
	})
}

// TestReturnHandlerStack is what the kernel's tests of stacks look at, for nested functions
// whose callers are known.
func TestReturnHandlerStack(t *testing.T) {
	p := handlers(t, never, false)
	var rps []*kprobes.Kretprobe
	type run struct {
		ret uint64
		pcs []uint64
	}
	want := map[string]string{"vfs_read": "ksys_read", "ksys_read": "do_syscall_64"}
	seen := map[string]chan run{}
	for fn := range want {
		c := make(chan run, 5)
		seen[fn] = c
		rps = append(rps, &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: fn}, Handler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
			select {
			case c <- run{ri.RetAddr, r.Stack(make([]uint64, 4))}:
			default:
			}
			return 0
		}})
	}
	if err := p.core.RegisterKretprobes(rps); err != nil {
		t.Fatal(err)
	}
	p.g.Hit("read", 10, 0)
	p.core.UnregisterKretprobes(rps)
	for fn, caller := range want {
		for range cap(seen[fn]) {
			s := <-seen[fn]
			by, ok := p.core.Symbol(s.ret)
			if !ok || by.Name != caller || len(s.pcs) == 0 || s.pcs[0] != s.ret {
				t.Errorf("%s: called by %+v, want %s; the stack is %#x", fn, by, caller, s.pcs)
			}
		}
	}
}
