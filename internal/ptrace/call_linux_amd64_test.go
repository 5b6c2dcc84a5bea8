package ptrace

import (
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
)

// Every register is as it was after a thread has made calls for us, in user mode and
// between system calls.
func TestCallLeavesAllRegisters(t *testing.T) {
	r := run(t, build(t, "hold"))
	p := r.open()
	for range 100 {
		s := stop(t, p)
		injectEach(t, s)
		release(t, s)
		r.Fine()
	}
	untouched(t, p)
}

// The only thread of a process is waited for if it waits for a processor while it makes a call; the process goes on as before.
func TestCallAwaitsTurn(t *testing.T) {
	was := callTime
	callTime = 0
	defer func() { callTime = was }()
	cat := exec.Command("cat")
	in, err := cat.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cat.Stdout = &out
	if err := cat.Start(); err != nil {
		t.Fatal(err)
	}
	waitState(t, cat.Process.Pid, "S") // its exec is over: it waits for input
	busy := exec.Command("sh", "-c", "while :; do :; done")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = busy.Process.Kill()
		_ = busy.Wait()
	}()
	var one unix.CPUSet
	one.Set(0)
	for _, pid := range []int{cat.Process.Pid, busy.Process.Pid} {
		if err := unix.SchedSetaffinity(pid, &one); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, cat.Process.Pid, 19); err != nil {
		t.Fatal(err)
	}
	p, err := OpenUnwaited(cat.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s := stop(t, p)
	for range 10 {
		if n, err := s.Call(unix.SYS_GETPID); err != nil || n != uint64(cat.Process.Pid) {
			t.Errorf("getpid: %d, %v", n, err)
			break
		}
	}
	release(t, s)
	_, writeErr := in.Write([]byte("as before"))
	if err := errors.Join(writeErr, in.Close(), cat.Wait()); err != nil || out.String() != "as before" {
		t.Errorf("cat: %q, %v", out.String(), err)
	}
}

func TestCallMapsProtectsAndUnmaps(t *testing.T) {
	r := run(t, build(t, "live"), "2")
	p := r.open()
	s := stop(t, p)
	defer s.Release()
	maps, err := p.Maps()
	if err != nil {
		t.Fatal(err)
	}
	code := codeOf(t, p, maps)
	const size = 5 * procfs.PageSize
	want, err := procfs.FindGap(maps, code.Start, code.End, size, native.Reach)
	if err != nil {
		t.Fatal(err)
	}
	at, err := s.Mmap(want, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, -1, 0)
	if err != nil || at != want {
		t.Fatalf("mmap at %#x gave %#x, %v", want, at, err)
	}
	if err := s.Mprotect(at+procfs.PageSize, procfs.PageSize, unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	if err := p.WriteMem(at+procfs.PageSize-1, []byte("through a read-only page too")); err != nil {
		t.Fatal(err)
	}
	if err := s.Munmap(at, size); err != nil {
		t.Fatal(err)
	}
	if err := p.ReadMem(at, make([]byte, 1)); !errors.Is(err, ErrFault) || !errors.Is(err, unix.EFAULT) {
		t.Fatalf("read of unmapped memory: %v", err)
	}
	if _, err := s.Mmap(want+1, size, 0, unix.MAP_FIXED|unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("mmap at an odd address: %v, want EINVAL", err)
	}
}

// codeOf gives the mapping of the program's own code.
func codeOf(t *testing.T, p *Process, maps []procfs.Map) procfs.Map {
	t.Helper()
	for _, m := range maps {
		if m.Perm&procfs.PermExec != 0 && m.Inode == p.Image().Exe.Inode {
			return m
		}
	}
	t.Fatalf("no code of the program in %v", maps)
	return procfs.Map{}
}

// Scratch memory of our own takes the frames once it is there.
func TestCallWithScratch(t *testing.T) {
	r := run(t, build(t, "hold"))
	p := r.open()
	s := stop(t, p)
	at, err := s.Mmap(0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.SetScratch(interval.Range{Start: at, End: at + 64<<10})
	injectEach(t, s)
	release(t, s)
	r.Fine()
}

func TestMemfdIsSharedAndClosed(t *testing.T) {
	r := run(t, build(t, "live"), "2")
	p := r.open()
	s := stop(t, p)
	defer s.Release()
	fd, err := s.MemfdCreate("kprobes-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.OpenFD(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	at, err := s.Mmap(0, procfs.PageSize, unix.PROT_READ, unix.MAP_SHARED, fd, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CloseFD(fd); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if err := p.ReadMem(at, b); err != nil || string(b) != "hello" {
		t.Fatalf("%q, %v", b, err)
	}
	if _, err := p.OpenFD(fd); err == nil {
		t.Error("the descriptor is still open in the target")
	}
	if err := p.WriteMem(at, []byte("x")); !errors.Is(err, ErrFault) {
		t.Errorf("write to a read-only shared mapping: %v", err)
	}
}

func TestDispositions(t *testing.T) {
	const ( // flags of sigaction(2), asm/signal.h of x86
		siginfo  = 0x4
		restorer = 0x04000000
		onStack  = 0x08000000
		restart  = 0x10000000
		noDefer  = 0x40000000
	)
	r := run(t, build(t, "actions"))
	p := r.open()
	s := stop(t, p)
	got, err := s.Dispositions()
	if err != nil {
		t.Fatal(err)
	}
	for sig, want := range map[int]Sigaction{
		int(unix.SIGUSR1): {Flags: siginfo | onStack | restorer, Mask: 1<<(unix.SIGUSR2-1) | 1<<(unix.SIGTRAP-1)},
		int(unix.SIGALRM): {Flags: restart | restorer},
		64:                {Flags: noDefer | restorer, Mask: ^uint64(1<<(unix.SIGKILL-1) | 1<<(unix.SIGSTOP-1) | 3<<31)},
		int(unix.SIGPIPE): {Handler: SigIgnore},
		int(unix.SIGTERM): {},
	} {
		a := got[sig]
		if want.Flags != 0 && (a.Handler == 0 || a.Restorer == 0) {
			t.Errorf("signal %d has no handler: %+v", sig, a)
		}
		if want.Flags != 0 {
			a.Handler, a.Restorer = 0, 0
		}
		if a != want {
			t.Errorf("signal %d: %+v, want %+v", sig, a, want)
		}
	}
	before := got[unix.SIGUSR1]
	if err := s.SetSigaction(int(unix.SIGUSR1), Sigaction{Handler: SigIgnore}); err != nil {
		t.Fatal(err)
	}
	if a, err := s.Sigaction(int(unix.SIGUSR1)); err != nil || a.Handler != SigIgnore {
		t.Errorf("after it was set: %+v, %v", a, err)
	}
	if err := s.SetSigaction(int(unix.SIGUSR1), before); err != nil {
		t.Fatal(err)
	}
	if a, err := s.Sigaction(int(unix.SIGUSR1)); err != nil || a != before {
		t.Errorf("after it was put back: %+v, %v, want %+v", a, err, before)
	}
	if _, err := s.Sigaction(99); !errors.Is(err, unix.EINVAL) {
		t.Errorf("signal 99: %v, want EINVAL", err)
	}
	release(t, s)
	r.Fine()
}

// A call that the target's own filter would punish is not made.
func TestSeccomp(t *testing.T) {
	prog := build(t, "actions")
	for _, c := range []struct {
		mode string
		ok   bool
	}{{"allow", true}, {"log", true}, {"kill", false}, {"trap", false}, {"errno", false}, {"nosigreturn", false}, {"argument", false}, {"strict", false}} {
		t.Run(c.mode, func(t *testing.T) {
			r := run(t, prog, c.mode)
			p := r.open()
			s := stop(t, p)
			at, err := s.Mmap(0, procfs.PageSize, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
			if c.ok && err != nil || !c.ok && !errors.Is(err, ErrSeccomp) {
				t.Errorf("mmap: %#x, %v", at, err)
			}
			release(t, s)
			r.Fine()
			untouched(t, p)
		})
	}
}

// gcProgram builds the program that collects garbage.
func gcProgram(t *testing.T, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "gogc")
	cmd := exec.Command("go", append(append([]string{"build", "-o", out}, flags...), "../../internal/testprog/process/gogc.go")...)
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	return out
}

// Go's stacks are never written to: its threads make calls all the same, and the garbage
// collector, which looks at all of them, finds nothing.
func TestCallInGoUnderGC(t *testing.T) {
	for _, flags := range [][]string{{}, {"-buildmode=pie"}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			r := run(t, gcProgram(t, flags...))
			p := r.open()
			for i := range 100 {
				s := stop(t, p)
				offHeap(t, s)
				if i%4 == 0 {
					injectEach(t, s)
				}
				at, err := s.Mmap(0, procfs.PageSize, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Munmap(at, procfs.PageSize); err != nil {
					t.Fatal(err)
				}
				if _, err := s.Dispositions(); err != nil {
					t.Fatal(err)
				}
				release(t, s)
				if i%20 == 0 {
					r.Fine()
				}
			}
			r.Fine()
			untouched(t, p)
		})
	}
}

// offHeap checks that frames would lie outside of Go's heap, which its stacks are in.
func offHeap(t *testing.T, s *Stopped) {
	t.Helper()
	for _, th := range s.Threads() {
		pl, err := s.placeFor(th, 4000)
		if err != nil {
			t.Fatal(err)
		}
		m, ok := procfs.FindMap(mapsOf(t, s.p), pl.Start)
		if !ok || m.Path != "[stack]" && m.Inode != s.p.image.Exe.Inode && !pl.clean {
			t.Fatalf("frame of thread %d, stack pointer %#x, lies at %#x in %+v", th.TID, th.Regs().RSP, pl.Start, m)
		}
		if 0xc000000000 <= pl.Start && pl.Start < 0xd000000000 {
			t.Fatalf("frame lies in Go's arena: %#x", pl.Start)
		}
	}
}

// The rest of the page behind .bss is a place of last resort: free, zero, and put back.
func TestCallInPadding(t *testing.T) {
	r := run(t, build(t, "padded"))
	p := r.open()
	s := stop(t, p)
	th := s.Threads()[0]
	// A stack that is no place, as a coroutine's, and no room at the bottom of [stack].
	maps := mapsOf(t, p)
	i := slices.IndexFunc(maps, func(m procfs.Map) bool { return m.Path == "[stack]" })
	if err := p.WriteMem(maps[i].Start, []byte{1}); err != nil {
		t.Fatal(err)
	}
	regs := th.Regs()
	elsewhere := regs
	elsewhere.RSP = codeOf(t, p, maps).Start
	if err := th.SetRegs(elsewhere); err != nil {
		t.Fatal(err)
	}
	pl, err := s.placeFor(th, 3200)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := procfs.FindMap(maps, pl.Start)
	if !ok || !pl.clean || m.Path != "" && m.Inode != p.image.Exe.Inode || pl.End%procfs.PageSize != 0 || pl.Size() >= procfs.PageSize {
		t.Fatalf("place %+v in %+v", pl, m)
	}
	vectors, err := th.Xstate()
	if err != nil {
		t.Fatal(err)
	}
	if frameSize(len(vectors), 0)+placeHead > procfs.PageSize {
		t.Skipf("a frame with %d bytes of vector registers does not fit there", len(vectors))
	}
	if got, err := s.Call(sysGettid); err != nil || int(got) != th.TID {
		t.Fatalf("gettid: %d, %v", got, err)
	}
	if !p.zero(pl.Start, pl.Size()) {
		t.Error("the padding is not put back")
	}
	if now := th.Regs(); now.RSP != elsewhere.RSP {
		t.Errorf("stack pointer %#x, want %#x", now.RSP, elsewhere.RSP)
	}
	again := th.Regs()
	again.RSP = regs.RSP
	if err := th.SetRegs(again); err != nil {
		t.Fatal(err)
	}
	// What is not zero there is the program's, and stays.
	if err := p.WriteMem(pl.End-1, []byte{7}); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.padding(maps, 3200); ok {
		t.Error("padding that holds something is taken")
	}
	release(t, s)
	r.Fine()
}
