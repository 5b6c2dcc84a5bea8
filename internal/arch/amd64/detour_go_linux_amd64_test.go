package amd64

import (
	"fmt"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// A g and an m in the arena, laid out as the offsets say.
const (
	arenaG = arenaActions + 0x1000
	arenaM = arenaActions + 0x1100
)

// TestDetourGo runs a function of a Go program that does not check its stack: with room
// enough it is recorded under its goroutine, with less it is missed and nothing below
// the stack's low end is touched. A thread without a g is missed too.
func TestDetourGo(t *testing.T) {
	child := buildDetourChild(t)
	const tid, goid = 4321, 99
	for _, c := range []struct {
		name    string
		g       uint64
		room    uint64 // between the low end of the stack and its pointer
		blocked uint64 // detourControl.Blocked
		missed  bool
	}{
		{"room", arenaG, 4096, 0, false},
		{"checked_loads", arenaG, 4096, 1, false},
		{"little", arenaG, 64, 0, true},
		{"nearly_enough", arenaG, 136, 1, true},
		{"beyond", arenaG, 0, 0, true},
		{"no_goroutine", 0, 4096, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newArena(t, child)
			a.w.HasRseq, a.w.TID, a.ctl.Blocked = false, arch.TIDGo, c.blocked
			a.w.Go = &arch.GoRuntime{TLS: child.gOff, StackLo: 0, StackHi: 8, M: 0x30, GoID: 0x98, ProcID: 0x48}
			low := arenaStack - c.room
			a.put64(arenaG, low, arenaStack+0x1000)
			a.put64(arenaG+0x30, arenaM)
			a.put64(arenaG+0x98, goid)
			a.put64(arenaM+0x48, tid)
			for p := low - 256; p < low; p += 8 {
				a.put64(p, 0x5afe5afe5afe5afe)
			}
			arg := fetch.Arg{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RAX)}, Size: 8}
			deref := fetch.Arg{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(RDI)}, Derefs: []int64{0}, Size: 8, Off: 8}
			prog := &fetch.Program{Fixed: 16, Args: []fetch.Arg{arg, deref}}
			// mov %rdi,%rax; add $7,%rax; ret: RAX is free at the entry, and an argument
			a.probe(hexBytes(t, "4889f8 4883c007 c3"), map[uint64][]arch.ProbeOp{0: {{Event: 1, Prog: prog}}}, arch.Policy{Force: arch.TacticJump})
			a.handler()
			a.ctl.Hole, a.ctl.G, a.ctl.Free = arenaHole, c.g, uint64(Set(R12, R13))
			a.put64(arenaData+0x10, 0xfeed)
			a.add([16]uint64{RSP: arenaStack, RAX: 0x1234, RDI: arenaData + 0x10}, 0x202)
			a.add([16]uint64{RSP: arenaStack, RAX: 0x1234, RDI: arenaHole}, 0x202)
			a.run()
			for p := low - 256; p < low; p += 8 {
				if a.get64(p) != 0x5afe5afe5afe5afe {
					t.Fatalf("%d bytes below the stack's end are written", low-p)
				}
			}
			recs := a.records()
			if missed := a.counted(1, ring.CtrMissed); (missed == 2) != c.missed || uint64(len(recs))+missed != 2 {
				t.Fatalf("%d records, %d missed", len(recs), missed)
			}
			for i, rec := range recs {
				have := fmt.Sprint(rec.tid, u64At(rec.rec, 16), u64At(rec.rec, 24), u64At(rec.rec, 32))
				want := fmt.Sprint(tid, goid, 0x1234, []int{0xfeed, 0}[i])
				if have != want {
					t.Errorf("record %d: %s, want %s", i, have, want)
				}
			}
		})
	}
}
