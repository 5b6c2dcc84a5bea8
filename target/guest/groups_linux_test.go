package guest_test

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// A vCPU stands where a patch would have its third byte. The group of this patch is left out,
// with the place in the reason, and the other one of the change goes in. The patches are the
// bytes that stand there: nobody notices.
func TestGroupIsLeftOut(t *testing.T) {
	p := attach(t, testguest.Shared(t), nil)
	if err := p.t.Prepare(); err != nil {
		t.Fatal(err)
	}
	far, err := p.t.Space().Resolve(symbol.Place{Sym: "vfs_read"})
	if err != nil {
		t.Fatal(err)
	}
	done := 0
	for range 200 { // the vCPU may have something to do at one moment or the other
		at := standing(p)
		if at == 0 {
			continue
		}
		busy := &target.Group{Add: []*target.Site{unchanged(p, at-2)}}
		free := &target.Group{Add: []*target.Site{unchanged(p, far.Addr)}}
		ch := &target.Change{Groups: []*target.Group{busy, free}, Then: func() error { done++; return nil }}
		if err := p.t.Commit(ch); err != nil {
			t.Fatal(err)
		}
		var who *target.BusyError
		blocked := errors.As(busy.Blocked, &who)
		if free.Blocked != nil || blocked != errors.Is(busy.Blocked, guest.ErrBlocked) || blocked && who.Addr-(at-1) > 3 {
			t.Fatalf("a vCPU stands at 0x%x: %v, %v", at, busy.Blocked, free.Blocked)
		}
		if err := p.t.Close(); !errors.Is(err, unix.EBUSY) {
			t.Fatalf("closed with a patch in place: %v", err)
		}
		gone := slices.Clone(free.Add)
		if !blocked {
			gone = append(gone, busy.Add...)
		}
		if err := p.t.Commit(&target.Change{Remove: gone}); err != nil {
			t.Fatal(err)
		}
		if blocked {
			p.t.FreeCode(busy.Add[0].Detour.Addr, busy.Add[0].Room)
			if done == 0 {
				t.Error("Then was not called")
			}
			return
		}
	}
	t.Error("no vCPU ever stood where it had stood before")
}

// standing is where the first vCPU is, if that is in the kernel's code.
func standing(p *probed) (at uint64) {
	p.Helper()
	err := p.m.Stopped(func(s *qemu.Stop) error {
		cpus, err := s.CPUs()
		if err == nil && p.t.Space().ModuleAt(cpus[0].RIP) != nil {
			at = cpus[0].RIP
		}
		return err
	})
	if err != nil {
		p.Fatal(err)
	}
	return at
}

// unchanged is a site whose patch is what stands there.
func unchanged(p *probed, addr uint64) *target.Site {
	p.Helper()
	s := &target.Site{Addr: addr, Orig: make([]byte, 5), Room: 64}
	if err := p.t.Read(addr, s.Orig); err != nil {
		p.Fatal(err)
	}
	s.Patch = slices.Clone(s.Orig)
	at, err := p.t.Code(addr, addr+5, s.Room)
	if err != nil {
		p.Fatal(err)
	}
	s.Detour = &arch.Detour{Addr: at, Code: []byte{0xcc}}
	return s
}
