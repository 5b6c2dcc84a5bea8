package process

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/target"
)

// trapEntry is an entry of the table of breakpoints.
type trapEntry struct{ at, to uint64 }

// trapEntries makes the table's contents: all breakpoints, and once there are some all
// instructions of other sites. A thread may have run a breakpoint at one of these, before a jump
// replaced it, and have yet to take the signal. What is going counts where nothing takes its
// place: its detour may go back to inside a new patch.
func (f *faultTable) trapEntries(going []*target.Site) []trapEntry {
	any := f.traps
	for site := range f.live {
		any = any || site.Trap
	}
	if !any {
		return nil
	}
	last := map[*target.Site]bool{}
	for _, g := range going {
		last[g] = f.live[g]
	}
	for _, z := range f.t.zombie {
		last[z] = false
	}
	var out []trapEntry
	for site := range f.live {
		if _, ok := last[site]; !ok {
			out = appendTraps(out, site)
		}
	}
	for site, there := range last {
		if there {
			out = appendTraps(out, site)
		}
	}
	slices.SortStableFunc(out, func(a, b trapEntry) int { return cmp.Compare(a.at, b.at) })
	return slices.CompactFunc(out, func(a, b trapEntry) bool { return a.at == b.at })
}

// appendTraps appends a site's entries: where a thread goes on that has run a breakpoint at one
// of its instructions.
func appendTraps(out []trapEntry, site *target.Site) []trapEntry {
	out = append(out, trapEntry{site.Addr, site.Detour.Addr})
	for _, p := range site.Detour.Pairs {
		if site.Inside(p.Orig) {
			out = append(out, trapEntry{p.Orig, site.Detour.Begin(p)})
		}
	}
	return out
}

// writeTraps brings the table of breakpoints up to date: the one that is not in use is written,
// as of the other table. going are sites that are about to be taken out.
func (f *faultTable) writeTraps(going []*target.Site) error {
	traps := f.trapEntries(going)
	if len(traps) == 0 && !f.traps {
		return nil
	}
	b := make([]byte, 0, len(traps)*native.TrapEntrySize)
	for _, e := range traps {
		b = binary.LittleEndian.AppendUint64(b, e.at)
		b = binary.LittleEndian.AppendUint64(b, e.to)
	}
	if len(traps) > f.trapRoom {
		n := max(256, 2*len(traps))
		a, err := f.t.control.alloc(2 * uint64(n) * native.TrapEntrySize)
		if err != nil {
			return fmt.Errorf("table of breakpoints: %w", err)
		}
		f.trapTable, f.trapRoom = a, n
	}
	f.trapSecond = !f.trapSecond
	at := f.trapTable
	if f.trapSecond {
		at += uint64(f.trapRoom) * native.TrapEntrySize
	}
	if err := f.t.p.WriteMem(at, b); err != nil {
		return err
	}
	head := binary.LittleEndian.AppendUint64(nil, at)
	return f.t.p.WriteMem(f.t.control.addr+hdrTraps, binary.LittleEndian.AppendUint64(head, uint64(len(traps))))
}
