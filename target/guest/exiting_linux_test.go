package guest_test

import (
	"encoding/binary"
	"sync"
	"testing"

	gk "kprobes.dev/kprobes/internal/guest/kernel"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// TestExiting has a thread that nobody waits for: at the end of its life it runs, but is on no
// list of the kernel. Its stack is looked at all the same.
func TestExiting(t *testing.T) {
	p := attach(t, testguest.Shared(t), nil)
	at, ok := p.t.Kernel().Addr("do_task_dead")
	if !ok {
		t.Fatal("no do_task_dead")
	}
	var mu sync.Mutex
	ended, unseen := 0, 0
	b, err := p.m.Break(at, func(c *qemu.CPU, s *qemu.Stop) qemu.Resume {
		mu.Lock()
		defer mu.Unlock()
		ended++
		all, err := p.stackAbove(c.RSP)
		if err == nil {
			err = p.saved(s, func(_ *gk.Task, w uint64) { delete(all, w) })
		}
		if err != nil {
			t.Errorf("vCPU %d: %v", c.Index, err)
		}
		if len(all) > 0 {
			unseen++
		}
		return qemu.Continue
	})
	if err != nil {
		t.Fatal(err)
	}
	pattern := p.g.Shell("cat /proc/sys/kernel/core_pattern")
	p.g.Shell(`echo '|/bin/true' >/proc/sys/kernel/core_pattern; for i in 1 2 3 4; do (sh -c 'kill -SEGV $$'); done; sleep 1; true`)
	p.g.Write("/proc/sys/kernel/core_pattern", pattern, true)
	if err := b.Remove(); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if ended < 4 || unseen > 0 {
		t.Errorf("of %d threads that ended %d were not seen", ended, unseen)
	}
}

// stackAbove are the words of a kernel stack from an address on.
func (p *probed) stackAbove(sp uint64) (map[uint64]bool, error) {
	const size = 16 << 10
	b := make([]byte, size-sp%size)
	if err := p.t.Read(sp, b); err != nil {
		return nil, err
	}
	all := map[uint64]bool{}
	for ; len(b) >= 8; b = b[8:] {
		all[binary.LittleEndian.Uint64(b)] = true
	}
	return all, nil
}

// saved gives what the kernel's threads may come back to.
func (p *probed) saved(s *qemu.Stop, f func(t *gk.Task, word uint64)) error {
	cpus, err := s.CPUs()
	if err != nil {
		return err
	}
	sps := make([]uint64, len(cpus))
	for i := range cpus {
		sps[cpus[i].Index] = cpus[i].RSP
	}
	return p.t.Kernel().Interrupted(sps, f)
}
