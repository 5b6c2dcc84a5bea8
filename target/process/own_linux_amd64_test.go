package process

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// mark maps what a process's own engine maps to say that it is there.
func mark(t *testing.T, p *Proc) (addr uint64) {
	t.Helper()
	s := stop(t, p)
	fd, err := s.MemfdCreate(procfs.OwnMap, unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if addr, err = s.Mmap(0, procfs.PageSize, unix.PROT_NONE, unix.MAP_PRIVATE, fd, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseFD(fd); err != nil {
		t.Fatal(err)
	}
	release(t, s)
	return addr
}

func unmark(t *testing.T, p *Proc, addr uint64) {
	t.Helper()
	s := stop(t, p)
	if err := s.Munmap(addr, procfs.PageSize); err != nil {
		t.Fatal(err)
	}
	release(t, s)
}

func memories(t *testing.T, p *Proc) (ours []string) {
	t.Helper()
	maps, err := p.Maps()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range maps {
		if strings.HasPrefix(m.Path, "/memfd:") {
			ours = append(ours, m.Path)
		}
	}
	return ours
}

// TestOwnEngine: a process that has an engine of its own is refused, and nothing of that engine is
// touched, also where its lock is not seen from here: in a process that was forked from it, or in
// another pid namespace.
func TestOwnEngine(t *testing.T) {
	r := run(t, build(t, "odd"))
	p := r.open()
	at := mark(t, p)
	before := memories(t, p)
	tg, err := Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := tg.Prepare(); !errors.Is(err, ErrOwn) || !errors.Is(err, unix.EBUSY) {
		t.Errorf("prepared: %v", err)
	}
	if _, err := FindLeftover(p); !errors.Is(err, ErrOwn) {
		t.Errorf("leftovers: %v", err)
	}
	if now := memories(t, p); !slices.Equal(now, before) {
		t.Errorf("mapped: %q, before the refusal %q", now, before)
	}
	p.Unlock()
	unmark(t, p, at)
	if tg, err = Attach(p, nil); err == nil {
		err = tg.Prepare()
	}
	if err != nil {
		t.Fatalf("when the engine is gone: %v", err)
	}

	// One that does not see our lock, and comes after we have looked for it.
	at = mark(t, p)
	if err := tg.stopped(tg.alone); !errors.Is(err, ErrOwn) {
		t.Errorf("both came: %v", err)
	}
	if now := memories(t, p); !slices.Equal(now, before) {
		t.Errorf("mapped when both have come: %q, want %q", now, before)
	}
	if h, err := p.Holder(); h != nil || err != nil {
		t.Errorf("held by %v, %v", h, err)
	}
	unmark(t, p, at)
	untouched(t, p)
}

// TestHeldByItself: the lock tells that the process itself has it.
func TestHeldByItself(t *testing.T) {
	own := &HeldError{PID: 7, Holder: procfs.Holder{PID: 7, Comm: "x"}}
	other := &HeldError{PID: 7, Holder: procfs.Holder{PID: 8, Comm: "x"}}
	if !errors.Is(own, ErrOwn) || !errors.Is(own, ErrBusy) || errors.Is(other, ErrOwn) || !errors.Is(other, ErrBusy) {
		t.Errorf("%v; %v", own, other)
	}
	if !strings.Contains(own.Error(), "debughttp") || !strings.Contains(other.Error(), "process 8 (x)") {
		t.Errorf("%v; %v", own, other)
	}
}

// TestAttachToChild: a child of this process that may be waited for is refused.
func TestAttachToChild(t *testing.T) {
	r := run(t, build(t, "live"), "2")
	p, err := Open(r.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := Attach(p, nil); !errors.Is(err, ErrChild) {
		t.Errorf("a child of ours: %v, want ErrChild", err)
	}
	if _, err := Attach(r.open(), nil); err != nil {
		t.Error(err)
	}
}
