package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/testprog"
)

// A table of faults that was made before a stop is taken only if just those sites have come that it was made for.
func TestPlannedFaultsOfOtherSites(t *testing.T) {
	var sites []*target.Site
	for i := range uint64(4) {
		at := 0x1000 * (i + 1)
		sites = append(sites, &target.Site{Addr: at, Detour: &arch.Detour{Addr: at + 0x100, Pairs: []arch.Pair{{Orig: at, Copy: at + 0x110, CopyEnd: at + 0x114}}}})
	}
	f := &faultTable{t: new(Target), live: map[*target.Site]bool{sites[0]: true}}
	f.plan(sites[1:3])
	f.live[sites[1]], f.live[sites[3]] = true, true
	if want := encodeFaults(f.entries(nil)); !bytes.Equal(f.encoded(), want) {
		t.Error("the table is that of other sites")
	}
	delete(f.live, sites[3])
	f.live[sites[2]] = true
	if want := encodeFaults(f.entries(nil)); !bytes.Equal(f.encoded(), want) || &f.encoded()[0] != &f.planned[0].table[0] {
		t.Error("the table that was planned is not taken")
	}
}

// A thread in the detour of a probe on what makes threads share blocks was moved there, perhaps, behind the probe's work: it
// may be about to share its block.
func TestCheckOwnInDetour(t *testing.T) {
	_, tg := prepared(t)
	i := slices.IndexFunc(tg.Sharers(), func(s target.Sharing) bool { return s.Share == arch.ShareVfork })
	if i < 0 {
		t.Fatal("vfork is not to be probed")
	}
	const detour = 0x10000
	site := &target.Site{Addr: tg.Sharers()[i].Place.Addr, Detour: &arch.Detour{Addr: detour, Code: make([]byte, 64)}}
	shared := func(rip uint64) bool {
		var b [8]byte
		inStop(t, tg, func(s *ptrace.Stopped) error {
			th := s.Threads()[0]
			was := th.Regs()
			there := was
			if rip != 0 {
				there.RIP = rip
			}
			tg.control.sites[site] = 0
			defer delete(tg.control.sites, site)
			return errors.Join(th.SetRegs(there), tg.CheckOwn(), tg.p.ReadMem(tg.writer.Shared, b[:]), th.SetRegs(was))
		})
		return b[0] != 0
	}
	if shared(0) || shared(detour+64) {
		t.Fatal("all threads have blocks of their own")
	}
	if !shared(detour + 8) {
		t.Error("a thread in the detour of vfork's probe is taken for one that keeps its block for itself")
	}
	if err := tg.Close(); err != nil {
		t.Error(err)
	}
}

// plantSite makes a site of one byte on a page of the program's, with room for its detour.
func plantSite(t *testing.T, tg *Target, at uint64, orig byte) *target.Site {
	t.Helper()
	text := tg.module[0].lo
	addr, err := tg.Code(text, text+1, 64)
	if err != nil {
		t.Fatal(err)
	}
	return &target.Site{Addr: at, Orig: []byte{orig}, Patch: []byte{0x90}, Room: 64, Detour: &arch.Detour{Addr: addr, Code: bytes.Repeat([]byte{0x90}, 16)}}
}

// Of two changes of one stop the first is made and the second is not: what the first took out is as if it had come alone, its
// detour free, and the memory goes at the end. CloseStopped does not take that away while a site stands.
func TestNextNotMade(t *testing.T) {
	prog, tg := prepared(t)
	at := plant(t, tg, 0x1111, 0x2222, 0x3333)
	one, two := plantSite(t, tg, at, 0x11), plantSite(t, tg, at+8, 0x22)
	if err := tg.Commit(&target.Change{Add: []*target.Site{one, two}}); err != nil {
		t.Fatal(err)
	}
	wrong := plantSite(t, tg, at+16, 0x44) // not what stands there
	called := 0
	last := &target.Change{Add: []*target.Site{wrong}, Then: func() error { called++; return nil }}
	first := &target.Change{Remove: []*target.Site{one}, Next: last, Then: func() error {
		called++
		tg.CloseStopped()
		if tg.control == nil {
			t.Fatal("all is taken out with a site armed")
		}
		return nil
	}}
	if err := tg.Commit(first); !errors.Is(err, ErrForeign) || !first.Made || last.Made || called != 1 {
		t.Errorf("%v; first: %v, last: %v, %d calls", err, first.Made, last.Made, called)
	}
	if got := planted(t, tg.p, at, 3); !slices.Equal(got, []uint64{0x1111, 0x2290, 0x3333}) {
		t.Errorf("%#x", got)
	}
	if _, there := tg.control.sites[one]; there || len(tg.control.sites) != 1 || len(tg.gone) > 0 || tg.plans != nil || tg.held.Load() != nil {
		t.Errorf("entries of %d sites, of the one that is out: %v", len(tg.control.sites), there)
	}
	if len(tg.zombie) > 0 || tg.faults.dirty || tg.faults.gone || len(tg.faults.live) != 1 || tg.faults.planned != nil {
		t.Errorf("%d detours are held, the tables are not written: %v", len(tg.zombie), tg.faults.dirty)
	}
	tg.FreeCode(wrong.Detour.Addr, wrong.Room)
	closing := &target.Change{Remove: []*target.Site{two}, Then: func() error { tg.CloseStopped(); return nil }}
	if err := tg.Commit(closing); err != nil || tg.control != nil {
		t.Errorf("%v; all is out: %v", err, tg.control == nil)
	}
	if got := planted(t, tg.p, at, 3); !slices.Equal(got, []uint64{0x1111, 0x2222, 0x3333}) {
		t.Errorf("%#x", got)
	}
	maps, err := tg.p.Maps()
	if err != nil || slices.ContainsFunc(maps, ours) {
		t.Errorf("memory is left: %v", err)
	}
	if err := tg.Close(); err != nil {
		t.Error(err)
	}
	prog.Counts("go 10")
}

// The pages of the ring that records go to are in the process's page tables before the first record comes, in a program of
// any kind, though no thread of it has touched them.
func TestRingIsWarm(t *testing.T) {
	for _, prog := range []*testprog.Proc{testprog.Start(t, testprog.Build(t, "work"), "2"), testprog.Start(t, testprog.Build(t, "gowork"), "2")} {
		p, err := OpenUnwaited(prog.PID)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		tg, err := Attach(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := tg.Prepare(); err != nil {
			t.Fatal(err)
		}
		size := tg.writer.Layout.Data
		if !tg.writer.HasRseq {
			size = 8 * tg.writer.Layout.LockedUnits()
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", prog.PID))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), ringName)
		_, rest, _ = strings.Cut(rest, "\nRss:")
		var resident uint64
		if _, err := fmt.Sscan(rest, &resident); err != nil {
			t.Fatal(err)
		}
		if want := size * uint64(len(tg.mem.cpus)) >> 10; resident < want || want == 0 {
			t.Errorf("%d KiB of the ring are in the page tables, want %d", resident, want)
		}
		if err := tg.Close(); err != nil {
			t.Error(err)
		}
	}
}
