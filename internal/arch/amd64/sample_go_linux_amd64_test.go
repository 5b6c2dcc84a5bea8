package amd64

import (
	"fmt"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/ring"
)

// Two more goroutines: one that creates the other.
const (
	arenaCreator = arenaG + 0x200
	arenaCreated = arenaG + 0x400

	creatorID = 77
	createdID = 78
)

// sampleStateOf is a state of a call at a depth in bytes.
func sampleStateOf(depth uint64, kept bool) uint64 {
	state := depth>>3<<sampleDepth | sampleIn
	if kept {
		state |= sampleKept
	}
	return state
}

// sampleSlotOf is where a key has its slot, if no other key is in the way.
func sampleSlotOf(table, key uint64) uint64 {
	n := key * hashFactor
	return table + sampleFirst + n>>(64-arch.SampleSlots)<<sampleStride
}

// sampledGo is an arena with a function that gives its second argument, rsi, as its result, on the goroutine 99, and a table.
func sampledGo(t *testing.T, child *detourChild) (a *arena, table uint64) {
	a = newArena(t, child)
	a.w.HasRseq, a.w.TID = false, arch.TIDGo
	a.w.Go = &arch.GoRuntime{TLS: child.gOff, StackLo: 0, StackHi: 8, M: 0x30, GoID: 0x98, ProcID: 0x48}
	for g, id := range map[uint64]uint64{arenaG: 99, arenaCreator: creatorID, arenaCreated: createdID} {
		a.put64(g, arenaStack-0x4000, arenaStack+0x1000)
		a.put64(g+0x30, arenaM)
		a.put64(g+0x98, id)
	}
	a.put64(arenaM+0x48, 4321)
	a.ctl.G, a.ctl.Hole = arenaG, arenaHole
	return a, a.grow(SampleBytes)
}

// goSampled runs the function once, with a work at its entry or its exit.
func (a *arena) goSampled(at uint64, w *arch.ProbeOp, regs [16]uint64) (recorded bool) {
	a.t.Helper()
	work := map[uint64][]arch.ProbeOp{at: {*w}}
	if w.Role == arch.RoleExit {
		entry := *w
		entry.Role = arch.RoleEntry
		work[0] = []arch.ProbeOp{entry}
	}
	a.probe(hexBytes(a.t, "4889f0 0f1f4000 c3"), work, arch.Policy{}) // mov %rsi,%rax; nopl 0(%rax); ret
	a.handler()
	a.ctl.Free = uint64(Set(R12, R13) | Flags)
	regs[RSP] = arenaStack
	a.add(regs, 0x202)
	a.run()
	n, hits := len(a.records()), a.counted(w.Event, ring.CtrHits)
	if uint64(n)+hits != 1 || a.counted(w.Event, ring.CtrMissed) != 0 {
		a.t.Fatalf("%d records, %d counted", n, hits)
	}
	return n == 1
}

// atG is an argument that is a goroutine's id, by its g in a register.
func atG(r Reg, off int, atEntry bool) fetch.Arg {
	return fetch.Arg{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(r)}, Derefs: []int64{0x98}, Size: 8, Off: off, AtEntry: atEntry}
}

// TestDetourSampleCreated has goroutines created by one in a call that is kept, in one that is not, and in none.
func TestDetourSampleCreated(t *testing.T) {
	child := buildDetourChild(t)
	for _, c := range []struct {
		name         string
		owner, state uint64 // the creator's
		creator, new uint64
		want         uint64 // the state of the new one
		recorded     bool
	}{
		{"kept", creatorID, sampleStateOf(0x100, true), arenaCreator, arenaCreated, sampleStateOf(0, true), true},
		{"dropped", creatorID, sampleStateOf(0x100, false), arenaCreator, arenaCreated, sampleStateOf(0, false), false},
		{"created_in_one", creatorID, sampleStateOf(0, true), arenaCreator, arenaCreated, sampleStateOf(0, true), true},
		{"in_none", creatorID, 0, arenaCreator, arenaCreated, 0, false},
		{"of_another", 5, sampleStateOf(0x100, true), arenaCreator, arenaCreated, 0, false},
		{"no_creator", creatorID, sampleStateOf(0x100, true), 0, arenaCreated, 0, false},
		{"unknown_creator", creatorID, sampleStateOf(0x100, true), arenaG, arenaCreated, 0, false},
		{"creator_unreadable", creatorID, sampleStateOf(0x100, true), arenaHole, arenaCreated, 0, false},
		{"new_unreadable", creatorID, sampleStateOf(0x100, true), arenaCreator, arenaHole, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, table := sampledGo(t, child)
			from, to := sampleSlotOf(table, arenaCreator), sampleSlotOf(table, arenaCreated)
			if from == to || from == sampleSlotOf(table, arenaG) {
				t.Fatal("the keys have one slot")
			}
			a.put64(from, arenaCreator, c.owner, c.state)
			prog := &fetch.Program{Fixed: 16, Return: true, Args: []fetch.Arg{atG(RDI, 0, true), atG(RAX, 8, false)}}
			w := &arch.ProbeOp{
				Event: 1, Role: arch.RoleExit, Prog: prog, Pool: &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)}, Instance: 1,
				Sample: &arch.Sample{Role: arch.SampleCreated, Table: table, Every: 3, Code: SampleCode()},
			}
			recorded := a.goSampled(7, w, [16]uint64{RDI: c.creator, RSI: c.new})
			if key, owner, state := a.get64(to), a.get64(to+sampleOwner), a.get64(to+sampleState); recorded != c.recorded || state != c.want ||
				c.want != 0 && (key != arenaCreated || owner != createdID) || a.get64(from+sampleState) != c.state || a.get64(table+sampleCounter) != 0 {
				t.Errorf("recorded %v, the new one's slot is %#x, %d, %#x: want %+v", recorded, key, owner, state, c)
			}
		})
	}
}

// TestDetourSampleRecovered has a goroutine recover from a panic that has left the outermost call, or a call in it.
func TestDetourSampleRecovered(t *testing.T) {
	child := buildDetourChild(t)
	for _, c := range []struct {
		name           string
		depth, down    uint64 // of the outermost call, and down to where calls were left
		kept, recorded bool
		in             bool // the outermost call is in progress still
	}{
		{"kept_left", 0x200, 0x100, true, true, false},
		{"kept_stays", 0x100, 0x200, true, true, true},
		{"kept_same", 0x100, 0x100, true, true, true},
		{"dropped_left", 0x200, 0x100, false, false, false},
		{"dropped_stays", 0x100, 0x200, false, false, true},
		{"created_in_one", 0, 0x100, true, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, table := sampledGo(t, child)
			slot, state := sampleSlotOf(table, arenaCreator), sampleStateOf(c.depth, c.kept)
			a.put64(slot, arenaCreator, creatorID, state)
			a.put64(arenaData, arenaStack+0x1000-c.down, arenaStack+0x1000)
			word := func(r Reg, off int) fetch.Arg {
				return fetch.Arg{Store: fetch.StoreValue, Base: fetch.Base{Reg: fetch.Reg(r)}, Derefs: []int64{int64(off)}, Size: 8, Off: 8 + off}
			}
			w := &arch.ProbeOp{
				Event: 1, Prog: &fetch.Program{Fixed: 24, Args: []fetch.Arg{atG(RDI, 0, false), word(RSI, 8), word(RSI, 0), word(RSI, 8)}},
				Sample: &arch.Sample{Role: arch.SampleRecovered, Table: table, Every: 3, Code: SampleCode()},
			}
			recorded := a.goSampled(0, w, [16]uint64{RDI: arenaCreator, RSI: arenaData})
			want := uint64(0)
			if c.in {
				want = state
			}
			if have := a.get64(slot + sampleState); recorded != c.recorded || have != want {
				t.Errorf("recorded %v, state %#x: want %#x, %+v", recorded, have, want, c)
			}
		})
	}
}

// TestDetourSampleSelf has the goroutine that hits end, or enter, with what its slot says of it, or of one that had its g before.
func TestDetourSampleSelf(t *testing.T) {
	child := buildDetourChild(t)
	sp := &fetch.Program{Fixed: 8, Args: []fetch.Arg{{Store: fetch.StoreValue, Base: fetch.Base{Kind: fetch.BaseDepth, Reg: fetch.Reg(RSP)}, Size: 8}}}
	const depth = 0x1000 // from the high end of the stack
	for _, c := range []struct {
		name         string
		role         arch.SampleRole
		id           uint64 // the goroutine's: 0: it is a thread's g
		owner, state uint64
		recorded     bool
		after        uint64
	}{
		{"ended_kept", arch.SampleEnded, 99, 99, sampleStateOf(0x100, true), true, sampleStateOf(0x100, true)},
		{"ended_dropped", arch.SampleEnded, 99, 99, sampleStateOf(0x100, false), false, sampleStateOf(0x100, false)},
		{"ended_of_another", arch.SampleEnded, 99, 98, sampleStateOf(0x100, true), false, sampleStateOf(0x100, true)},
		{"in_kept", arch.SampleEnter, 99, 99, sampleStateOf(0x100, true), true, sampleStateOf(0x100, true)},
		{"in_dropped", arch.SampleEnter, 99, 99, sampleStateOf(0x100, false), false, sampleStateOf(0x100, false)},
		{"created_in_dropped", arch.SampleEnter, 99, 99, sampleStateOf(0, false), false, sampleStateOf(0, false)},
		{"further_out", arch.SampleEnter, 99, 99, sampleStateOf(depth+8, false), true, sampleStateOf(depth, true)},
		{"same_depth", arch.SampleEnter, 99, 99, sampleStateOf(depth, false), true, sampleStateOf(depth, true)},
		{"other_stack", arch.SampleEnter, 99, 99, sampleStateOf(depth+1<<40, false), false, sampleStateOf(depth+1<<40, false)},
		{"of_another", arch.SampleEnter, 99, 98, sampleStateOf(0x100, false), true, sampleStateOf(depth, true)},
		{"thread", arch.SampleEnter, 0, 4321, sampleStateOf(0x100, false), false, sampleStateOf(0x100, false)},
		{"other_thread", arch.SampleEnter, 0, 4322, sampleStateOf(0x100, false), true, sampleStateOf(depth, true)},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, table := sampledGo(t, child)
			slot := sampleSlotOf(table, arenaG)
			a.put64(slot, arenaG, c.owner, c.state)
			a.put64(arenaG+0x98, c.id)
			w := &arch.ProbeOp{Event: 1, Prog: sp, Sample: &arch.Sample{Role: c.role, Table: table, Every: 3, Code: SampleCode()}}
			a.probe(hexBytes(t, "4889f0 0f1f4000 c3"), map[uint64][]arch.ProbeOp{0: {*w}}, arch.Policy{})
			a.handler()
			a.ctl.Free = uint64(Set(R12, R13) | Flags)
			a.add([16]uint64{RSP: arenaStack}, 0x202)
			a.run()
			if n := len(a.records()); (n == 1) != c.recorded || a.get64(slot+sampleState)&^sampleFuncMask != c.after {
				t.Errorf("%d records, state %#x: want %#x, %+v", n, a.get64(slot+sampleState), c.after, c)
			}
			if dropped := a.counted(w.Event, ring.CtrUnsampled) + a.counted(w.Event, ring.CtrHits); (dropped == 1) == c.recorded {
				t.Errorf("%d are counted as not recorded: %+v", dropped, c)
			}
		})
	}
}

// TestDetourSampleFull has no room for who hits: it is missed, and nobody's slot is written to. Where all traces are kept it is recorded, and counted.
func TestDetourSampleFull(t *testing.T) {
	for every, counts := range map[uint64][3]int{2: {1, 0, 0}, 1: {0, 1, 1}} {
		t.Run(fmt.Sprint(every), func(t *testing.T) { testSampleFull(t, every, counts) })
	}
}

// testSampleFull wants so many hits that are missed, counted as not sampled, and recorded.
func testSampleFull(t *testing.T, every uint64, want [3]int) {
	child := buildDetourChild(t)
	a, table := sampledGo(t, child)
	for i := range uint64(1<<arch.SampleSlots + bucketLen) {
		a.put64(table+sampleFirst+i<<sampleStride, 1+i, 5, sampleStateOf(8, true))
	}
	sp := &fetch.Program{Fixed: 8, Args: []fetch.Arg{{Store: fetch.StoreValue, Base: fetch.Base{Kind: fetch.BaseDepth, Reg: fetch.Reg(RSP)}, Size: 8}}}
	a.probe(hexBytes(t, "4889f0 0f1f4000 c3"), map[uint64][]arch.ProbeOp{0: {{Event: 1, Prog: sp, Sample: &arch.Sample{Role: arch.SampleEnter, Table: table, Every: every, Code: SampleCode()}}}}, arch.Policy{})
	a.handler()
	a.ctl.Free = uint64(Set(R12, R13) | Flags)
	a.add([16]uint64{RSP: arenaStack}, 0x202)
	a.run()
	have := [3]int{int(a.counted(1, ring.CtrMissed)), int(a.counted(1, ring.CtrUnsampled)), len(a.records())}
	if have != want || a.get64(table) != 0 {
		t.Errorf("missed, not sampled, recorded: %v, want %v; %d decisions", have, want, a.get64(table))
	}
	for i := range uint64(1<<arch.SampleSlots + bucketLen) {
		if at := table + sampleFirst + i<<sampleStride; a.get64(at) != 1+i || a.get64(at+sampleOwner) != 5 || a.get64(at+sampleState) != sampleStateOf(8, true) {
			t.Fatalf("slot %d was written to", i)
		}
	}
}
