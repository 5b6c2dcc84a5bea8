package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/guest/phys"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// Close takes out what Prepare put in, once all sites have been removed. Records can still be
// read. Code that a thread may come back to stays mapped: ErrInDetour; so it does where somebody
// else has patched over one of our patches: ErrForeign.
//
// EBUSY: some sites have not been removed. All stays then and works on, handlers too: the machine
// must stay open as long as counts or records are read or a handler may be called. After any other
// error it may be closed.
func (t *Target) Close() error {
	if t.lay == nil {
		return nil
	}
	if n := t.standing(); n > 0 && t.alive() == nil {
		return errno.Errorf(unix.EBUSY, "%d patches still stand in the guest's kernel: the code that they lead to stays", n)
	}
	t.closeMailbox()
	if len(t.foreign) > 0 && t.alive() == nil {
		t.ring.Keep()
		t.control.put(hdrHolder, 0)
		t.release()
		return fmt.Errorf("the bytes at %s were changed by somebody else, and left alone with the code that they lead to: when they are ours again kprobe detach takes them out: %w",
			places(t.foreign), ErrForeign)
	}
	err := t.drain(t.lay)
	if errors.Is(err, target.ErrGone) {
		err = nil
	}
	t.ring.Keep() // the machine may be closed before its counters are read
	stays := errors.Is(err, ErrInDetour)
	if err != nil && !stays {
		return err
	}
	if stays {
		t.lay.leave()
	}
	t.lay, t.mail, t.adopted, t.notes, t.pools = nil, nil, nil, nil, nil
	t.release()
	return err
}

// standing is the number of our patches that stand and that nobody else has patched over.
func (t *Target) standing() int {
	n := len(t.control.sites) - len(t.notes)
	for _, s := range t.foreign {
		if _, ok := t.control.sites[s]; ok {
			n--
		}
	}
	return n
}

func places(sites []*target.Site) string {
	var b bytes.Buffer
	for i, s := range sites {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "0x%x", s.Addr)
	}
	return b.String()
}

// drain takes the layout out of the guest once nobody is in its code.
func (t *Target) drain(l *layout) error {
	var err error
	for i := range drainTries {
		if i > 0 {
			time.Sleep(drainWait)
		}
		if err = t.stopped(func(s *qemu.Stop) error { return t.drainStopped(s, l) }); !errors.Is(err, ErrInDetour) {
			return err
		}
	}
	return err
}

// drainStopped takes the layout out. Precondition: the vCPUs are stopped.
func (t *Target) drainStopped(s *qemu.Stop, l *layout) error {
	if err := t.alive(); err != nil {
		return err
	}
	letWaitersGo(l, t.k.CPUs())
	var busy error
	if err := t.words(s, func(at where, v uint64) {
		if v-l.code.va < uint64(len(l.code.mem)) {
			busy = fmt.Errorf("%w: %v, at 0x%x", ErrInDetour, at, v)
		}
	}); err != nil {
		return err
	}
	if busy != nil {
		return busy
	}
	l.remove()
	if l.shared {
		l.leave()
		return nil
	}
	if t.ring != nil && t.lay == l {
		t.ring.Keep() // its records may still be read
	}
	for _, p := range []part{l.table, l.code, l.data, l.ring, l.control} {
		clear(p.mem) // the pages were zero
	}
	return nil
}

// leave marks the layout as not in use; what it tells of code stays.
func (l *layout) leave() {
	c := newControl(l.control.mem)
	c.put(hdrSites, 0)
	c.put(hdrHolder, 0)
	c.put(hdrMail, 0)
}

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

// Alive says whether the tracer that made it still runs.
func (l *Leftover) Alive() bool {
	if l.Holder == 0 {
		return false
	}
	since, err := startTime(int(l.Holder))
	return err == nil && since == l.Since
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
		return "postponed: a thread is in the way of a jump"
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

// errClaimed says that another engine of this process is at work in the guest.
var errClaimed = errno.Errorf(unix.EBUSY, "another engine of this process holds the guest's kernel: close that one first")

// Recover takes out what a killed tracer has left. EBUSY: one that lives holds the guest's kernel, be
// it of this process.
func (t *Target) Recover() error {
	if t.lay != nil || t.clean {
		return nil
	}
	if err := t.claim(); err != nil {
		return err
	}
	defer t.release()
	return t.recover()
}

// claim takes the machine for this engine. EBUSY: another one of this process has it.
func (t *Target) claim() error {
	if !t.claims && !t.m.Claim() {
		return errClaimed
	}
	t.claims = true
	return nil
}

// release ends what claim has begun.
func (t *Target) release() {
	if t.claims {
		t.m.Release()
	}
	t.claims = false
}

// recover is Recover. Precondition: the machine is claimed.
func (t *Target) recover() error {
	if err := t.alive(); err != nil || t.clean {
		return err
	}
	err := t.undoLeftovers()
	t.clean = err == nil
	return err
}

// undoLeftovers takes out what a tracer has left that is gone: no other process has the machine
// (its lock), and no other engine of this one (its claim), so that what names this process as its
// holder was left by an engine that has closed the machine.
func (t *Target) undoLeftovers() error {
	l, err := t.FindLeftover()
	if err != nil || l == nil {
		return err
	}
	if l.Alive() && l.Holder != uint64(os.Getpid()) {
		return errno.Errorf(unix.EBUSY, "the guest's kernel holds probes of process %d, which still runs", l.Holder)
	}
	u, err := l.Undo()
	if errors.Is(err, ErrInDetour) {
		l.lay.leave()
		t.adopted = l.lay // its patches are gone; ours go behind its code
		return nil
	}
	if err == nil && len(u.Foreign) > 0 {
		err = fmt.Errorf("0x%x: %w", u.Foreign, ErrForeign)
	}
	if err != nil {
		return fmt.Errorf("probes that an earlier tracer (pid %d) left in the guest can not be taken out: %w", l.Holder, err)
	}
	return nil
}

// startTime is the start time of a process, in clock ticks after boot.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	st, err := procfs.ParseStat(string(b))
	return st.Start, err
}
