package process

import (
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/headroom"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/target"
)

// What is written while the process stands is written to pages that are there already: to map the memory of a table, and
// to have the kernel make its pages, takes several times as long as the write.

// entriesOfSite is how many entries of the table of faults a site is guessed to take.
const entriesOfSite = 4

// planTables decides what the control block is to have room for in its tables: the sites that Prepare was told of, and those of the
// engine's own probes. A guess is given up where the process has no room for it.
func (t *Target) planTables() {
	t.sites += len(t.sharers) + len(installers)
	if t.sites = min(t.sites, maxSites); t.sites < manySites {
		t.sites = 0
		return
	}
	size := t.roomForTables()
	if t.checkRoom("tables of probes", headroom.Take{Charged: size, Ours: size, Mapped: size, Private: size, Locked: size}) != nil {
		t.sites = 0
	}
}

// roomForTables is what the tables of the sites that are planned take beside the room that every control block has.
func (t *Target) roomForTables() (size uint64) {
	for k := 1; firstSites<<(k-1) < t.sites; k++ {
		size += uint64(tableSites(k)) * siteSize
	}
	return procfs.PageUp(size + 2*uint64(t.sites*entriesOfSite)*native.FaultEntrySize)
}

// reserveTables takes the room that planTables has decided on. Precondition: the world is stopped.
func (t *Target) reserveTables() error {
	if t.sites == 0 {
		return nil
	}
	if err := t.control.reserve(t.sites); err != nil {
		return err
	}
	return t.faults.reserve(t.sites * entriesOfSite)
}

// manySites is from how many sites on the tables' pages are made before the stop: fewer have entries on one or two.
const manySites = 128

// touchTables makes the pages that the planned changes write to, by zeros where no table has an entry yet. Precondition:
// the process may run.
func (t *Target) touchTables(add []*target.Site) error {
	if t.control == nil || len(add) < manySites {
		return nil
	}
	t.control.grow(len(add))
	end := min(t.control.used+len(add), t.control.capacity())
	for at := t.control.used; at < end; {
		n := min(end, t.control.tableEnd(at)) - at
		if err := t.zeros(t.control.entry(at), uint64(n)*siteSize); err != nil {
			return err
		}
		at += n
	}
	return t.faults.touch()
}

// touch is touchTables for the two tables of faults, which are written by turns: the first plan to the one that is out of
// use, the second to the one that has entries now, up to a number.
func (f *faultTable) touch() error {
	for i, p := range f.planned[:min(len(f.planned), 2)] {
		from, size, second := 0, len(p.table), !f.second
		if i == 1 {
			from, second = min(f.written, size), f.second
		}
		if f.table == 0 || size > f.capacity*native.FaultEntrySize {
			return nil
		}
		if err := f.t.zeros(f.tableAt(second)+uint64(from), uint64(size-from)); err != nil {
			return err
		}
	}
	return nil
}

// zeros writes zeros.
func (t *Target) zeros(at, size uint64) error {
	zero := make([]byte, min(size, 16*procfs.PageSize))
	for size > 0 {
		n := min(size, uint64(len(zero)))
		if err := t.p.WriteMem(at, zero[:n]); err != nil {
			return err
		}
		at, size = at+n, size-n
	}
	return nil
}
