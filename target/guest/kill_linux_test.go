package guest_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// Environment of this test's own processes.
const (
	envVictim = "KPROBES_TEST_VICTIM" // the spec: arm and disarm until killed
	envGuard  = "KPROBES_TEST_GUARD"  // be a guardian
	envLow    = "KPROBES_TEST_LOW"    // take memory below 1 MiB
	envWatch  = "KPROBES_TEST_WATCH"  // watch instead, until killed
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envGuard) != "":
		s, err := qemu.ParseSpec(os.Args[len(os.Args)-1])
		if err == nil {
			err = qemu.Guard(s, os.Stdin)
		}
		exitWith(err)
	case os.Getenv(envVictim) != "":
		exitWith(victim(os.Getenv(envVictim)))
	case os.Getenv(envHolder) != "":
		exitWith(holder(os.Getenv(envHolder)))
	}
	testguest.Main(m)
}

func exitWith(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// victim arms and disarms probes in hot functions for as long as it lives. It tells when it
// has begun.
func victim(spec string) error {
	s, err := qemu.ParseSpec(spec)
	if err != nil {
		return err
	}
	m, err := openGuarded(s)
	if err != nil {
		return err
	}
	if os.Getenv(envWatch) != "" {
		return watchOn(m)
	}
	for first := true; ; first = false {
		if err := victimRound(m, first); err != nil {
			return err
		}
	}
}

// openGuarded opens a machine for a tracer that is to be killed, as the command does.
func openGuarded(s qemu.Spec) (*qemu.Machine, error) {
	own, err := os.Executable() // env executes it when this process may have been killed
	if err != nil {
		return nil, err
	}
	return qemu.Open(s, &qemu.Options{Guardian: qemu.Guardian("/usr/bin/env", envGuard+"=1", own)})
}

func victimRound(m *qemu.Machine, first bool) error {
	t, err := guest.Attach(m, &guest.Options{Low: os.Getenv(envLow) != ""})
	if err != nil {
		return err
	}
	core, err := kprobes.Open(t, nil)
	if err != nil {
		return err
	}
	for i := range 100 {
		var defs []*event.Def
		for _, s := range []string{"p:a%d vfs_read", "r:b%d vfs_read $retval", "p:c%d __x64_sys_getppid", "p:d%d do_sys_openat2 +0(%%si):ustring"} {
			d, err := event.Parse(fmt.Sprintf(s, i))
			if err != nil {
				return err
			}
			defs = append(defs, d)
		}
		evs, err := core.Add(defs, nil)
		if err != nil {
			return err
		}
		if first && i == 0 {
			fmt.Println("begun")
		}
		core.Poll(func(*hit.Hit) {})
		if err := core.Remove(evs[i%2:]); err != nil {
			return err
		}
		if err := core.Remove(evs[:i%2]); err != nil {
			return err
		}
	}
	return core.Close(nil)
}

// watchOn watches for as long as it lives. It tells when it has begun.
func watchOn(m *qemu.Machine) error {
	t, err := guest.Attach(m, nil)
	if err != nil {
		return err
	}
	core, err := kprobes.Open(t, nil)
	if err != nil {
		return err
	}
	var defs []*event.Def
	for _, s := range []string{"w:set w@panic_on_oops", "w:all rw@panic_on_warn"} {
		d, err := event.Parse(s)
		if err != nil {
			return err
		}
		defs = append(defs, d)
	}
	if _, err := core.Add(defs, nil); err != nil {
		return err
	}
	fmt.Println("begun")
	for {
		core.Poll(func(*hit.Hit) {})
		time.Sleep(time.Millisecond)
	}
}

// startVictim starts this test's binary as a victim, and waits until it has begun.
func startVictim(t *testing.T, g *testguest.Guest, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), envVictim+"="+g.Spec.String()), env...)
	var words bytes.Buffer
	cmd.Stderr = &words
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 6)
	if _, err := out.Read(b); err != nil || string(b) != "begun\n" {
		t.Fatalf("%q, %v: %s", b, err, words.String())
	}
	return cmd
}

// kill kills a victim.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
}

// TestKilled kills a tracer at any moment of its life, many times: the guest goes on, and what
// was left is found and taken out.
func TestKilled(t *testing.T) {
	rounds := 10
	if os.Getenv("KPROBES_E2E_LONG") != "" {
		rounds = 100
	}
	g := testguest.Shared(t)
	clean := attach(t, g, nil)
	before := textOf(t, clean.t)
	clean.close()
	left := 0
	for i := range rounds {
		var env []string
		if i%2 == 1 {
			env = []string{envLow + "=1"}
		}
		cmd := startVictim(t, g, env...)
		time.Sleep(time.Duration(rand.IntN(100_000)) * time.Microsecond)
		kill(t, cmd)
		if c := g.Hit("getppid", 100, i%2); c.OK != 100 {
			t.Fatalf("the guest after the tracer's death: %+v", c)
		}
		p := attach(t, g, nil)
		l, err := p.t.FindLeftover()
		if err != nil {
			t.Fatal(err)
		}
		if l != nil {
			left++
			if l.Alive() {
				t.Error("the dead tracer counts as alive")
			}
			if u, err := l.Undo(); err != nil || len(u.Foreign) > 0 {
				t.Errorf("%+v, %v", u, err)
			}
		}
		if !bytes.Equal(textOf(t, p.t), before) {
			t.Fatal("the kernel's code is not as it was")
		}
		p.close()
	}
	t.Logf("%d of %d tracers left something", left, rounds)
	if left == 0 {
		t.Error("no tracer left anything: what was tested?")
	}
}

// textOf is the code of the functions that the victim probes, and the kernel's page directory.
func textOf(t *testing.T, k *guest.Target) []byte {
	t.Helper()
	var out []byte
	for _, f := range []struct {
		name string
		n    int
	}{{"vfs_read", 0x310}, {"__x64_sys_getppid", 0x30}, {"do_sys_openat2", 0x170}, {"level2_fixmap_pgt", 4096}} {
		a, ok := k.Kernel().Addr(f.name)
		if !ok {
			t.Fatalf("no %s", f.name)
		}
		b := make([]byte, f.n)
		if err := k.Read(a, b); err != nil {
			t.Fatal(err)
		}
		out = append(out, b...)
	}
	return out
}
