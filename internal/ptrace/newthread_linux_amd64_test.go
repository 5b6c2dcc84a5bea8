package ptrace

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/procfs"
)

// TestStartThread makes threads in a program, one while the others stand and one more for each stop: each tells its number, its FS base and its signal mask,
// and ends. The program goes on as before.
func TestStartThread(t *testing.T) {
	const (
		size  = 2 * procfs.PageSize
		told  = procfs.PageSize // the thread's number, base, mask; then the word that says whether it lives
		alive = told + 24
		base  = told + 0x100
		stack = size
	)
	for _, c := range [][]string{{"hold"}, {"live", "2"}} {
		r := run(t, build(t, c[0]), c[1:]...)
		p := r.open()
		before, err := p.Tasks()
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			s := stop(t, p)
			at, err := s.Mmap(0, size, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
			if err != nil {
				t.Fatal(err)
			}
			a := amd64.NewAsm(at)
			a.MovRI(amd64.RBX, at+told)
			a.MovRI(amd64.RAX, unix.SYS_GETTID)
			a.Syscall()
			a.MovMR(8, amd64.At(amd64.RBX, 0), amd64.RAX)
			a.MovRM(8, amd64.RAX, amd64.AtFS(0))
			a.MovMR(8, amd64.At(amd64.RBX, 8), amd64.RAX)
			a.MovRI(amd64.RDI, 0)
			a.MovRI(amd64.RSI, 0)
			a.Lea(amd64.RDX, amd64.At(amd64.RBX, 16))
			a.MovRI(amd64.R10, 8)
			a.MovRI(amd64.RAX, unix.SYS_RT_SIGPROCMASK)
			a.Syscall()
			a.MovRI(amd64.RDI, 0)
			a.MovRI(amd64.RAX, unix.SYS_EXIT)
			a.Syscall()
			code, err := a.Finish()
			if err != nil {
				t.Fatal(err)
			}
			word := func(off uint64) uint64 {
				b := make([]byte, 8)
				if err := p.ReadMem(at+off, b); err != nil {
					t.Fatal(err)
				}
				return le.Uint64(b)
			}
			put := func(off, v uint64) {
				if err := p.WriteMem(at+off, le.AppendUint64(nil, v)); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.WriteMem(at, code); err != nil {
				t.Fatal(err)
			}
			put(alive, 1)
			put(base, at+base)
			if err := s.StartThread(&NewThread{Start: at, Stack: at + stack, Base: at + base, Alive: at + alive}); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(time.Minute); word(alive) != 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the thread has not ended")
				}
			}
			const unblockable = 1<<(unix.SIGKILL-1) | 1<<(unix.SIGSTOP-1)
			if id := word(told); id == 0 || slices.Contains(before, int(id)) || word(told+8) != at+base || word(told+16) != ^uint64(unblockable) {
				t.Errorf("thread %d, base %#x, mask %#x", id, word(told+8), word(told+16))
			}
			if err := s.Munmap(at, size); err != nil {
				t.Fatal(err)
			}
			release(t, s)
			r.Fine()
		}
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // the last one is listed for a moment after its word is 0
			after, err := p.Tasks()
			if err == nil && slices.Equal(after, before) {
				break
			}
			if err != nil || time.Now().After(end) {
				t.Fatalf("threads %v, before %v: %v", after, before, err)
			}
		}
		untouched(t, p)
	}
}
