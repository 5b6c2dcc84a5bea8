package kprobes_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// TestDetoursStay: the detours of probes that have been taken out are left alone as long as a
// thread that was stopped at random stands in one of them, whatever is registered meanwhile, and
// are free once none does.
func TestDetoursStay(t *testing.T) {
	prog, c := attach(t, "work", "4", "1000000000")
	tg, ok := c.Target().(*process.Target)
	if !ok {
		t.Fatal("not a process")
	}
	h := &home{core: c, name: func(fn string) string { return fn }}
	fns := []string{"f_lea", "f_endbr", "f_push", "f_six", "f_pair", "f_str"}
	k := h.at() // for what stays once there was a probe of its kind
	k.SymbolName = "f_ptr"
	must(t, c.RegisterKprobe(&k))
	eventually(t, "no thread blocks SIGTRAP, as one does that starts another", func() bool { return c.SetOptimization(false) == nil })
	must(t, c.SetOptimization(true))
	c.UnregisterKprobe(&k)
	found, used := 0, uint64(0)
	for try := 0; found < 3; try++ {
		if try == 400 {
			t.Fatalf("only %d times was a thread in a detour", found)
		}
		var defs []string
		for _, fn := range fns {
			defs = append(defs, "p "+fn+" $comm $stack1 $stack2", "r "+fn+" $retval $comm")
		}
		evs := h.add(t, nil, defs...)
		eventually(t, "the threads run", func() bool {
			c.Poll(func(*hit.Hit) {})
			return c.Counts(evs[0]).Hits > 0
		})
		time.Sleep(time.Duration(rand.N(2000)) * time.Microsecond)
		prog.Signal(syscall.SIGSTOP)
		eventually(t, "all threads are stopped", prog.Stopped)
		err := c.Remove(evs)
		if left := tg.Remaining(); err == nil && len(left) > 0 {
			found++
			heldBack(t, h, left, fns)
		}
		prog.Signal(syscall.SIGCONT)
		if err != nil && !errors.Is(err, target.ErrBlocked) {
			t.Fatal(err)
		}
		eventually(t, "the detours are free again", func() bool {
			k := h.at()
			k.SymbolName, k.Flags = "f_ret", kprobes.FlagDisabled
			err := c.Remove(evs)
			err = errors.Join(err, c.RegisterKprobe(&k), c.DisableKprobe(&k), c.EnableKprobe(&k))
			c.UnregisterKprobe(&k)
			return err == nil && len(tg.Remaining()) == 0 && (try == 0 || tg.CodeUsed() == used)
		})
		used = tg.CodeUsed()
	}
	prog.Signal(syscall.SIGUSR1)
	if l := prog.Line(); !strings.Contains(l, `"bad":0`) {
		t.Errorf("the program has wrong results: %s", l)
	}
}

// TestAskedAtAnyTime: what a target tells of itself may be asked for while probes and objects come and go.
// The race detector judges.
func TestAskedAtAnyTime(t *testing.T) {
	prog, c := attach(t, "dl")
	tg, ok := c.Target().(*process.Target)
	if !ok {
		t.Fatal("not a process")
	}
	lib := testprog.Build(t, "libdlone")
	end, asked := make(chan bool), make(chan bool)
	go func() {
		defer close(asked)
		for {
			select {
			case <-end:
				return
			default:
				_ = slices.Contains(tg.Remaining(), nil)
				_, _, _ = tg.CodeUsed(), tg.SharedText(), tg.Space().Modules()
			}
		}
	}()
	for range 5 {
		evs := addEvents(t, c, &kprobes.AddOptions{Late: true}, "p:a "+lib+":lib_work", "p:b libc.so.6:dlopen", "r:c libc.so.6:getpid")
		prog.Counts("open " + lib)
		must(t, c.Sync())
		prog.Counts("call 5")
		eventually(t, "the hits are read", func() bool {
			c.Poll(func(*hit.Hit) {})
			return c.Counts(evs[0]).Hits == 5
		})
		prog.Counts("close")
		must(t, c.Sync())
		must(t, c.Remove(evs))
	}
	close(end)
	<-asked
}

// heldBack registers others while threads stand in detours that are not in use any more, and
// looks whether their code is what it was.
func heldBack(t *testing.T, h *home, left []*target.Site, fns []string) {
	t.Helper()
	for _, fn := range fns {
		evs := h.add(t, nil, "p "+fn+" $stack3", "p "+fn+" $comm")
		for _, s := range left {
			b := make([]byte, len(s.Detour.Code))
			must(t, h.core.Target().Read(s.Detour.Addr, b))
			if !bytes.Equal(b, s.Detour.Code) {
				t.Errorf("room 0x%x, with a thread in it, was used again", s.Detour.Addr)
			}
		}
		if err := h.core.Remove(evs); err != nil && !errors.Is(err, target.ErrBlocked) {
			t.Error(err)
		}
	}
}

// TestHandlerAsks: within a handler nothing can be registered, changed or taken out, and a
// function's name is told while another waits for the handler to end.
func TestHandlerAsks(t *testing.T) {
	prog, c := attach(t, "conform")
	in, waits := make(chan bool), make(chan bool)
	var errs []error
	var name string
	var k *kprobes.Kprobe
	k = &kprobes.Kprobe{SymbolName: "target", PreHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs) int {
		in <- true
		<-waits
		errs = append(errs, c.RegisterKprobe(&kprobes.Kprobe{SymbolName: "target2"}), c.DisableKprobe(k), c.SetEnabled(false))
		c.UnregisterKprobe(k)
		s, _ := c.Symbol(k.Addr)
		name = s.Name
		return 0
	}}
	must(t, c.RegisterKprobe(k))
	prog.Send("target 3")
	<-in
	gone := make(chan bool)
	go func() {
		c.UnregisterKprobe(k)
		close(gone)
	}()
	time.Sleep(20 * time.Millisecond) // for the other to wait; if it does not yet, nothing is shown
	close(waits)
	<-gone
	prog.Line()
	for _, err := range errs {
		if !errors.Is(err, unix.EDEADLK) {
			t.Errorf("%v, want EDEADLK", err)
		}
	}
	if len(errs) != 3 || name != "target" || k.State().Registered {
		t.Errorf("%d answers, the function's name %q, %+v", len(errs), name, k.State())
	}
}
