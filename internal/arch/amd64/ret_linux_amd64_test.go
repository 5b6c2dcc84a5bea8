package amd64

import (
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
)

func TestRet(t *testing.T) {
	const unknown = -1
	morestack := func(target uint64) bool { return target == 0x5000 }
	for _, c := range []struct {
		name string
		fn   arch.Func
		code string
		want map[uint64]int // by offset
	}{
		{"pushes", arch.Func{}, "55 4889e5 4883ec10 90 c9 c3", map[uint64]int{0: 0, 1: 8, 4: 8, 8: 24, 9: 24, 10: 0}},
		// push %rbp; mov %rsp,%rbp; and $-16,%rsp; nop; leave; ret
		{"aligned", arch.Func{}, "55 4889e5 4883e4f0 90 c9 c3", map[uint64]int{4: 8, 8: unknown, 9: unknown, 10: 0}},
		// and $-16,%rsp; ret
		{"ret_behind_unknown", arch.Func{}, "4883e4f0 c3", map[uint64]int{4: 0}},
		// push %rax; ret
		{"ret_that_jumps", arch.Func{}, "50 c3", map[uint64]int{1: 8}},
		// pop %rax; jmp *%rax
		{"popped", arch.Func{}, "58 ffe0", map[uint64]int{1: unknown}},
		// test %edi,%edi; je 6; push %rax; nop (6); ret
		{"two_ways", arch.Func{}, "85ff 7402 50 90 90 c3", map[uint64]int{4: 0, 5: 8, 6: unknown, 7: 0}},
		// push %rax; push %rcx; pop; pop; add %rdi,%rax; jmp *%rax
		{"unresolved", arch.Func{}, "50 51 58 59 4801f8 ffe0", map[uint64]int{0: 0, 1: unknown, 4: unknown}},
		{"landing_pad", arch.Func{Entries: []uint64{0x1002}}, "50 90 90 58 c3", map[uint64]int{1: 8, 2: unknown, 3: unknown}},
		// cmp 16(%r14),%rsp; jbe 1009; push %rax; pop %rax; ret; call morestack; jmp 1000
		{"go", arch.Func{Go: true, Morestack: morestack}, "493b6610 7603 50 58 c3 e8f23f0000 ebf0", map[uint64]int{0: 0, 6: 0, 7: 8, 8: 0, 9: 0}},
		{"no_instruction", arch.Func{}, "b801000000 c3", map[uint64]int{1: unknown, 99: unknown}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.fn.Addr, c.fn.Code = 0x1000, hexBytes(t, c.code)
			fn, err := X86.Analyse(&c.fn)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				for off, want := range c.want {
					got, ok := fn.Ret(c.fn.Addr + off)
					if !ok {
						got = unknown
					}
					if got != want {
						t.Errorf("at %d: %d, want %d", off, got, want)
					}
				}
				fn.Release()
			}
		})
	}
}

// retCheck compares Ret with where calls put their return addresses, as a program runs.
type retCheck struct {
	t     *testing.T
	im    *image
	p     *stepped
	fns   map[uint64]arch.Function
	calls []retCall
	known int // instructions at which the place was known
	all   int
}

// retCall is a call in progress: of the function at fn, its return address at sp.
type retCall struct{ fn, sp uint64 }

func (c *retCheck) at(pc uint64) {
	f, ok := c.im.at(pc)
	fn := c.fns[f.addr]
	if !ok || fn == nil { // Go's runtime may run on another stack, when it lets other goroutines run
		return
	}
	sp := c.p.regs.Rsp
	for len(c.calls) > 0 && c.calls[len(c.calls)-1].sp < sp {
		c.calls = c.calls[:len(c.calls)-1]
	}
	if pc == f.addr {
		if n := len(c.calls); n > 0 && c.calls[n-1].sp == sp { // a tail call
			c.calls = c.calls[:n-1]
		}
		c.calls = append(c.calls, retCall{f.addr, sp})
	}
	if len(c.calls) == 0 || c.calls[len(c.calls)-1].fn != f.addr {
		return
	}
	c.all++
	bytes, known := fn.Ret(pc)
	if !known {
		return
	}
	c.known++
	if want := c.calls[len(c.calls)-1].sp; sp+uint64(bytes) != want {
		c.t.Fatalf("%s+%#x: the return address is %d bytes above the stack pointer, not %d", f.name, pc-f.addr, want-sp, bytes)
	}
}

// TestRetByStepping runs programs by single steps and holds what is known of the place of
// the return address to where it is.
func TestRetByStepping(t *testing.T) {
	for _, c := range []struct {
		name, entry string
		isGo, long  bool
		path        func(t *testing.T) string
	}{
		{"gcc_O2", "run", false, false, func(t *testing.T) string { return buildFlow(t, "compute", "CC=gcc", "-O2") }},
		{"gcc_O0", "run", false, true, func(t *testing.T) string { return buildFlow(t, "switches", "CC=gcc", "-O0") }},
		{"go", "main.run", true, false, func(t *testing.T) string { return buildGo(t, "-buildmode=exe") }},
	} {
		if c.long && !longRun {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			im := openImage(t, c.path(t))
			check := &retCheck{t: t, im: im, fns: map[uint64]arch.Function{}}
			for _, f := range im.funcs {
				if c.isGo && !strings.HasPrefix(f.name, "main.") {
					continue
				}
				in := im.fn(f, c.isGo)
				fn, err := X86.Analyse(&arch.Func{Name: f.name, Addr: f.addr, Code: in.Code, Go: c.isGo, Mem: in.Mem, Inside: in.Inside})
				if err != nil {
					t.Fatal(err)
				}
				check.fns[f.addr] = fn
			}
			check.p = startStepped(t, im.path)
			if !check.p.steps(im.find(t, c.entry).addr, check.at) {
				t.Fatal("the program died")
			}
			t.Logf("known at %d of %d instructions", check.known, check.all)
			if check.all < 1000 || check.known < check.all*8/10 {
				t.Errorf("known at %d of %d instructions", check.known, check.all)
			}
		})
	}
}
