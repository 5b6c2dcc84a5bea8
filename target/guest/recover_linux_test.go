package guest_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testguest"
)

// TestLivingEngine has a second engine come to a machine that the first one of the same process is at
// work in: it is refused, and nothing of the first one's is taken for a killed tracer's.
func TestLivingEngine(t *testing.T) {
	g := testguest.Shared(t)
	p := attach(t, g, nil)
	ours := p.add(&kprobes.AddOptions{Count: true}, "p:a __x64_sys_getppid")
	g.Hit("getppid", 100, 0)
	q := attachMachine(p)
	if _, err := q.tryAdd(nil, "p:b __x64_sys_getppid"); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a second engine: %v", err)
	}
	if err := q.core.RegisterKprobe(&kprobes.Kprobe{SymbolName: "vfs_read", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }}); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a handler of a second engine: %v", err)
	}
	if err := q.core.Close(nil); err != nil {
		t.Error(err)
	}
	g.Hit("getppid", 100, 1)
	p.counts(ours[0], 200)
	if err := p.core.Close(p.take); err != nil {
		t.Fatal(err)
	}
	q = attachMachine(p)
	theirs := q.add(&kprobes.AddOptions{Count: true}, "p:b __x64_sys_getppid")
	g.Hit("getppid", 100, 1)
	q.counts(theirs[0], 100)
	if err := q.core.Close(nil); err != nil {
		t.Error(err)
	}
}
