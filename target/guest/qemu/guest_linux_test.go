package qemu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv("QEMU_TEST_GUARD"); spec != "" {
		guard(os.Args[len(os.Args)-1])
	}
	if spec := os.Getenv("QEMU_TEST_TRACER"); spec != "" {
		fmt.Println(tracer(spec))
		os.Exit(1)
	}
	testguest.Main(m)
}

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

func open(t *testing.T, g *testguest.Guest, o *qemu.Options) *qemu.Machine {
	t.Helper()
	m, err := qemu.Open(g.Spec, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m
}

// symbol is a kernel function's virtual and physical address, as the guest tells them.
func symbol(t *testing.T, g *testguest.Guest, name string) (va, pa uint64) {
	t.Helper()
	find := func(name string) uint64 {
		f := strings.Fields(g.Shell("grep -m1 -w " + name + "$ /proc/kallsyms"))
		v, err := strconv.ParseUint(f[0], 16, 64)
		if err != nil || v == 0 {
			t.Fatalf("kallsyms: %q, %v", f, err)
		}
		return v
	}
	code := regexp.MustCompile(`([0-9a-f]+)-[0-9a-f]+ : Kernel code`).FindStringSubmatch(g.Shell("cat /proc/iomem"))
	if code == nil {
		t.Fatal("no kernel code in /proc/iomem")
	}
	base, err := strconv.ParseUint(code[1], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	va = find(name)
	return va, va - find("_text") + base
}

func TestMemory(t *testing.T) {
	g := testguest.Shared(t)
	m := open(t, g, nil)
	if m.Accel() != "tcg" || m.CPUs() != 2 {
		t.Errorf("%s, %d vCPUs; want tcg, 2", m.Accel(), m.CPUs())
	}
	version := strings.TrimSpace(g.Shell("cat /proc/version"))
	_, pa := symbol(t, g, "linux_banner")
	if got := m.Bytes(pa, len(version)); string(got) != version {
		t.Errorf("at %#x: %q, want %q", pa, got, version)
	}
	last := uint64(0)
	for _, r := range m.Ranges() {
		if r.Start < last || r.End <= r.Start || m.Bytes(r.Start, int(r.End-r.Start)) == nil || m.Bytes(r.End-1, 2) != nil || m.Bytes(r.Start, -1) != nil {
			t.Errorf("range %#x of %#x", r, m.Ranges())
		}
		last = r.End + 1
	}
	if m.Bytes(1<<40, 1) != nil || m.Bytes(^uint64(0), 2) != nil {
		t.Error("bytes where there is no RAM")
	}
	if last < 200<<20 {
		t.Errorf("RAM ends at %#x", last)
	}
	ring, mem := m.Shared()
	bar := g.Shell(`for d in /sys/bus/pci/devices/*; do [ $(cat $d/device) = 0x1110 ] && sed -n 3p $d/resource; done; true`)
	if want := fmt.Sprintf("0x%016x", ring); ring == 0 || len(mem) != 32<<20 || !strings.HasPrefix(bar, want) {
		t.Errorf("shared memory of %d bytes at %#x; the guest has %q", len(mem), ring, bar)
	}
}

func TestHeld(t *testing.T) {
	g := testguest.Shared(t)
	open(t, g, nil)
	holder := fmt.Sprintf("held by process %d:", os.Getpid())
	if m, err := qemu.Open(g.Spec, nil); !errors.Is(err, qemu.ErrHeld) || !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), holder) {
		t.Errorf("second engine: %v, %v; want ErrHeld, %s", m, err, holder)
	}
	for range 4 { // more than QEMU lets wait for the monitor
		open(t, g, &qemu.Options{Unlocked: true})
	}
	reader := open(t, g, &qemu.Options{Unlocked: true})
	version := strings.TrimSpace(g.Shell("cat /proc/version"))
	_, pa := symbol(t, g, "linux_banner")
	if got := reader.Bytes(pa, len(version)); string(got) != version {
		t.Errorf("reader beside it: %q at %#x", got, pa)
	}
	if err := reader.Stopped(func(*qemu.Stop) error { return nil }); !errors.Is(err, unix.EBADF) {
		t.Errorf("a reader stops the guest: %v", err)
	}
}

// alive fails the test if the guest does not run.
func alive(t *testing.T, g *testguest.Guest) {
	t.Helper()
	if c := g.Hit("getppid", 100, -1); c.OK != 100 {
		t.Errorf("the guest counted %+v", c)
	}
}

func TestStopped(t *testing.T) {
	g := testguest.Shared(t)
	var told atomic.Int32
	m := open(t, g, &qemu.Options{Paused: func(time.Duration) { told.Add(1) }})
	end := g.Background("/bin/hit", "getppid", "1000000000", "1")
	defer end()
	err := m.Stopped(func(s *qemu.Stop) error {
		cpus, err := s.CPUs()
		if err != nil || len(cpus) != 2 || cpus[1].Index != 1 {
			t.Errorf("%+v, %v", cpus, err)
		}
		again, err := s.CPUs()
		if err != nil || !slices.Equal(cpus, again) {
			t.Errorf("vCPUs that stand: %+v, then %+v, %v", cpus, again, err)
		}
		for _, c := range cpus {
			if c.RIP == 0 || c.CR3 == 0 || c.Kernel() != (int64(c.RIP) < 0) {
				t.Errorf("%+v", c)
			}
		}
		for i := 0; slices.Equal(cpus, again); i++ {
			if i == 1000 {
				t.Fatal("vCPUs stand although Yield let them run")
			}
			if err := s.Yield(); err != nil {
				return err
			}
			if again, err = s.CPUs(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if p := m.Pauses(); len(p) < 3 || len(p) != int(told.Load()) {
		t.Errorf("pauses %v, told of %d", p, told.Load())
	}
	mine := errors.New("mine")
	var kept *qemu.Stop
	if err := m.Stopped(func(s *qemu.Stop) error { kept = s; return mine }); !errors.Is(err, mine) {
		t.Errorf("error of the function: %v", err)
	}
	if _, err := kept.CPUs(); !errors.Is(err, unix.EBADF) {
		t.Errorf("a stop that is over: %v", err)
	}
	alive(t, g)
}

func TestStoppedPanics(t *testing.T) {
	g := testguest.Shared(t)
	m := open(t, g, nil)
	func() {
		defer func() {
			if recover() != "mine" {
				t.Error("the panic was lost")
			}
		}()
		_ = m.Stopped(func(*qemu.Stop) error { panic("mine") })
	}()
	alive(t, g)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = m.Stopped(func(*qemu.Stop) error { runtime.Goexit(); return nil })
	}()
	<-done
	alive(t, g)
}

// TestPausedByOwner: a guest that its owner has stopped stays so.
func TestPausedByOwner(t *testing.T) {
	g := testguest.Shared(t)
	m := open(t, g, nil)
	stopped := func() {
		t.Helper()
		err := m.Stopped(func(s *qemu.Stop) error {
			if err := s.Yield(); !errors.Is(err, qemu.ErrPaused) {
				t.Errorf("Yield: %v, want ErrPaused", err)
			}
			_, err := s.CPUs()
			return err
		})
		if err != nil {
			t.Error(err)
		}
		if s, err := m.Status(); s != "paused" || err != nil {
			t.Errorf("status %s, %v; want paused", s, err)
		}
	}
	for range 2 { // connecting to the gdb stub, and connected
		if err := m.Command("stop"); err != nil {
			t.Fatal(err)
		}
		stopped()
		stopped()
		if err := m.Command("cont"); err != nil {
			t.Fatal(err)
		}
		alive(t, g)
		if err := m.Stopped(func(s *qemu.Stop) error { return s.Yield() }); err != nil {
			t.Error(err)
		}
		alive(t, g)
	}
}

// TestWritePhys patches a function that both vCPUs are executing all the time.
func TestWritePhys(t *testing.T) {
	g := testguest.Shared(t)
	m := open(t, g, nil)
	_, pa := symbol(t, g, "__x64_sys_getppid")
	const calls = 20000
	g.Hit("getppid", calls, 1) // translated by now
	orig := bytes.Clone(m.Bytes(pa, 6))
	patch := []byte{0xb8, 42, 0, 0, 0, 0xc3} // mov $42,%eax; ret
	write := func(b []byte) {
		t.Helper()
		err := m.Stopped(func(s *qemu.Stop) error { return s.WritePhys(pa, b) })
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		write(patch)
		if c := g.Hit("getppid", calls, 1); c.Bytes != 42*calls {
			t.Errorf("patched: getppid adds up to %d, want %d", c.Bytes, 42*calls)
		}
		write(orig)
		if c := g.Hit("getppid", calls, 1); c.Bytes == 42*calls || c.OK != calls {
			t.Errorf("restored: %+v", c)
		}
	}
	err := m.Stopped(func(s *qemu.Stop) error { return s.WritePhys(1<<40, patch) })
	if !errors.Is(err, unix.EFAULT) {
		t.Errorf("write to no memory: %v, want EFAULT", err)
	}
}

func TestWriteAll(t *testing.T) {
	g := testguest.Shared(t)
	m := open(t, g, nil)
	pa, mem := m.Shared()
	var writes []qemu.Write
	for i := range 1000 {
		writes = append(writes, qemu.Write{PA: pa + uint64(i)*64, Data: []byte{1, 2, 3, byte(i), byte(i >> 8)}})
	}
	large := bytes.Repeat([]byte("large write "), 1000)
	writes = append(writes, qemu.Write{PA: pa + 1<<20 + 1, Data: large}, qemu.Write{PA: pa + 64, Data: []byte("again")})
	var took time.Duration
	err := m.Stopped(func(s *qemu.Stop) error {
		start := time.Now()
		defer func() { took = time.Since(start) }()
		return s.WriteAll(writes)
	})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(mem[64:69], []byte("again")) || mem[999*64+3] != 999&255 || !bytes.Equal(mem[1<<20+1:][:len(large)], large) {
		t.Error("what was written is not there")
	}
	t.Logf("%d writes in %v", len(writes), took)
}

// TestPauses tells how long a stop lasts in which each vCPU's registers are read.
func TestPauses(t *testing.T) {
	g := testguest.Shared(t)
	m := open(t, g, nil)
	for _, cpu := range []string{"0", "1"} {
		defer g.Background("/bin/hit", "open", "1000000000", cpu)()
	}
	for range 400 {
		if err := m.Stopped(func(s *qemu.Stop) error { _, err := s.CPUs(); return err }); err != nil {
			t.Fatal(err)
		}
	}
	p := m.Pauses()
	if len(p) != 401 { // and the connection
		t.Errorf("%d pauses, want 401", len(p))
	}
	slices.Sort(p)
	t.Logf("%d pauses: min %v, median %v, p99 %v, max %v", len(p), p[0], p[len(p)/2], p[len(p)*99/100], p[len(p)-1])
}

func TestBreak(t *testing.T) {
	g := testguest.Shared(t)
	m := open(t, g, nil)
	va, _ := symbol(t, g, "__x64_sys_getppid")
	var hits, others atomic.Int64
	b, err := m.Break(va, func(c *qemu.CPU, s *qemu.Stop) qemu.Resume {
		hits.Add(1)
		if c.RIP != va || !c.Kernel() || s.Bytes(1<<20, 1) == nil {
			others.Add(1)
		}
		return qemu.Continue
	})
	if err != nil {
		t.Fatal(err)
	}
	end := g.Background("/bin/sh", "-c", "while :; do hit getppid 3 0; done")
	for range 20 { // stops beside breakpoints
		if err := m.Stopped(func(s *qemu.Stop) error { return s.Yield() }); err != nil {
			t.Error(err)
		}
	}
	end()
	hits.Store(0)
	if c := g.Hit("getppid", 20, 1); c.OK != 20 || c.Bytes == 0 {
		t.Errorf("the guest counted %+v", c)
	}
	if n := hits.Load(); n < 20 || others.Load() != 0 {
		t.Errorf("%d hits, %d of them odd; want 20 at least", n, others.Load())
	}
	if err := errors.Join(b.Remove(), b.Remove()); err != nil {
		t.Error(err)
	}
	hits.Store(0)
	alive(t, g)
	if hits.Load() != 0 {
		t.Error("hits of a breakpoint that was removed")
	}
}

// TestBreakChanges: a handler leaves the function by itself, and removes its breakpoint.
func TestBreakChanges(t *testing.T) {
	g := testguest.Shared(t)
	m := open(t, g, nil)
	va, _ := symbol(t, g, "__x64_sys_getppid")
	before := g.Hit("getppid", 1, 1)
	b, err := m.Break(va, func(c *qemu.CPU, _ *qemu.Stop) qemu.Resume {
		c.RDI = 0 // the function looks at nothing
		return qemu.Remove
	})
	if err != nil {
		t.Fatal(err)
	}
	ret, _ := symbol(t, g, "__x64_sys_getpid")
	_, err = m.Break(va, func(c *qemu.CPU, _ *qemu.Stop) qemu.Resume {
		c.RIP = ret // another function's entry: the pid instead of the parent's
		return qemu.Continue
	})
	if err != nil {
		t.Fatal(err)
	}
	c := g.Hit("getppid", 3, 1)
	if c.Bytes != 3*uint64(c.PID) {
		t.Errorf("three times %d became %d; without handler %+v", c.PID, c.Bytes, before)
	}
	if err := b.Remove(); err != nil {
		t.Error(err)
	}
}

func TestEvents(t *testing.T) {
	g := testguest.Boot(t, nil)
	m := open(t, g, nil)
	await := func(want qemu.Event) {
		t.Helper()
		for {
			select {
			case e, ok := <-m.Events():
				if !ok {
					t.Fatalf("no more events, waiting for %v", want)
				}
				if e == want {
					return
				}
			case <-time.After(patience):
				t.Fatalf("no event %v", want)
			}
		}
	}
	g.Reboot()
	await(qemu.Reset)
	alive(t, g)
	if err := m.Stopped(func(s *qemu.Stop) error { return nil }); err != nil {
		t.Errorf("after the reboot: %v", err)
	}
	if err := qemu.End(g.Spec); err != nil { // while we hold the monitor
		t.Fatal(err)
	}
	await(qemu.Gone)
	if err := m.Stopped(func(s *qemu.Stop) error { return nil }); !errors.Is(err, qemu.ErrGone) {
		t.Errorf("without QEMU: %v, want ErrGone", err)
	}
}

// guard is a process of this test: a tracer that leaves the guest stopped, or its guardian.
func guard(spec string) {
	s, err := qemu.ParseSpec(spec)
	if err == nil {
		err = qemu.Guard(s, os.Stdin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// tracer is the tracer that TestKilled kills, a process of its own. It returns only if
// something is wrong.
func tracer(spec string) error {
	s, err := qemu.ParseSpec(spec)
	if err != nil {
		return err
	}
	own, err := os.Executable() // env executes it when this process may have been killed
	if err != nil {
		return err
	}
	guardian := qemu.Guardian("/usr/bin/env", "QEMU_TEST_GUARD=1", own)
	m, err := qemu.Open(s, &qemu.Options{Guardian: guardian})
	if err != nil {
		return err
	}
	addr, err := strconv.ParseUint(os.Getenv("QEMU_TEST_ADDR"), 0, 64)
	if err != nil {
		return err
	}
	if _, err := m.Break(addr, func(*qemu.CPU, *qemu.Stop) qemu.Resume { return qemu.Continue }); err != nil {
		return err
	}
	return m.Stopped(func(*qemu.Stop) error {
		fmt.Println("stopped")
		select {} // until it is killed
	})
}

func TestKilled(t *testing.T) {
	g := testguest.Shared(t)
	va, _ := symbol(t, g, "__x64_sys_getppid")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), "QEMU_TEST_TRACER="+g.Spec.String(), fmt.Sprintf("QEMU_TEST_ADDR=%#x", va))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 8)
	if _, err := out.Read(said); err != nil || string(said) != "stopped\n" {
		rest := make([]byte, 4096)
		n, _ := out.Read(rest)
		t.Fatalf("the tracer says %q%q, %v", said, rest[:n], err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	alive(t, g)    // and hits no breakpoint at which nobody waits
	m := open(t, g, nil)
	if err := m.Stopped(func(s *qemu.Stop) error { _, err := s.CPUs(); return err }); err != nil {
		t.Error(err)
	}
	alive(t, g)
}
