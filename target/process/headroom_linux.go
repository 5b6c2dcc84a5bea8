package process

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/headroom"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/target"
)

// What probes take from a process, and from whom. The kernel charges a page to the memory cgroup
// of whoever touches it first, and kills somebody there when the cgroup's limit is reached: so
//
//	ring           the tracer touches its pages first, and pays
//	control block, heap,    private copies of memory files: the process pays for each page that is written.
//	code, stubs    The page of the file below it, which the kernel makes too, is the tracer's (back)
//	program text   the process pays a page for each one that a patch is written to
//	page tables,   the process pays
//	stacks
//
// What a step takes is estimated before anything is mapped or written, held against all limits
// (internal/headroom), and refused if it is more than half of what is free.

// memoryPlan is what a process gets.
type memoryPlan struct {
	ring   ring.Config
	cpus   []int           // that the process runs on: their shards have all their pages
	copied map[uint64]bool // pages of the program that we have written to
}

const (
	// tablesPerMap is what the page tables of a new mapping take at most, beside one page for
	// each 2 MiB.
	tablesPerMap = 3 * procfs.PageSize
	// unseen is left for what is not known beforehand: memory of the kernel's for what we ask of it.
	unseen = 64 << 10
	// leastRing is the least size of a shard's records that is taken where nobody asked for one.
	leastRing = 16 << 10
	// leastEvents is how many events a ring has room for at least.
	leastEvents = 4096
)

// limits are those that bind the process, and us, now.
func (t *Target) limits() (headroom.Limits, error) {
	ls, err := headroom.Root("/").Of(t.p.PID(), os.Getpid(), t.p.LocksAll())
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", t.p.PID(), err)
	}
	return ls, nil
}

// checkRoom refuses what takes more than there is room for.
func (t *Target) checkRoom(what string, take headroom.Take) error {
	ls, err := t.limits()
	if err != nil {
		return err
	}
	if err := ls.Check(take); err != nil {
		return fmt.Errorf("process %d: %s: %w", t.p.PID(), what, err)
	}
	return nil
}

// fit chooses the ring's size: what is asked for, else what the CPUs that the process runs on need, or
// less where there is no room for it.
func (t *Target) fit() error {
	ls, err := t.limits()
	if err != nil {
		return err
	}
	if err := t.planRing(); err != nil {
		return err
	}
	tids, err := t.p.Tasks()
	if err != nil {
		return err
	}
	// A probe's frame may make each stack a page longer.
	base := headroom.Take{
		Charged: unseen + 6*tablesPerMap + uint64(len(tids))*procfs.PageSize + 8*procfs.PageSize,
		Mapped:  controlSize + minPiece, Private: controlSize, Locked: controlSize + minPiece, Ours: 8 * procfs.PageSize,
	}
	cfg, asked := &t.mem.ring, t.o.Buffer != 0
	for {
		l, err := ring.NewLayout(*cfg)
		if err != nil {
			return err
		}
		err = ls.Check(base.Plus(ringTake(l, len(t.mem.cpus))))
		switch {
		case err == nil:
			return nil
		case !asked && cfg.DataSize > leastRing:
			cfg.DataSize /= 2
		case l.Events > leastEvents:
			cfg.Events = max(leastEvents, l.Events/2)
		default:
			return fmt.Errorf("process %d: probes: %w", t.p.PID(), err)
		}
	}
}

// planRing says what the ring is to be where there is room.
func (t *Target) planRing() error {
	n, err := ring.PossibleCPUs()
	if err != nil {
		return err
	}
	cfg := ring.Config{CPUs: n, Events: t.o.Events, DataSize: t.o.Buffer, Sparse: true}
	cpus, err := ring.OnlineCPUs()
	if err != nil {
		return err
	}
	allowed := allowedCPUs(t.p)
	cpus = slices.DeleteFunc(cpus, func(n int) bool {
		return n >= cfg.CPUs || len(allowed) > 0 && !slices.Contains(allowed, n)
	})
	if cfg.DataSize == 0 {
		cfg.DataSize = ring.DefaultShard(max(1, len(cpus)))
	}
	t.mem = memoryPlan{ring: cfg, cpus: cpus, copied: map[uint64]bool{}}
	return nil
}

// ringTake is what a ring takes when it is in use on so many CPUs.
func ringTake(l ring.Layout, cpus int) headroom.Take {
	records := uint64(cpus) * (l.Data + ring.Slack)
	return headroom.Take{
		Ours:    records + uint64(l.Shards())*2*procfs.PageSize,
		Charged: (records+uint64(l.Shards())*2*procfs.PageSize)/512 + tablesPerMap*uint64(cpus),
		Mapped:  l.Size(), Locked: l.Size(),
	}
}

// allowedCPUs are those that the process may run on; empty: it is not known.
func allowedCPUs(p *ptrace.Process) []int {
	text, err := p.ReadFile("status")
	if err != nil {
		return nil
	}
	for l := range strings.Lines(string(text)) {
		if list, ok := strings.CutPrefix(l, "Cpus_allowed_list:"); ok {
			return ring.ParseCPUs(list)
		}
	}
	return nil
}

// moreHeap maps memory for tables that the control block has no room for.
func (t *Target) moreHeap(size uint64) (addr uint64, err error) {
	err = t.checkRoom("tables of probes", headroom.Take{Charged: size, Ours: size, Mapped: size, Private: size, Locked: size})
	if err != nil {
		return 0, err
	}
	err = t.stopped(func(s *ptrace.Stopped) error {
		addr, err = t.mapPrivate(s, heapName, 0, size, unix.PROT_READ|unix.PROT_WRITE)
		return err
	})
	return addr, err
}

// checkRoomFor refuses a change whose detours, entries and patches the process has no room for. The
// pages of its text that are written to count once.
func (t *Target) checkRoomFor(add []*target.Site) error {
	if len(add) == 0 {
		return nil
	}
	text, code := map[uint64]bool{}, map[uint64]bool{}
	tables := uint64(0)
	for _, a := range add {
		if at := a.Addr / procfs.PageSize; !t.mem.copied[at] {
			text[at] = true
		}
		for at := a.Detour.Addr / procfs.PageSize; at <= (a.Detour.Addr+uint64(len(a.Detour.Code)))/procfs.PageSize; at++ {
			code[at] = true
		}
		tables += siteSize + 2*native.FaultEntrySize*uint64(len(a.Detour.Fixups)+len(a.Detour.Pairs))
	}
	code = t.p.WithoutBacking(code)
	charged := uint64(len(text)+len(code))*procfs.PageSize + tables
	if charged < unseen { // what fit has left room for
		charged = 0
	}
	return t.checkRoom(fmt.Sprintf("%d patches on %d pages of its code", len(add), len(text)), headroom.Take{Charged: charged, Ours: uint64(len(code))*procfs.PageSize + tables})
}

// patched notes which pages of the program have been written to.
func (t *Target) patched(add []*target.Site) {
	for _, a := range add {
		t.mem.copied[a.Addr/procfs.PageSize] = true
	}
}

// learnLocks finds out whether the process locks all memory that it maps. Precondition: the world is stopped.
func (t *Target) learnLocks(s *ptrace.Stopped) error {
	locks, err := s.LearnLocks()
	if err != nil || !locks {
		return err
	}
	return t.fit() // the limit of locked memory counts
}
