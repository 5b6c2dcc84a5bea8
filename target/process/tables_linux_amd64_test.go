package process

import (
	"bytes"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/testprog"
)

// TestTablesBeforeTheStop: what Prepare was told of has room in the tables, their pages are there before the stop, and
// what the tables hold already stays.
func TestTablesBeforeTheStop(t *testing.T) {
	const many = 5000 // more than the control block has in its first table
	tg := preparedFor(t, many)
	p, at := tg.p, tg.module[0].lo
	h, f := tg.control, tg.faults
	h.more = func(size uint64) (uint64, error) {
		t.Errorf("%d bytes are mapped for the tables", size)
		return 0, ErrNoGap
	}
	sites := sitesFrom(at, many)
	own, asked := sites[:1], sites[1:]
	for _, c := range [][]*target.Site{own, sites} { // as for a change, and one behind it in the same stop
		f.plan(c)
	}
	if err := tg.touchTables(sites); err != nil {
		t.Fatal(err)
	}
	madePages(t, p, "sites", h.entry(0), firstSites*siteSize)
	madePages(t, p, "sites behind them", h.entry(firstSites), (many-firstSites)*siteSize)
	madePages(t, p, "faults", f.tableAt(f.second), many*amd64.FaultEntrySize)
	table := func() []byte {
		b := make([]byte, f.written)
		if err := p.ReadMem(f.tableAt(f.second), b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, c := range [][]*target.Site{own, asked} {
		for _, s := range c {
			f.live[s] = true
		}
		if err := f.writeTable(); err != nil {
			t.Fatal(err)
		}
		if err := h.add(c, entriesOf(c)); err != nil {
			t.Fatal(err)
		}
		f.planned = nil
		f.plan(own)
		f.plan(own)
		before := table()
		if err := tg.touchTables(sites[:manySites]); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(table(), before) || !bytes.Equal(before, encodeFaults(f.entries(nil))) {
			t.Errorf("%d sites: the table of faults in use has changed", len(f.live))
		}
		if got, err := h.list(); err != nil || len(got) != len(f.live) {
			t.Errorf("%d sites are listed, of %d: %v", len(got), len(f.live), err)
		}
	}
	if err := h.clear(sites); err != nil {
		t.Fatal(err)
	}
	if err := tg.Close(); err != nil {
		t.Error(err)
	}
}

// madePages checks that all pages of a piece of memory are there.
func madePages(t *testing.T, p *ptrace.Process, what string, lo, size uint64) {
	t.Helper()
	for page := procfs.PageDown(lo); page < lo+size; page += procfs.PageSize {
		if len(p.Present(page, page+procfs.PageSize)) == 0 {
			t.Fatalf("%s: no page is at 0x%x, of 0x%x to 0x%x", what, page, lo, lo+size)
		}
	}
}

// preparedFor makes a process a target with room for as many sites.
func preparedFor(t *testing.T, many int) *Target {
	t.Helper()
	prog := testprog.Start(t, testprog.Build(t, "crowd"), "1")
	p, err := OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	tg, err := Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := tg.module[0].lo
	tg.Reserve([]target.Room{{Lo: at, Hi: at + 1, Size: 1 << 20, Sites: many}})
	if err := tg.Prepare(); err != nil {
		t.Fatal(err)
	}
	return tg
}

// sitesFrom makes sites of which only the tables tell.
func sitesFrom(at uint64, many int) []*target.Site {
	sites := make([]*target.Site, many)
	for i := range sites {
		copied := 0x10000 + uint64(i)*64
		sites[i] = &target.Site{Addr: at + uint64(i)*16, Orig: []byte{1, 2, 3, 4, 5}, Patch: []byte{6, 7, 8, 9, 10}, Detour: &arch.Detour{
			Addr: copied, Pairs: []arch.Pair{{Orig: at + uint64(i)*16, Copy: copied, CopyEnd: copied + 4}},
		}}
	}
	return sites
}
