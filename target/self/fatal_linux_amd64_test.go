//go:build !race

// Atomic handlers are not to be had under the race detector.

package self_test

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
)

func init() {
	children["fatal"] = dies
	children["endless"] = endless
}

// TestFatal: the program dies of what a handler does that none may do. The probe is named before the
// runtime's own words.
func TestFatal(t *testing.T) {
	for what, words := range map[string]string{"blocks": "fatal error: ", "unlocks": "fatal error: sync: unlock of unlocked mutex"} {
		t.Run(what, func(t *testing.T) {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"=fatal", "KPROBES_SELF_FATAL="+what)
			var told bytes.Buffer
			cmd.Stderr = &told
			if err := cmd.Run(); err == nil {
				t.Fatal("the program lives")
			}
			text := told.String()
			ours := strings.Index(text, "kprobes: the program dies in a handler of the kprobe on "+own+"bump+0x")
			if theirs := strings.Index(text, words); ours < 0 || theirs < ours {
				t.Errorf("ours at %d, the runtime's words at %d:\n%.1500s", ours, theirs, text)
			}
		})
	}
}

func dies(c *kprobes.Core) error {
	never := make(chan bool)
	var free sync.Mutex
	k := &kprobes.Kprobe{SymbolName: own + "bump", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
		if os.Getenv("KPROBES_SELF_FATAL") == "blocks" {
			<-never
		}
		free.Unlock()
		return 0
	}}
	if err := c.RegisterKprobe(k); err != nil {
		return err
	}
	_ = bump(1, 2)
	return nil
}

// TestEndless: a handler never ends, and the garbage collector waits for it. The program stands; the probe
// is named all the same, and no other, however often its handler runs.
func TestEndless(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=endless")
	told, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(childWait, func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(told).ReadString('\n')
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !late.Stop() || !strings.HasPrefix(line, "kprobes: a handler of the kprobe on "+own+"bump+0x") || err != nil {
		t.Errorf("%q, %v", line, err)
	}
}

func endless(c *kprobes.Core) error {
	var never atomic.Bool
	ks := []*kprobes.Kprobe{
		{SymbolName: own + "bump", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
			for !never.Load() { // it never ends, and leaves the processor to others
				_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&unix.Timespec{Nsec: 1e6})), 0, 0)
			}
			return 0
		}},
		{SymbolName: own + "other", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }},
	}
	if err := c.RegisterKprobes(ks); err != nil {
		return err
	}
	go func() {
		go func() {
			for !never.Load() {
				_ = other(1, 2) // its handler is seen running, but never for long
			}
		}()
		for range 300 { // each stops the threads, and wakes the watch
			k := &kprobes.Kprobe{SymbolName: own + "grow"}
			if c.RegisterKprobe(k) == nil {
				c.UnregisterKprobe(k)
			}
		}
		go func() { _ = bump(1, 2) }()
		for {
			runtime.GC()
			_ = other(1, 2)
		}
	}()
	select {}
}
