package guest

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/guest/phys"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// Leftover is what stands in a guest.
type Leftover struct {
	t       *Target
	lay     *layout
	control *controlBlock
	// Holder is the tracer that made it, as it wrote itself: pid and start time (clock ticks
	// after boot). Zero: it has left, and only code that threads may be in stays.
	Holder, Since uint64
	Sites         []Patched
}

// Patched is one patch that stands in the guest's kernel, or, without a Patch, a probe that waits to be armed.
type Patched struct {
	Addr        uint64
	Orig, Patch []byte
	Points      []target.Point
	reason      target.Reason
	name        string
}

// Gone says whether the module that it stood in is not loaded any more, and where in it that was.
func (p *Patched) Gone() (place string, ok bool) { return p.name, p.reason == target.ReasonGone }

// FindLeftover looks for what a tracer has put into the guest's kernel. nil: nothing of a tracer's is
// there. EBUSY: it is another version's.
func (t *Target) FindLeftover() (*Leftover, error) {
	l, c, err := t.findLayout()
	if err != nil || l == nil {
		return nil, err
	}
	o := &Leftover{t: t, lay: l, control: c, Holder: c.get(hdrHolder), Since: c.get(hdrSince)}
	sites, err := c.list()
	if err != nil {
		return nil, err
	}
	for _, s := range sites {
		o.Sites = append(o.Sites, Patched{Addr: s.addr, Orig: s.orig, Patch: s.patch, Points: s.points, reason: s.reason, name: s.name})
	}
	return o, nil
}

// findLayout finds a layout that is in force.
func (t *Target) findLayout() (*layout, *controlBlock, error) {
	dir, err := directoryOf(t.k, t.m, directoryName)
	if err != nil {
		return nil, nil, err
	}
	pa, mem := t.m.Shared()
	shared := extent{pa, mem}
	if mem != nil {
		if l, c := t.tryShared(shared, dir); l != nil {
			return l, c, nil
		}
	}
	if l, c := t.tryLow(dir); l != nil {
		return l, c, nil
	}
	dirs := []extent{dir}
	if old, err := directoryOf(t.k, t.m, directoryOld); err == nil { // where a kernel has none no entry was taken
		dirs = append(dirs, old)
	}
	return nil, nil, otherVersion(t.m, shared, dirs)
}

// otherVersion is an error if a layout of another version is in force. Its header alone says
// nothing: memory may keep it over a reboot.
func otherVersion(m phys.Memory, shared extent, dirs []extent) error {
	for _, dir := range dirs {
		for slot := range slots {
			v := le.Uint64(dir.mem[8*slot:])
			var header []byte
			if pa, table := lowTable(m, v); table != nil {
				header = m.Bytes(pa+pageSize, pageSize)
			} else if shared.pa != 0 && v&pteLarge != 0 && v&pteAddress&^(largePage-1)-shared.pa < uint64(len(shared.mem)) {
				header = shared.mem
			}
			if header != nil && newControl(header).other() {
				return errno.Errorf(unix.EBUSY, "the guest's kernel holds what another version of kprobe has left there: take it out with that one (kprobe detach), or reboot the guest")
			}
		}
	}
	return nil
}

// tryShared looks for a layout in ivshmem memory.
func (t *Target) tryShared(e extent, dir extent) (*layout, *controlBlock) {
	slot := newControl(e.mem).get(hdrSlot)
	if e.pa == 0 && slot < slots { // not known to who only reads: the entry for the code tells
		e.pa = le.Uint64(dir.mem[8*slot:])&pteAddress&^(largePage-1) - largePage
	}
	l, err := sharedLayout(e, t.k.CPUs())
	if err != nil {
		return nil, nil
	}
	c := newControl(l.control.mem)
	l.directory, l.count = dir, l.slotsWanted()
	if !c.valid() || slot > uint64(slots-l.count) {
		return nil, nil
	}
	l.at(int(slot))
	if !l.inForce() {
		return nil, nil
	}
	return l, c
}

// tryLow looks for a layout below 1 MiB: a page table whose first page is a control area.
func (t *Target) tryLow(dir extent) (*layout, *controlBlock) {
	for slot := range slots {
		pa, table := lowTable(t.m, le.Uint64(dir.mem[8*slot:]))
		if table == nil {
			continue
		}
		pages := 1
		for pages < slots && le.Uint64(table[8*(pages-1):])&pteAddress == pa+uint64(pages)*pageSize {
			pages++
		}
		mem := t.m.Bytes(pa, pages*pageSize)
		if mem == nil {
			continue
		}
		l, err := lowLayout(extent{pa, mem}, t.k.CPUs())
		if err != nil {
			continue
		}
		c := newControl(l.control.mem)
		if !c.valid() || c.get(hdrSlot) != uint64(slot) {
			continue
		}
		l.directory, l.count = dir, 1
		l.at(slot)
		return l, c
	}
	return nil, nil
}

// lowTable gives the page table that an entry of a directory leads to, if it lies below 1 MiB
// and its first page is the one behind it: the control area.
func lowTable(m phys.Memory, entry uint64) (pa uint64, table []byte) {
	pa = entry & pteAddress
	if entry&^pteAddress != pteTable || pa >= lowEnd {
		return 0, nil
	}
	table = m.Bytes(pa, pageSize)
	if table == nil || le.Uint64(table) != (pa+pageSize)|pteRead {
		return 0, nil
	}
	return pa, table
}

// lowEnd is the end of the memory that Linux never uses.
const lowEnd = 1 << 20

// Alive says whether the tracer that made it still runs. One that has ended does not, though nobody may have waited for it, and one that is
// about to is waited for.
func (l *Leftover) Alive() bool {
	if l.Holder == 0 {
		return false
	}
	pid := int(l.Holder)
	since, err := startTime(pid)
	return err == nil && since == l.Since && !procfs.AwaitEnd(pid)
}

// stateOptimized is the State of a site whose patch stands.
const stateOptimized = "[OPTIMIZED]"

// State tells how a site stands at present: [OPTIMIZED], [DISABLED], or what is there that is
// neither the patch nor the original.
func (l *Leftover) State(p *Patched) string {
	have := make([]byte, len(p.Patch))
	err := l.t.k.Read(p.Addr, have)
	switch {
	case len(p.Patch) == 0:
		return "postponed: queued: a thread is in the way of a jump"
	case err != nil:
		return "[GONE]"
	case bytes.Equal(have, p.Patch):
		return stateOptimized
	case bytes.Equal(have, p.Orig):
		return "[DISABLED]"
	}
	return fmt.Sprintf("[FOREIGN % x]", have)
}

// Undone is what Undo did.
type Undone struct {
	Restored int      // sites
	Foreign  []uint64 // places that hold bytes that are neither the kernel's nor ours, left alone
}

// Undo restores every byte and takes code and ring out of the guest's kernel. Precondition:
// the tracer that made it is gone.
func (l *Leftover) Undo() (Undone, error) {
	var u Undone
	if err := l.t.stopped(func(s *qemu.Stop) (err error) {
		u, err = l.undoStopped(s)
		return err
	}); err != nil {
		return u, err
	}
	if len(u.Foreign) > 0 {
		return u, nil // their code must stay
	}
	return u, l.t.drain(l.lay)
}

// undoStopped restores every byte. Precondition: the vCPUs are stopped.
func (l *Leftover) undoStopped(s *qemu.Stop) (u Undone, err error) {
	var sites []patch.Entry
	for _, p := range l.Sites {
		if len(p.Patch) > 0 {
			sites = append(sites, patch.Entry{Addr: p.Addr, Orig: p.Orig, Patch: p.Patch})
		}
	}
	ws, restored, foreign := patch.Restore(sites, l.t.k.Read)
	u.Restored, u.Foreign = restored, foreign
	return u, l.t.writeTexts(s, ws)
}
