package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// TestLockHolder is no test: it holds a process until its input ends.
func TestLockHolder(t *testing.T) {
	pid, err := strconv.Atoi(os.Getenv("KPROBES_LOCK_PID"))
	if err != nil {
		return
	}
	p, err := Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Lock(); err != nil {
		t.Fatal(err)
	}
	const size = 512 << 20 // once it is killed it takes a while to end
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil {
		err = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
	}
	if err == nil {
		err = unix.Madvise(b, unix.MADV_POPULATE_WRITE)
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("ready")
	os.Stdin.Read(make([]byte, 1))
}

func TestLock(t *testing.T) {
	r := run(t, build(t, "odd"))
	p := r.open()
	if h, err := p.Holder(); h != nil || err != nil {
		t.Fatalf("holder of a free process: %v, %v", h, err)
	}
	t.Setenv("KPROBES_LOCK_PID", strconv.Itoa(r.PID))
	other := run(t, "/proc/self/exe", "-test.run=^TestLockHolder$")
	var held *HeldError
	err := p.Lock()
	if !errors.As(err, &held) || !errors.Is(err, ErrBusy) || held.Holder.PID != other.PID || held.PID != r.PID {
		t.Fatalf("lock of a process that %d holds: %v", other.PID, err)
	}
	if h := procfs.NewHolder(other.PID); !h.Same(held.Holder) || h.Start == 0 || h.PIDNS == 0 || time.Since(h.Started) > time.Hour || time.Until(h.Started) > time.Minute {
		t.Errorf("holder %+v, want %+v", held.Holder, h)
	}
	if h, err := p.Holder(); err != nil || !h.Same(held.Holder) {
		t.Errorf("holder: %v, %v", h, err)
	}
	// A dead holder holds nothing, and one that dies is waited for.
	other.Cmd.Process.Kill()
	if err := p.Lock(); err != nil {
		t.Fatal(err)
	}
	other.Cmd.Wait()
	if h, err := p.Holder(); err != nil || h.PID != os.Getpid() {
		t.Errorf("holder: %v, %v, want us", h, err)
	}
	q := r.open()
	if err := q.Lock(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("lock of what we hold: %v", err)
	}
	if a := r.Ask("exec"); a != "ready" { // exec does not free it
		t.Fatal(a)
	}
	if err := q.Lock(); !errors.Is(err, ErrBusy) {
		t.Errorf("lock after exec: %v", err)
	}
	p.Unlock()
	if err := q.Lock(); err != nil {
		t.Error(err)
	}
	q.Unlock()
	r.Cmd.Process.Kill()
	r.Cmd.Wait()
	if err := p.Lock(); !errors.Is(err, ErrNoProcess) {
		t.Errorf("lock of a process that has ended: %v", err)
	}
}
