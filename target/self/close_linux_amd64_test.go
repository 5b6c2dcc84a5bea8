package self_test

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/target/self"
)

func init() {
	children["close"] = closes
	children["blocked"] = blocked
	children["traced"] = traced
	children["foreign"] = foreign
}

// TestClose: after Close the process is as it was, and can be its own target again.
func TestClose(t *testing.T) { child(t, "close") }

func closes(c *kprobes.Core) error {
	before, err := present()
	if err != nil {
		return err
	}
	for i := range 3 {
		if i > 0 {
			if c, err = openOwn(); err != nil {
				return fmt.Errorf("attached anew: %w", err)
			}
		}
		if err := probeAll(c); err != nil {
			return err
		}
		if err := c.Close(nil); err != nil {
			return err
		}
		c = nil // the collector closes the files that it has open
		after, err := settled(before)
		if err != nil {
			return err
		}
		if err := before.differs(after); err != nil {
			return fmt.Errorf("after %d of 3: %w", i+1, err)
		}
	}
	return nil
}

// TestCloseForeign: somebody else writes over a patch. Close takes out the others and leaves that
// one alone, with the code that it leads to; once the bytes are ours again it ends well.
func TestCloseForeign(t *testing.T) { child(t, "foreign") }

func foreign(c *kprobes.Core) error {
	k, o := &kprobes.Kprobe{SymbolName: own + "bump"}, &kprobes.Kprobe{SymbolName: own + "other"}
	if err := c.RegisterKprobes([]*kprobes.Kprobe{k, o}); err != nil {
		return err
	}
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	var ours [1]byte
	if _, err := mem.ReadAt(ours[:], int64(o.Addr)); err != nil {
		return err
	}
	if _, err := mem.WriteAt([]byte{0x90}, int64(o.Addr)); err != nil {
		return err
	}
	if err := c.Close(nil); !errors.Is(err, self.ErrForeign) {
		return fmt.Errorf("a patch was written over, and Close says: %w", err)
	}
	if _, err := self.Attach(nil); err == nil {
		return errors.New("attached twice")
	}
	if got := bump(1, 2); got != 7 {
		return fmt.Errorf("bump(1, 2) is %d", got)
	}
	if _, err := mem.WriteAt(ours[:], int64(o.Addr)); err != nil {
		return err
	}
	if got := other(1, 2); got != 5 {
		return fmt.Errorf("other(1, 2) is %d by the patch that was left", got)
	}
	if err := c.Close(nil); err != nil {
		return err
	}
	var now [1]byte
	if _, err := mem.ReadAt(now[:], int64(o.Addr)); err != nil || now == ours || other(1, 2) != 5 || bump(1, 2) != 7 {
		return fmt.Errorf("after the last Close %x stands there, %w", now, err)
	}
	return nil
}

// probeAll uses probes of all kinds, some of which are armed when it returns.
func probeAll(c *kprobes.Core) error {
	if _, err := breakpoint(c); err != nil {
		return err
	}
	ks := []*kprobes.Kprobe{
		{SymbolName: "runtime.mallocgc", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }},
		{SymbolName: own + "other"},
	}
	r := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: own + "grow"}, Handler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { return 0 }}
	if err := errors.Join(c.RegisterKprobes(ks), c.RegisterKretprobe(r)); err != nil {
		return err
	}
	if _, err := addCounts(c, "p "+own+"faultLoad", "r "+own+"leaving"); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			grow(1000)
			_ = bump(1, 2)
			leaving(leaveDeep, 10)
		})
	}
	wg.Wait()
	if n := r.State().Hits; n != 4*1001 {
		return fmt.Errorf("%d returns", n)
	}
	c.UnregisterKprobe(ks[1])
	return nil
}

// look is what can be seen of a process.
type look struct {
	signals [65][4]uint64 // dispositions
	code    []string      // executable mappings
	files   []string      // open files
	routine int           // goroutines
}

func present() (l look, err error) {
	for sig := 1; sig < len(l.signals); sig++ {
		if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&l.signals[sig])), 8, 0, 0); e != 0 {
			return l, e
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return l, err
	}
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); strings.Contains(f[1], "x") {
			l.code = append(l.code, f[0]+" "+f[1])
		}
	}
	es, err := os.ReadDir("/proc/self/fd")
	for _, e := range es {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.Contains(to, "memfd:kprobes") {
			l.files = append(l.files, to)
		}
	}
	slices.Sort(l.files)
	l.routine = runtime.NumGoroutine()
	return l, err
}

// settled looks until there are no more goroutines than before, for one may be about to end,
// and files that only the collector closes are closed.
func settled(before look) (l look, err error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		runtime.GC()
		if l, err = present(); err != nil || l.routine <= before.routine && len(l.files) <= len(before.files) {
			break
		}
	}
	return l, err
}

// differs says what is not as it was, and whether the program's code is what its file has.
func (l look) differs(now look) error {
	for sig := range l.signals {
		if l.signals[sig] != now.signals[sig] {
			return fmt.Errorf("signal %d: %x, before %x", sig, now.signals[sig], l.signals[sig])
		}
	}
	if !slices.Equal(l.code, now.code) || !slices.Equal(l.files, now.files) || l.routine != now.routine {
		return fmt.Errorf("%+v\nbefore %+v", now, l)
	}
	return codeIsFiles()
}

// codeIsFiles compares the program's code with its file.
func codeIsFiles() error {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer f.Close()
	text := f.Section(".text")
	want, err := text.Data()
	if err != nil {
		return err
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return err
	}
	defer mem.Close()
	if f.Type != elf.ET_EXEC {
		return errors.New("the test program is position-independent")
	}
	have := make([]byte, len(want))
	if _, err := mem.ReadAt(have, int64(text.Addr)); err != nil {
		return err
	}
	for i := range want {
		if have[i] != want[i] {
			return fmt.Errorf("code at 0x%x: %x, the file has %x", text.Addr+uint64(i), have[i:i+16], want[i:i+16])
		}
	}
	return nil
}

// TestBlockedThread: a thread that takes no signal for long is waited for, but not for ever:
// the change is refused with its name, nothing is half done, and later it succeeds.
func TestBlockedThread(t *testing.T) { child(t, "blocked") }

func blocked(c *kprobes.Core) error {
	k := &kprobes.Kprobe{SymbolName: own + "bump"}
	o := &kprobes.Kprobe{SymbolName: own + "other"}
	if err := c.RegisterKprobe(o); err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	tid := make(chan int)
	done := make(chan error)
	fd := r.Fd()
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		all, old := unix.Sigset_t{}, unix.Sigset_t{}
		for i := range all.Val {
			all.Val[i] = ^uint64(0)
		}
		err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old)
		tid <- unix.Gettid()
		var b [1]byte
		_, rerr := unix.Read(int(fd), b[:])
		done <- errors.Join(err, rerr, unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil))
	}()
	id := <-tid
	err = c.RegisterKprobe(k)
	if want := fmt.Sprintf("thread %d did not stop", id); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), want) {
		return fmt.Errorf("registered beside a thread that blocks signals: %v, want EBUSY and %q", err, want)
	}
	if bump(1, 2) != 7 || other(1, 2) != 5 || k.State().Registered || o.State().Hits != 1 {
		return fmt.Errorf("after the refusal: %+v, %+v", k.State(), o.State())
	}
	_, err = w.Write([]byte{1})
	if err := errors.Join(err, <-done); err != nil {
		return err
	}
	k.Addr = 0
	if err := c.RegisterKprobe(k); err != nil {
		return err
	}
	_ = bump(1, 2)
	if n := k.State().Hits; n != 1 {
		return fmt.Errorf("%d hits later", n)
	}
	return errors.Join(c.Close(nil), codeIsFiles(), r.Close(), w.Close())
}

// TestTraced: what a debugger holds is refused, as a target and for new probes.
func TestTraced(t *testing.T) { child(t, "traced") }

// tracerEnv makes the test program trace its parent, until its standard input ends.
const tracerEnv = "KPROBES_SELF_TRACER"

func traced(c *kprobes.Core) error {
	k := &kprobes.Kprobe{SymbolName: own + "bump"}
	if err := c.RegisterKprobe(k); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return err // EINVAL: no Yama, which would forbid it
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), tracerEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var b [1]byte
	if _, err := out.Read(b[:]); err != nil {
		return fmt.Errorf("the tracer: %w", err)
	}
	name := fmt.Sprintf("process %d traces", cmd.Process.Pid)
	o := &kprobes.Kprobe{SymbolName: own + "other"}
	err = c.RegisterKprobe(o)
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), name) {
		return fmt.Errorf("a probe while a debugger is attached: %v", err)
	}
	c.UnregisterKprobe(k) // taking out is allowed
	if err := errors.Join(c.Close(nil), codeIsFiles()); err != nil {
		return err
	}
	if _, err := self.Attach(nil); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), name) {
		return fmt.Errorf("attached while a debugger is: %v", err)
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		return err
	}
	if c, err = openOwn(); err != nil {
		return err
	}
	return errors.Join(c.RegisterKprobe(o), c.Close(nil))
}

// beTracer traces the parent's first thread.
func beTracer() int {
	runtime.LockOSThread()
	parent := os.Getppid()
	if _, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(parent), 0, 0, 0, 0); e != 0 {
		fmt.Fprintln(os.Stderr, "PTRACE_SEIZE:", e)
		return 1
	}
	fmt.Print("\n")
	go func() {
		_, _ = bytes.NewBuffer(nil).ReadFrom(os.Stdin)
		os.Exit(0) // which detaches
	}()
	for {
		var ws unix.WaitStatus
		if _, err := unix.Wait4(parent, &ws, unix.WALL, nil); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil || !ws.Stopped() {
			return 1
		}
		sig := ws.StopSignal()
		if uint32(ws)>>16 != 0 {
			sig = 0 // not a signal of the parent's, but a stop of its group
		}
		if _, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_CONT, uintptr(parent), 0, uintptr(sig), 0, 0); e != 0 && e != unix.ESRCH {
			return 1
		}
	}
}

// TestCollectorChecks runs children while the collector checks itself, clobbers what it frees,
// or does not pause. With gccheckmark the runtime does not preempt loops without calls.
func TestCollectorChecks(t *testing.T) {
	for _, env := range []string{"GODEBUG=clobberfree=1", "GODEBUG=gccheckmark=1", "GOGC=1"} {
		t.Run(env, func(t *testing.T) {
			names := []string{"growth", "returns", "close"}
			if env != "GODEBUG=gccheckmark=1" {
				names = append(names, "collect", "tight")
			}
			for _, name := range names {
				child(t, name, env, "KPROBES_CYCLES=20")
			}
		})
	}
}
