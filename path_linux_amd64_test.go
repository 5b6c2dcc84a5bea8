package kprobes_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"kprobes.dev/kprobes"
)

// passed is a function whose first instruction a handler passes.
type passed struct {
	c    *kprobes.Core
	fn   string
	call func(t *testing.T) uint64 // calls it once; what it returned, or how many results were wrong
}

// passing copies what an instruction leaves in the registers that a function may use. SP and BP are
// of each call, R14 is Go's, and a pointer in the block is the target's.
func passing(to, from *kprobes.Regs) {
	to.AX, to.BX, to.CX, to.DX, to.SI, to.DI = from.AX, from.BX, from.CX, from.DX, from.SI, from.DI
	to.R8, to.R9, to.R10, to.R11, to.R12, to.R13, to.R15 = from.R8, from.R9, from.R10, from.R11, from.R12, from.R13, from.R15
	to.Flags, to.IP = from.Flags, from.IP
}

// check has a post handler see what the first instruction does, by a jump, and behind that
// instruction; then has a pre handler do the same in its place: the function goes on behind it, in
// the bytes that the jump has taken, with the work of the probe that stands there.
func (p *passed) check(t *testing.T) {
	const calls = 50
	var behind kprobes.Regs
	var saw atomic.Bool
	look := &kprobes.Kprobe{SymbolName: p.fn, PostHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs, _ uint64) {
		passing(&behind, r)
		saw.Store(true)
	}}
	want := p.call(t)
	must(t, p.c.RegisterKprobe(look))
	if got := p.call(t); got != want || !saw.Load() {
		t.Fatalf("under a post handler: %d, want %d; it has run: %t", got, want, saw.Load())
	}
	n := behind.IP - look.Addr
	if s := look.State(); s.Tactic != "jump" || s.Optimized || n < 2 || n > 4 {
		t.Fatalf("the post handler: %+v, %d bytes behind the entry, want 2 to 4", s, n)
	}
	p.c.UnregisterKprobe(look)

	var runs, posts, next atomic.Int64
	pass := &kprobes.Kprobe{
		SymbolName: p.fn,
		PreHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs) int {
			runs.Add(1)
			passing(r, &behind)
			return 1
		},
		PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) { posts.Add(1) },
	}
	second := &kprobes.Kprobe{SymbolName: p.fn, Offset: n, PreHandler: counting(&next)}
	must(t, p.c.RegisterKprobes([]*kprobes.Kprobe{pass, second}))
	if b := bytesAt(t, p.c, pass.Addr); b[0] != byJump {
		t.Errorf("% x stands at the entry, want a jump", b)
	}
	for range calls {
		if got := p.call(t); got != want {
			t.Fatalf("the first instruction is passed: %d, want %d", got, want)
		}
	}
	if runs.Load() != calls || next.Load() != calls || posts.Load() != 0 {
		t.Errorf("%d calls: %d runs, %d of the next instruction's, %d of the post handler; want %d, %d, 0", calls, runs.Load(), next.Load(), posts.Load(), calls, calls)
	}
	if s := second.State(); !s.Optimized || !strings.Contains(listing(t, p.c), "jump: has a post handler\n") {
		t.Errorf("the second probe: %+v\n%s", s, listing(t, p.c))
	}
	p.c.UnregisterKprobes([]*kprobes.Kprobe{pass, second})
}

// astray has a handler send a thread into the middle of an instruction, where the jump stands. It goes
// on as if the handler had not asked for it, and the probe is switched off with the reason.
func (p *passed) astray(t *testing.T) {
	want := p.call(t)
	k := &kprobes.Kprobe{
		SymbolName:  p.fn,
		PreHandler:  func(_ *kprobes.Kprobe, r *kprobes.Regs) int { r.IP++; return 1 },
		PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) {},
	}
	must(t, p.c.RegisterKprobe(k))
	for range 3 {
		if got := p.call(t); got != want {
			t.Errorf("a handler has gone astray: %d, want %d", got, want)
		}
	}
	eventually(t, "the probe is disabled", func() bool { return k.State().Disabled })
	if err := k.Fault(); err == nil || !strings.Contains(err.Error(), "inside an instruction") {
		t.Errorf("its fault: %v", err)
	}
	p.c.UnregisterKprobe(k)
}

// intoAnother has a handler send its thread into the bytes of the jump of another function's probe.
func intoAnother(t *testing.T, c *kprobes.Core, fn, other string, call func(t *testing.T) uint64) {
	want := call(t)
	there := &kprobes.Kprobe{SymbolName: other}
	must(t, c.RegisterKprobe(there))
	if b := bytesAt(t, c, there.Addr); b[0] != byJump {
		t.Fatalf("% x stands at %s, want a jump", b, other)
	}
	to := there.Addr + 3
	k := &kprobes.Kprobe{
		SymbolName:  fn,
		PreHandler:  func(_ *kprobes.Kprobe, r *kprobes.Regs) int { r.IP = to; return 1 },
		PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) {},
	}
	must(t, c.RegisterKprobe(k))
	for range 3 {
		if got := call(t); got != want {
			t.Errorf("a handler has sent a thread into a jump: %d, want %d", got, want)
		}
	}
	eventually(t, "the probe is disabled", func() bool { return k.State().Disabled })
	if err := k.Fault(); err == nil || !strings.Contains(err.Error(), "the new instruction pointer") {
		t.Errorf("its fault: %v", err)
	}
	c.UnregisterKprobes([]*kprobes.Kprobe{k, there})
}

// TestGoIntoAnother: in a process.
func TestGoIntoAnother(t *testing.T) {
	p := standing(t)
	intoAnother(t, p.c, "stand", "second", p.call)
}

// standing is a passed function of the program stand: the number of wrong results.
func standing(t *testing.T) *passed {
	prog, c := attach(t, "stand")
	return &passed{c, "stand", func(*testing.T) uint64 { return prog.Counts("go 1")["bad"] }}
}

// TestPassInstruction: in a process.
func TestPassInstruction(t *testing.T) { standing(t).check(t) }

// TestGoAstray: in a process.
func TestGoAstray(t *testing.T) { standing(t).astray(t) }

// TestPassWhileProbesComeAndGo: threads are sent into the region of their probe's jump while the
// region changes, and while detours that threads go on in are taken out.
func TestPassWhileProbesComeAndGo(t *testing.T) {
	prog, c := attach(t, "stand")
	var runs atomic.Int64
	k := &kprobes.Kprobe{
		SymbolName: "stand",
		PreHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs) int { // xor %eax, %eax
			runs.Add(1)
			r.AX, r.IP = 0, r.IP+2
			return 1
		},
		PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) {
			t.Error("the instruction has not run, its post handler has")
		},
	}
	must(t, c.RegisterKprobe(k))
	const least = 10
	var changes atomic.Int64
	done := make(chan map[string]uint64)
	go func() {
		n := prog.Counts("go 6000")
		for changes.Load() < least && n["bad"] == 0 {
			n = prog.Counts("go 1000")
		}
		done <- n
	}()
	for {
		select {
		case n := <-done:
			if n["bad"] != 0 || n["stand"] < 6000 || runs.Load() != int64(n["stand"]) || k.State().Hits != n["stand"] {
				t.Errorf("%v; %d runs, %+v; %d changes", n, runs.Load(), k.State(), changes.Load())
			}
			return
		default:
		}
		for _, off := range []uint64{2, 4, 8} {
			other := &kprobes.Kprobe{SymbolName: "stand", Offset: off}
			must(t, c.RegisterKprobe(other))
			c.UnregisterKprobe(other)
			changes.Add(1)
		}
	}
}
