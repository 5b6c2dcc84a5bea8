package guest_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// eventually waits for something.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s", what)
		}
	}
}

// TestHandlerTooLate has a handler that takes longer than the guest waits: the hit is missed,
// and those after it are not once the handler has returned.
func TestHandlerTooLate(t *testing.T) {
	p := handlers(t, 20*time.Millisecond, false)
	hold, late := make(chan struct{}), make(chan struct{})
	var runs atomic.Uint64
	rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: getppid}, Handler: func(_ *kprobes.KretprobeInstance, r *kprobes.Regs) int {
		if runs.Add(1) == 1 {
			<-hold
			close(late)
		}
		r.SetReturnValue(1000)
		return 0
	}}
	if err := p.core.RegisterKretprobe(rp); err != nil {
		t.Fatal(err)
	}
	eventually(t, "handler that begins", func() bool { // one may begin too late already
		if c := p.g.Hit("getppid", 1, 0); c.OK != 1 || c.Bytes == 1000 {
			t.Errorf("while the handler hangs: %+v", c)
		}
		return runs.Load() > 0
	})
	if m := rp.State().Misses; m.System == 0 {
		t.Errorf("misses %+v", m)
	}
	close(hold)
	<-late
	eventually(t, "hit that is handled", func() bool { return p.g.Hit("getppid", 10, 0).Bytes == 10000 })
	p.core.UnregisterKretprobe(rp)
}

// TestHandlerSlow lets the guest wait for a handler, which interrupts on the same CPU interrupt:
// their hits are missed, and nothing else is.
func TestHandlerSlow(t *testing.T) {
	p := handlers(t, never, false)
	var runs, ticks atomic.Uint64
	tick := p.kprobe(&kprobes.Kprobe{SymbolName: "update_process_times", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
		ticks.Add(1)
		return 0
	}})
	k := p.kprobe(&kprobes.Kprobe{SymbolName: getppid, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
		runs.Add(1)
		time.Sleep(20 * time.Millisecond)
		return 0
	}})
	for tries := 0; tick.NMissed() == 0 && tries < 100; tries++ {
		before := runs.Load()
		if c := p.g.Hit("getppid", 20, tries%2); c.OK != 20 || runs.Load() < before+20 {
			t.Fatalf("%+v, %d runs", c, runs.Load()-before)
		}
	}
	s := tick.State()
	if s.Misses.System == 0 || ticks.Load() == 0 {
		t.Errorf("timer ticks: %d handled, %+v", ticks.Load(), s)
	}
	p.core.UnregisterKprobes([]*kprobes.Kprobe{k, tick})
}

// TestHandlerPanics has a handler that panics: its probe is disabled and tells why, and the guest
// goes on; enabled again it works.
func TestHandlerPanics(t *testing.T) {
	p := handlers(t, never, false)
	var runs atomic.Uint64
	var bad atomic.Bool
	bad.Store(true)
	k := p.kprobe(&kprobes.Kprobe{SymbolName: getppid, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
		runs.Add(1)
		if bad.Load() {
			panic("on purpose")
		}
		return 0
	}})
	if c := p.g.Hit("getppid", 1000, 0); c.OK != 1000 {
		t.Errorf("%+v", c)
	}
	eventually(t, "disabled probe", func() bool { return k.State().Disabled })
	if err := k.Fault(); err == nil || !bytes.Contains([]byte(err.Error()), []byte("on purpose")) {
		t.Errorf("the fault is %v", err)
	}
	bad.Store(false)
	before := runs.Load()
	if err := p.core.EnableKprobe(k); err != nil {
		t.Fatal(err)
	}
	p.g.Hit("getppid", 1000, 1)
	if n := runs.Load() - before; n < 1000 {
		t.Errorf("%d runs after the probe was enabled again", n)
	}
	p.core.UnregisterKprobe(k)
}

// TestHandlerReturns has what a return probe's calls have of their own, more calls at once than
// it has room for, and pools and descriptors that serve again.
func TestHandlerReturns(t *testing.T) {
	p := handlers(t, never, true) // little memory: pools that do not serve again would not last
	var entries, same, returns, name atomic.Uint64
	for i := range 40 {
		rp := &kprobes.Kretprobe{
			Kp: kprobes.Kprobe{SymbolName: "do_sys_openat2"}, MaxActive: 1, DataSize: 8,
			EntryHandler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
				entries.Add(1)
				binary.LittleEndian.PutUint64(ri.Data, r.SI)
				name.Store(r.SI)
				return 0
			},
			Handler: func(ri *kprobes.KretprobeInstance, r *kprobes.Regs) int {
				returns.Add(1)
				if int32(r.ReturnValue()) == -int32(unix.ENOENT) && binary.LittleEndian.Uint64(ri.Data) == name.Load() {
					same.Add(1)
				}
				return 0
			},
		}
		if err := p.core.RegisterKretprobe(rp); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		p.g.Hit("open", 100, i%2)
		p.core.UnregisterKretprobe(rp)
	}
	if returns.Load() < 3000 || same.Load() < 3000 {
		t.Errorf("%d entries, %d returns, %d of them with what the entry had left", entries.Load(), returns.Load(), same.Load())
	}
	jp := &kprobes.Jprobe{Kp: kprobes.Kprobe{SymbolName: getppid}, Entry: func(uint64) uint64 { return 0 }}
	if err := p.core.RegisterJprobe(jp); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("a jprobe: %v", err)
	}
}

// TestHandlerEnds registers and unregisters under load: no handler runs afterwards.
func TestHandlerEnds(t *testing.T) {
	p := handlers(t, never, false)
	for cpu := range 2 {
		defer p.g.Background("/bin/hit", "getppid", "1000000000", string(rune('0'+cpu)))()
	}
	for i := range 20 {
		var runs atomic.Uint64
		var ended atomic.Bool
		k := p.kprobe(&kprobes.Kprobe{SymbolName: getppid, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
			if ended.Load() {
				t.Error("a handler runs after its probe is gone")
			}
			if runs.Add(1)%64 == 0 && i%2 == 1 {
				time.Sleep(time.Millisecond)
			}
			return 0
		}})
		eventually(t, "runs", func() bool { return runs.Load() > 300 })
		if i%4 == 3 {
			if err := p.core.DisableKprobe(k); err != nil {
				t.Fatal(err)
			}
		}
		p.core.UnregisterKprobe(k)
		ended.Store(true)
	}
}

// Environment of a tracer with handlers in a process of its own.
const (
	envHolder = "KPROBES_TEST_HOLDER" // the spec
	envHang   = "KPROBES_TEST_HANG"   // the handler does not return
	envWait   = "KPROBES_TEST_WAIT"   // how long the guest waits
)

// held is what holder's handler makes of getppid.
const held = 7777

// holder is a tracer that changes what getppid returns until its input ends. It tells when its
// probe is armed, and when its handler runs first.
func holder(spec string) error {
	s, err := qemu.ParseSpec(spec)
	if err != nil {
		return err
	}
	m, err := openGuarded(s)
	if err != nil {
		return err
	}
	wait, err := time.ParseDuration(os.Getenv(envWait))
	if err != nil {
		return err
	}
	t, err := guest.Attach(m, &guest.Options{HandlerWait: wait})
	if err != nil {
		return err
	}
	core, err := kprobes.Open(t, nil)
	if err != nil {
		return err
	}
	var runs atomic.Uint64
	rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: getppid}, Handler: func(_ *kprobes.KretprobeInstance, r *kprobes.Regs) int {
		if runs.Add(1) == 1 {
			os.Stdout.WriteString("runs\n")
		}
		if os.Getenv(envHang) != "" {
			select {}
		}
		r.SetReturnValue(held)
		return 0
	}}
	if err := core.RegisterKretprobe(rp); err != nil {
		return err
	}
	os.Stdout.WriteString("armed\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return errors.Join(core.Close(nil), m.Close())
}

// hold starts a holder.
func hold(t *testing.T, g *testguest.Guest, wait time.Duration, hang bool) (*exec.Cmd, *bufio.Scanner, io.Closer) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envHolder+"="+g.Spec.String(), envWait+"="+wait.String())
	if hang {
		cmd.Env = append(cmd.Env, envHang+"=1")
	}
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	sc := bufio.NewScanner(out)
	word(t, sc, "armed")
	return cmd, sc, in
}

func word(t *testing.T, sc *bufio.Scanner, want string) {
	t.Helper()
	if !sc.Scan() || sc.Text() != want {
		t.Fatalf("the tracer says %q, %v, want %s", sc.Text(), sc.Err(), want)
	}
}

// TestHandlerTracerKilled kills a tracer between hits, and while its handler runs: the guest goes
// on, and what was left is taken out.
func TestHandlerTracerKilled(t *testing.T) {
	g := testguest.Shared(t)
	clean := attach(t, g, nil)
	before := textOf(t, clean.t)
	clean.close()
	parent := g.Hit("getppid", 1, 0).Bytes
	for _, hang := range []bool{false, true} {
		cmd, sc, _ := hold(t, g, 50*time.Millisecond, hang)
		runs := make(chan bool, 1)
		go func() { runs <- sc.Scan() && sc.Text() == "runs" }()
		eventually(t, "handler that begins", func() bool { // one may begin too late for each of three calls
			if c := g.Hit("getppid", 3, 0); hang && (c.OK != 3 || c.Bytes == 3*held) {
				t.Errorf("with a handler that hangs: %+v", c)
			}
			select {
			case ok := <-runs:
				if !ok {
					t.Fatalf("the tracer says %q, %v, want runs", sc.Text(), sc.Err())
				}
				return true
			default:
				return false
			}
		})
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		for cpu := range 2 {
			if c := g.Hit("getppid", 2000, cpu); c.OK != 2000 || c.Bytes != 2000*parent {
				t.Errorf("the tracer is dead: %+v", c)
			}
		}
		p := attach(t, g, nil)
		l, err := p.t.FindLeftover()
		if err != nil || l == nil || l.Alive() {
			t.Fatalf("%+v, %v", l, err)
		}
		if off := l.MailOff(); off != arch.MailMuted {
			t.Errorf("the mailbox is in state %d", off)
		}
		if u, err := l.Undo(); err != nil || len(u.Foreign) > 0 {
			t.Errorf("%+v, %v", u, err)
		}
		if !bytes.Equal(textOf(t, p.t), before) {
			t.Error("the kernel's code is not as it was")
		}
		p.close()
	}
}

// TestUndoLetsWaitersGo takes out what a tracer has left while a vCPU still waits for it.
func TestUndoLetsWaitersGo(t *testing.T) {
	g := testguest.Shared(t)
	cmd, sc, _ := hold(t, g, never, true)
	end := g.Background("/bin/hit", "getppid", "1000000000", "1")
	word(t, sc, "runs")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	p := attach(t, g, nil)
	l, err := p.t.FindLeftover()
	if err != nil || l == nil {
		t.Fatalf("%+v, %v", l, err)
	}
	if u, err := l.Undo(); err != nil || u.Restored == 0 {
		t.Errorf("%+v, %v", u, err)
	}
	end()
	if c := g.Hit("getppid", 100, 1); c.OK != 100 {
		t.Errorf("%+v", c)
	}
}

// TestHandlerTracerStopped stops a tracer for a while: the guest goes on without handlers, and
// with them when the tracer does.
func TestHandlerTracerStopped(t *testing.T) {
	g := testguest.Shared(t)
	parent := g.Hit("getppid", 1, 0).Bytes
	cmd, sc, in := hold(t, g, 100*time.Millisecond, false)
	all := func() bool { return g.Hit("getppid", 100, 1).Bytes == 100*held }
	eventually(t, "handled hits", all)
	word(t, sc, "runs")
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "stopped tracer", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		return err == nil && bytes.Contains(b, []byte(") T "))
	})
	if c := g.Hit("getppid", 2000, 0); c.OK != 2000 || c.Bytes != 2000*parent {
		t.Errorf("the tracer is stopped: %+v", c)
	}
	if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "handled hits", all)
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the tracer: %v", err)
	}
	if c := g.Hit("getppid", 100, 0); c.Bytes != 100*parent {
		t.Errorf("the tracer is gone: %+v", c)
	}
}
