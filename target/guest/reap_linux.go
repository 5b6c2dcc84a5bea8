package guest

import (
	"cmp"
	"slices"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/guest/kernel"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// How instances are taken back. A slot belongs to the call whose key it has: the address at which the
// call's return address stands. The entry claims the slot, the exit clears it, and nobody else writes to
// it. In a stop of the vCPUs a slot is cleared
//
//   - of an event that is armed, if its call is proven to be over (reaper.over);
//   - of an event whose code has been taken out, once no thread is in any such code.
//
// A thread that has just claimed a slot may not have written down for which event, so that what stands
// there is an earlier call's. Such a thread is in generated code: an instruction pointer, a return
// address or a register leads there. No slot is cleared that it may have claimed for any event
// (reaper.claimed).

var (
	_ target.Reaper  = (*Target)(nil)
	_ target.Tallier = (*Target)(nil)
)

// Bounds of a Reap.
const (
	maxReaped = 4096    // slots that are cleared in one stop
	maxAsked  = 4 << 20 // keys that are compared with those that a thread may have claimed: some milliseconds
)

// Reap takes instances back. Within a Commit (Change.Then) it is part of the same stop.
func (t *Target) Reap(r *target.Reap) error {
	r.Active, r.Unwound, r.Whole = map[int]int{}, map[int]int{}, true
	if t.lay == nil || len(t.pools) == 0 {
		return nil
	}
	if t.held != nil {
		return t.reap(t.held, r)
	}
	return t.stopped(func(s *qemu.Stop) error { return t.reap(s, r) })
}

// reap is Reap. Precondition: the vCPUs are stopped.
func (t *Target) reap(s *qemu.Stop, r *target.Reap) error {
	if err := t.alive(); err != nil {
		return err
	}
	p, err := t.newReaper(s, r)
	if err != nil {
		return err
	}
	t.eachInstance(p.slot)
	return nil
}

// reaper is a Reap while the vCPUs are stopped.
type reaper struct {
	*target.Reap
	t      *Target
	live   map[int]bool
	stacks []stack          // in the order of their addresses
	unused []interval.Range // stacks that belong to no thread
	claims []interval.Range // stacks of threads that may have claimed a slot
	all    bool             // a thread may have claimed any
	salts  []uint64         // of the events whose calls claim slots
	idle   bool             // no thread is in code that was removed
	quota  int              // slots that may still be cleared
	asks   int              // keys that may still be compared
}

// stack is a kernel stack, from where on it is in use.
type stack struct {
	interval.Range
	sp uint64
}

func (s stack) compare(addr uint64) int { return cmp.Compare(s.Start, addr) }

// newReaper looks at all threads, and frees the detours that none of them is in.
func (t *Target) newReaper(s *qemu.Stop, r *target.Reap) (*reaper, error) {
	cpus, sps, err := registers(s)
	if err != nil {
		return nil, err
	}
	p := &reaper{Reap: r, t: t, live: map[int]bool{}, quota: maxReaped, asks: maxAsked, all: slices.ContainsFunc(cpus, t.misnumbered)}
	retired := patch.NewRetired(t.zombie)
	inside := map[owner]bool{}
	if err := t.wordsOf(cpus, sps, func(at where, v uint64) {
		if v-t.lay.code.va >= uint64(len(t.lay.code.mem)) {
			return
		}
		inside[at.owner()] = true
		retired.Mark(v)
	}); err != nil {
		return nil, err
	}
	t.reclaim(retired)
	p.idle = len(t.zombie) == 0
	if err := p.lookAtStacks(sps, inside); err != nil {
		return nil, err
	}
	for _, e := range r.Live {
		p.live[e] = r.Left
		p.salts = append(p.salts, native.EventSalt(e))
	}
	for e := range r.Ended {
		p.salts = append(p.salts, native.EventSalt(e))
	}
	p.unused, err = t.k.FreeStacks()
	return p, err
}

// misnumbered says whether a vCPU that is in the kernel is another CPU there than its number says: then
// the stack pointers are not those of the threads that they are taken for.
func (t *Target) misnumbered(c qemu.CPU) bool {
	base := t.k.PerCPU(c.Index)
	return c.Elsewhere(base)
}

// owner is a thread, by the address of its struct task_struct, or a vCPU.
type owner struct {
	task uint64
	cpu  int
}

func (w where) owner() owner {
	if w.t == nil {
		return owner{cpu: w.cpu}
	}
	return owner{task: w.t.Addr}
}

// lookAtStacks lists the stacks, and those whose threads are inside generated code. A stack that several
// threads may be on is in use from where the first of them needs it.
func (p *reaper) lookAtStacks(sps []uint64, inside map[owner]bool) error {
	from := map[interval.Range]uint64{}
	seen := map[owner]bool{}
	err := p.t.k.Stacks(sps, func(t *kernel.Task, whole, used interval.Range) {
		if at, ok := from[whole]; !ok || used.Start < at {
			from[whole] = used.Start
		}
		for _, o := range []owner{{task: t.Addr}, {cpu: t.CPU}} {
			if inside[o] {
				seen[o] = true
				p.claims = append(p.claims, whole)
			}
		}
	})
	for r, sp := range from {
		p.stacks = append(p.stacks, stack{r, sp})
	}
	slices.SortFunc(p.stacks, func(a, b stack) int { return a.compare(b.Start) })
	p.all = p.all || len(seen) < len(inside)
	return err
}

// slot clears a slot if its call is over.
func (p *reaper) slot(u *arch.Pool, slot []byte, i native.Instance) {
	ended := p.Ended[i.Event]
	switch {
	case ended && !p.idle:
		p.Whole = false
		return
	case !ended && (!p.live[i.Event] || !p.over(i)):
		return
	case p.quota == 0 || p.claimed(slot):
		p.Whole = p.Whole && !ended
		return
	case ended && !p.over(i):
		p.Active[i.Event]++
	default:
		p.Unwound[i.Event]++
	}
	p.quota--
	p.t.freeSlot(u, slot)
}

// over says whether a call has surely ended. Where nothing proves that, another look may.
func (p *reaper) over(i native.Instance) bool {
	// Its return address does not stand where it stood: no code of the kernel writes there before the
	// call returns. What replaces return addresses, the kernel's own return probes and function graph
	// tracer, does so at the first bytes of a function, and those are run before our entry. Nor is the
	// address there if the memory is not: a stack is unmapped when its thread is dead (FreeStacks).
	if p.t.returned(i) {
		return true
	}
	// It lies below the stack pointer of the thread whose stack it is on: calls in progress lie above.
	// That of a thread that does not run is thread.sp, where __switch_to_asm has left it; that of one that runs
	// is its vCPU's, or, while that is on a stack for interrupts, what the switch there has kept; one that is in
	// user mode has nothing on its stack.
	if n, _ := slices.BinarySearchFunc(p.stacks, i.SP+1, stack.compare); n > 0 && p.stacks[n-1].Contains(i.SP) {
		return i.SP < p.stacks[n-1].sp
	}
	// No thread has the stack that it is on, and it waits for the next thread: the one that it belonged to
	// is dead. That no thread is seen to have it does not prove that: one that has left the kernel's
	// lists may sleep once more (release_task in kernel/exit.c).
	return slices.ContainsFunc(p.unused, func(r interval.Range) bool { return r.Contains(i.SP) })
}

// claimed says whether a thread may just have claimed a slot, or whether that can not be told.
func (p *reaper) claimed(slot []byte) bool {
	if p.all {
		return true
	}
	if p.asks -= len(p.claims) * len(p.salts); p.asks < 0 {
		return true
	}
	key := le.Uint64(slot)
	for _, r := range p.claims {
		for _, salt := range p.salts {
			if r.Contains(key ^ salt) {
				return true
			}
		}
	}
	return false
}

// freeSlot clears a slot of a pool. Precondition: the vCPUs are stopped, and no thread is using it.
func (t *Target) freeSlot(p *arch.Pool, slot []byte) {
	storeWord(slot, 0)
	if p.Max > 0 {
		n := t.poolMem(p)[p.Active-p.Base:]
		le.PutUint32(n, le.Uint32(n)-1)
	}
}

// table is the memory of a pool's slots.
func (t *Target) table(p *arch.Pool) []byte {
	return t.poolMem(p)[:native.PoolBytes(p.Slots, p.Stride)]
}

// eachInstance gives the slots that are taken.
func (t *Target) eachInstance(f func(p *arch.Pool, slot []byte, i native.Instance)) {
	for _, p := range t.pools {
		table := t.table(p)
		for at := 0; at < len(table); at += 1 << p.Stride {
			slot := table[at : at+native.SlotHeader]
			if i, ok := native.ReadInstance(slot, false); ok {
				f(p, slot, i)
			}
		}
	}
}

// Tally counts the instances of each event, while the guest runs.
func (t *Target) Tally(n map[int]int) error {
	t.eachInstance(func(_ *arch.Pool, _ []byte, i native.Instance) { n[i.Event]++ })
	return nil
}

// Instances classifies the instances in the pools: a call is in progress while its return
// address stands where it stood at the entry, and, in the stop of a Commit, while nothing else proves
// that it is over.
func (t *Target) Instances() (active, unwound map[int]int, err error) {
	over := t.returned
	if t.held != nil && len(t.pools) > 0 {
		if p, err := t.newReaper(t.held, &target.Reap{}); err == nil {
			over = p.over
		}
	}
	active, unwound = map[int]int{}, map[int]int{}
	t.eachInstance(func(_ *arch.Pool, _ []byte, i native.Instance) {
		if over(i) {
			unwound[i.Event]++
		} else {
			active[i.Event]++
		}
	})
	return active, unwound, nil
}

// returned says whether the return address of a call does not stand where it stood.
func (t *Target) returned(i native.Instance) bool {
	var b [8]byte
	return t.k.Read(i.SP, b[:]) != nil || le.Uint64(b[:]) != i.Return
}

// crowdWindow is what Crowded looks at of a pool that has no count, in bytes.
const crowdWindow = 64 << 10

// Crowded says whether half of the instances of a pool with a maximum are taken, or more than
// an eighth of the slots in a part of another one, each time another part.
func (t *Target) Crowded() bool {
	t.part += crowdWindow
	return t.lay != nil && slices.ContainsFunc(t.pools, t.crowded)
}

func (t *Target) crowded(p *arch.Pool) bool {
	if t.idle[p] {
		return false
	}
	if p.Max > 0 {
		return 2*le.Uint32(t.poolMem(p)[p.Active-p.Base:]) >= p.Max
	}
	table := t.table(p)
	lo := t.part % len(table) &^ (1<<p.Stride - 1)
	table = table[lo:min(lo+crowdWindow, len(table))]
	taken := 0
	for at := 0; at < len(table); at += 1 << p.Stride {
		if le.Uint64(table[at:]) != 0 {
			taken++
		}
	}
	return taken > len(table)>>p.Stride/8
}
