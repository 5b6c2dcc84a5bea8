package guest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/guest/kernel"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// tries are the attempts at a change that a thread blocks.
var tries = patch.Tries{N: 50, Wait: 2 * time.Millisecond, Most: 20 * time.Millisecond}

// ErrBlocked says that a thread of the guest stands, or may go on, where a change would harm
// it.
var ErrBlocked = target.ErrBlocked

// ErrForeign says that bytes of the guest's kernel are neither what they were nor ours.
var ErrForeign = errors.New("the kernel's code is not what it was: somebody else patched it")

// Commit makes a change in one stop of the vCPUs, or in several attempts if a thread is in
// the way.
func (t *Target) Commit(c *target.Change) error {
	c.Begin()
	t.inLine.wake()
	if err := t.writeDetours(c.Open().Add); err != nil {
		return err
	}
	var err error
	for range tries.All() {
		if err = t.stopped(func(s *qemu.Stop) error { return t.commitStopped(s, c) }); c.Once || !patch.Again(c, err) && !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	return err
}

// codeStep is how much code is written in one stop, in bytes: about a millisecond.
const codeStep = 128 << 10

// writeDetours puts the code of new sites where nobody runs yet, in stops of their own. A device's
// memory that has never been executed is written at once. After a reset nothing is written: memory
// below 1 MiB is the boot loader's then.
func (t *Target) writeDetours(add []*target.Site) error {
	if err := t.alive(); err != nil {
		return err
	}
	var pending []*target.Site
	size := 0
	flush := func() error {
		if len(pending) == 0 {
			return nil
		}
		ws := pending
		pending, size = nil, 0
		return t.stopped(func(s *qemu.Stop) error {
			if err := t.alive(); err != nil {
				return err
			}
			writes := make([]qemu.Write, len(ws))
			for i, a := range ws {
				t.mark(a.Detour)
				writes[i] = qemu.Write{PA: t.codePhys(a.Detour.Addr), Data: a.Detour.Code}
			}
			return s.WriteAll(writes)
		})
	}
	for _, a := range add {
		if t.fresh(a.Detour) {
			t.mark(a.Detour)
			copy(t.lay.code.mem[a.Detour.Addr-t.lay.code.va:], a.Detour.Code)
			continue
		}
		pending = append(pending, a)
		if size += len(a.Detour.Code); size >= codeStep {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// writeCode puts code where nobody runs yet.
func (t *Target) writeCode(addr uint64, code []byte) error {
	return t.writeDetours([]*target.Site{{Detour: &arch.Detour{Addr: addr, Code: code}}})
}

// fresh says whether code that is written there can not be known to QEMU yet.
func (t *Target) fresh(d *arch.Detour) bool {
	return t.lay.shared && d.Addr-t.lay.code.va >= t.control.get(hdrMark) // below 1 MiB nobody knows what ran there before
}

// mark notes that code may be known to QEMU from now on.
func (t *Target) mark(d *arch.Detour) {
	end := d.Addr - t.lay.code.va + uint64(len(d.Code))
	t.control.put(hdrMark, max(t.control.get(hdrMark), end))
}

func (t *Target) codePhys(addr uint64) uint64 { return t.lay.code.pa + addr - t.lay.code.va }

// write is one run of bytes that a change writes.
type write = patch.Write

// commitStopped makes the change. Precondition: the vCPUs are stopped.
func (t *Target) commitStopped(s *qemu.Stop, whole *target.Change) error {
	if err := t.alive(); err != nil {
		return err
	}
	whole.Begin()
	if err := t.look(s, whole); err != nil {
		return err
	}
	c := whole.Open()
	writes, foreign, err := t.writes(c)
	if err != nil {
		return err
	}
	if err := t.control.add(c.Add); err != nil {
		t.control.clear(c.Add)
		return err
	}
	if err := t.writeTexts(s, writes); err != nil {
		for i := range writes {
			writes[i].New = writes[i].Old
		}
		if e := t.writeTexts(s, writes); e != nil {
			return errors.Join(err, e) // the entries stay: they tell what may stand there
		}
		t.control.clear(c.Add)
		return err
	}
	t.foreign = append(t.foreign, foreign...)
	gone := slices.DeleteFunc(slices.Clone(c.Remove), func(r *target.Site) bool { return slices.Contains(foreign, r) })
	t.control.clear(gone)
	t.retire(gone)
	if c.Then == nil {
		return nil
	}
	t.held = s
	defer func() { t.held = nil }()
	return c.Then()
}

// writeTexts writes code of the guest's kernel so that QEMU takes note of it. Precondition:
// the vCPUs are stopped.
func (t *Target) writeTexts(s *qemu.Stop, ws []write) error {
	var out []qemu.Write
	for _, w := range ws {
		for addr, b := w.Addr, w.New; len(b) > 0; {
			pa, err := physical(t.k, addr)
			if err != nil {
				return err
			}
			n := min(len(b), int(pageSize-addr%pageSize))
			out = append(out, qemu.Write{PA: pa, Data: b[:n]})
			addr, b = addr+uint64(n), b[n:]
		}
	}
	return s.WriteAll(out)
}

// writes makes the list of what a change writes, and checks that what stands there is what
// is expected. foreign are the sites to be removed that somebody else has patched over: the kernel's own breakpoints, too,
// are not known to be taken out by who has put them there.
// Precondition: the vCPUs are stopped.
func (t *Target) writes(c *target.Change) (ws []write, foreign []*target.Site, err error) {
	runs, err := patch.Runs(c.Add, c.Remove, patch.Joined)
	if err != nil {
		return nil, nil, err
	}
	for i := range runs {
		r := &runs[i]
		err := t.k.Read(r.Addr, r.Have)
		switch {
		case errors.Is(err, unix.EFAULT) && !r.Adds(): // its module has gone, and the bytes with it
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("the bytes at 0x%x: %w", r.Addr, err)
		}
		if site := r.Resolve(nil); site != nil {
			return nil, nil, r.Foreign(site, ErrForeign)
		}
		r.Left(func(site *target.Site) { foreign = append(foreign, site) })
		if r.Changed() {
			ws = append(ws, write{Addr: r.Addr, Old: r.Have, New: r.New})
		}
	}
	return ws, foreign, nil
}

// Note tells in the guest's memory of probes that wait to be armed.
func (t *Target) Note(waiting []*target.Site) error {
	if t.lay == nil {
		return nil
	}
	all, fresh, over := target.Notes(t.notes, waiting)
	t.control.clear(over)
	if err := t.control.add(fresh); err != nil {
		t.notes = slices.DeleteFunc(all, func(s *target.Site) bool { return slices.Contains(fresh, s) })
		return err
	}
	t.notes = all
	return nil
}

// Forget drops sites whose code is not there any more: nothing is left to restore.
func (t *Target) Forget(sites []*target.Site) error {
	t.control.clear(sites)
	t.retire(sites)
	return nil
}

// look finds out whether a thread stands, or may go on, where the change would harm it, and
// frees the detours of removed sites that nobody is in. Groups that a thread is in the way of
// are marked as blocked. Precondition: the vCPUs are stopped.
func (t *Target) look(s *qemu.Stop, c *target.Change) error {
	open := c.Open()
	threads := patch.NewThreads(open.Add, open.Remove, t.zombie, patch.Policy{EveryByte: true})
	retired := patch.NewRetired(t.zombie)
	blocks := target.Blocks{}
	err := t.words(s, func(at where, v uint64) {
		retired.Mark(v)
		if !threads.Returning(v) {
			return
		}
		threads.Blocked(v, func(a *target.Site, inDetour bool) {
			if inDetour {
				blocks.Block(a, at.busy(v, "it may go on in a detour that goes back into bytes that change"))
			} else {
				blocks.Block(a, at.busy(v, "it may go on inside bytes that change"))
			}
		})
	})
	if err != nil {
		return err
	}
	t.reclaim(retired)
	return c.LeaveOut(blocks)
}

// where tells of a word whose it is: a vCPU's, in a register, or a thread's, on its stack.
type where struct {
	cpu int
	t   *kernel.Task // nil: the vCPU's
}

func (w where) String() string {
	if w.t == nil {
		return fmt.Sprintf("vCPU %d", w.cpu)
	}
	return fmt.Sprintf("thread %d (%s)", w.t.PID, w.t.Comm)
}

func (w where) busy(addr uint64, why string) error {
	e := &target.BusyError{Addr: addr, Why: why}
	if w.t != nil {
		e.TID = w.t.PID
	}
	return e
}

// words gives the instruction pointers of all vCPUs and every word that may be a thread's way
// back. Precondition: the vCPUs are stopped.
func (t *Target) words(s *qemu.Stop, f func(at where, v uint64)) error {
	cpus, sps, err := registers(s)
	if err != nil {
		return err
	}
	return t.wordsOf(cpus, sps, f)
}

// registers reads those of all vCPUs, and lists the stack pointers by the numbers of the CPUs.
func registers(s *qemu.Stop) (cpus []qemu.CPU, sps []uint64, err error) {
	if cpus, err = s.CPUs(); err != nil {
		return nil, nil, err
	}
	sps = make([]uint64, len(cpus))
	for i := range cpus {
		sps[cpus[i].Index] = cpus[i].SP()
	}
	return cpus, sps, nil
}

// wordsOf is words for registers that were read.
func (t *Target) wordsOf(cpus []qemu.CPU, sps []uint64, f func(at where, v uint64)) error {
	for i := range cpus {
		c := &cpus[i]
		at := where{cpu: c.Index}
		f(at, c.PC())
		for _, v := range c.Pointers() {
			f(at, v) // the gate has its way back in one of them
		}
	}
	return t.k.Interrupted(sps, func(t *kernel.Task, v uint64) { f(where{t: t}, v) })
}

// reclaim frees the detours of removed sites that nobody is in.
func (t *Target) reclaim(r *patch.Retired) {
	busy, free := r.Split()
	for _, z := range free {
		if t.mail != nil {
			t.mail.Reclaim(z)
		}
		t.inLine.reclaim(z)
		t.FreeCode(z.Detour.Addr, z.Room)
	}
	t.zombie = busy
}

// Idle says whether no thread was in the code of a site that was removed, when that was last
// looked at.
func (t *Target) Idle() bool { return len(t.zombie) == 0 }
