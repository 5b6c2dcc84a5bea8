package guest_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/engine"
	gk "kprobes.dev/kprobes/internal/guest/kernel"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest"
)

// patience bounds what tests wait for. Nothing measures it.
const patience = 5 * time.Minute

// eventually waits until something holds.
func (p *probed) eventually(what string, holds func() bool) {
	p.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			p.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// TestCallsLeft kills programs inside of get_signal, which does not return then: the calls are counted as
// left, whether their instances are wanted or not, and those of calls that wait stay.
func TestCallsLeft(t *testing.T) {
	for _, low := range []bool{false, true} {
		t.Run(fmt.Sprint("low ", low), func(t *testing.T) { callsLeft(attach(t, testguest.Shared(t), &guest.Options{Low: low})) })
	}
}

func callsLeft(p *probed) {
	// few has room for the calls that may rest of earlier rounds, for those of a round, and for some that
	// return meanwhile. The calls of two rounds take half of it: its instances are wanted then.
	const maxActive, rest, each, rounds, waiting = 20, 7, 5, 8, 3
	left := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: "get_signal"}}
	few := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: "get_signal"}, MaxActive: maxActive}
	waits := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: "fifo_open"}}
	if err := p.core.RegisterKretprobes([]*kprobes.Kretprobe{left, few, waits}); err != nil {
		p.Fatal(err)
	}
	entries := p.add(&kprobes.AddOptions{Count: true}, "p:entries get_signal", "p:opens fifo_open")
	p.g.Shell(fmt.Sprintf("rm -f /tmp/f; mkfifo /tmp/f; for i in $(seq %d); do cat /tmp/f >/dev/null 2>&1 & done", waiting))
	p.eventually("programs wait for a writer", func() bool { return p.core.Counts(entries[1]).Hits == waiting })
	for round := range uint64(rounds) {
		p.g.Shell(fmt.Sprintf("for i in $(seq %d); do sh -c 'kill -9 $$'; done; true", each))
		p.eventually("most instances of calls that were left are taken back", func() bool {
			return few.State().Unwound+rest >= each*(round+1)
		})
	}
	for _, rp := range []*kprobes.Kretprobe{left, few} {
		p.over(rp, entries[0], each*rounds)
	}
	if s := waits.State(); s.Active != waiting || s.Hits+s.Unwound != 0 {
		p.Errorf("%d calls wait: %+v", waiting, s)
	}
	p.g.Shell(": >/tmp/f")
	p.over(waits, entries[1], 0)
	p.g.Shell("cat /tmp/f >/dev/null 2>&1 & true")
	p.eventually("a program waits", func() bool { return waits.State().Active == 1 })
	p.core.UnregisterKretprobe(waits)
	p.g.Shell(": >/tmp/f")
	if s := waits.State(); s.Active != 1 || s.Unwound != 0 {
		p.Errorf("unregistered while a call waits: %+v", s)
	}
}

// over waits until all calls are over, and checks how they went: so many were left, and all others have
// returned. That State.Active is 0 is not enough: it may be older than the calls, on a machine so busy that
// counting the instances takes long.
func (p *probed) over(rp *kprobes.Kretprobe, entries *kprobes.Event, left uint64) {
	p.Helper()
	var s kprobes.State
	var n uint64
	defer func() {
		if s.Unwound != left || s.Misses.Total() != 0 || s.Hits+s.Unwound != n {
			p.Errorf("MaxActive %d: %+v, of %d calls, %d of which did not return", rp.MaxActive, s, n, left)
		}
	}()
	p.eventually("all calls are over", func() bool {
		s, n = rp.State(), p.core.Counts(entries).Hits
		return s.Active == 0 && s.Hits+s.Unwound+s.Misses.Total() == n
	})
}

// TestCallsOver has instances of calls whose end is to be proven by each of the proofs, and of such as
// nothing is proven of.
func TestCallsOver(t *testing.T) {
	p := attach(t, testguest.Shared(t), nil)
	ev := p.add(nil, "r:ev __x64_sys_reboot")[0]
	waits := p.sleeper("kthreadd")
	word := func(at uint64) uint64 {
		var b [8]byte
		if err := p.t.Read(at, b[:]); err != nil {
			t.Fatalf("0x%x: %v", at, err)
		}
		return binary.LittleEndian.Uint64(b[:])
	}
	var unused []interval.Range
	p.eventually("a CPU keeps the stack of a thread that has ended", func() bool {
		p.g.Shell("true")
		var err error
		if unused, err = p.t.Kernel().FreeStacks(); err != nil {
			t.Fatal(err)
		}
		return len(unused) > 0
	})
	banner, _ := p.t.Kernel().Addr("linux_banner")
	type call struct {
		what    string
		sp, ret uint64
		over    bool
	}
	calls := []call{
		{"of a thread that waits, on its stack", waits.SP + 64, word(waits.SP + 64), false},
		{"where no stack is known", banner, word(banner), false},
		{"whose return address was written over", waits.SP + 64, word(waits.SP+64) + 1, true},
		{"below the stack pointer", waits.SP - 64, word(waits.SP - 64), true},
		{"where no memory is", waits.Stack.Start - 8, 0, true},
		{"on a stack of nobody", unused[0].End - 256, word(unused[0].End - 256), true},
	}
	n := uint64(0)
	taken := make([]func() bool, len(calls))
	for i, c := range calls {
		var free func()
		taken[i], free = p.t.Plant(engine.OfEvent(ev).ID, engine.OfEvent(ev).ID, c.sp, c.ret)
		if c.over {
			n++
		} else {
			defer free()
		}
	}
	p.eventually("calls that are over are taken back", func() bool { return p.core.Counts(ev).Unwound == n })
	for i, c := range calls {
		if taken[i]() == c.over {
			t.Errorf("a call %s: taken %v", c.what, !c.over)
		}
	}
}

// sleeper is a thread that waits.
func (p *probed) sleeper(comm string) (found gk.Task) {
	p.Helper()
	if err := p.t.Kernel().Tasks(func(t gk.Task) bool {
		if t.Comm == comm {
			found = t
		}
		return found.Addr == 0
	}); err != nil || found.CPU >= 0 || !found.Stack.Contains(found.SP) {
		p.Fatalf("%s: %+v, %v", comm, found, err)
	}
	return found
}

// TestCallsClaimed has a thread that waits in generated code, and an instance that it may just have
// claimed: it stays until the thread has left.
func TestCallsClaimed(t *testing.T) {
	p := handlers(t, never, false)
	evs := p.add(nil, "r:ev __x64_sys_reboot", "r:other __x64_sys_kexec_load")
	at, leave := make(chan uint64, 1), make(chan bool)
	k := p.kprobe(&kprobes.Kprobe{SymbolName: getppid, PreHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs) int {
		select {
		case at <- r.SP:
			<-leave
		default:
		}
		return 0
	}})
	done := make(chan bool)
	go func() {
		defer close(done)
		p.g.Hit("getppid", 1, 1)
	}()
	sp := <-at
	first, second := engine.OfEvent(evs[0]).ID, engine.OfEvent(evs[1]).ID
	stale, _ := p.t.Plant(first, second, sp-256, 1)
	over, _ := p.t.Plant(first, first, sp&^(1<<20-1)-8, 1)
	p.eventually("an instance of a call that is over is taken back", func() bool { return !over() })
	if !stale() {
		t.Error("an instance was taken back that a thread may have claimed")
	}
	close(leave)
	<-done
	p.eventually("the other instance is taken back when the thread has left", func() bool { return !stale() })
	if n := p.core.Counts(evs[0]); n.Unwound != 2 {
		t.Errorf("%+v", n)
	}
	p.core.UnregisterKprobe(k)
}
