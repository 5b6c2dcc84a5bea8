package patch

import (
	"fmt"
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/target"
)

// code is where functions lie in these tests, detours where detours do.
const (
	code     = 0x401000
	detours  = 0x700000
	roomSize = 0x100 // of each detour
)

// jump is a site whose patch covers instructions of 2, 2 and 3 bytes at an offset in the code, with work at the first one. The
// nth detour is its own: the work, the copies 0x40, 0x42 and 0x44 behind its start, the way back at 0x47.
func jump(off uint64, n uint64) *target.Site {
	at, d := code+off, detours+n*roomSize
	return &target.Site{
		Addr: at, Orig: []byte("abcde"), Patch: []byte("12345"), Room: roomSize,
		Detour: &arch.Detour{
			Addr: d, Code: make([]byte, 0x50), Back: d + 0x47, Points: []arch.PointEntry{{Point: at, At: d}},
			Pairs: []arch.Pair{{Orig: at, Copy: d + 0x40}, {Orig: at + 2, Copy: d + 0x42}, {Orig: at + 4, Copy: d + 0x44}, {Orig: at + 7, Copy: d + 0x47}},
		},
	}
}

// trap is a breakpoint on an instruction of 2 bytes: the copy is 0x40 behind the detour's start, the way back 0x42.
func trap(off uint64, n uint64) *target.Site {
	at, d := code+off, detours+n*roomSize
	return &target.Site{
		Addr: at, Orig: []byte("a"), Patch: []byte("!"), Trap: true, Room: roomSize,
		Detour: &arch.Detour{
			Addr: d, Code: make([]byte, 0x50), Back: d + 0x42, Points: []arch.PointEntry{{Point: at, At: d}},
			Pairs: []arch.Pair{{Orig: at, Copy: d + 0x40}, {Orig: at + 2, Copy: d + 0x42}},
		},
	}
}

// way is what a change means at an address.
type way struct {
	what   string
	at     uint64
	want   Way
	blocks []*target.Site // for a context that goes on there, or a thread that cannot be moved
}

func check(t *testing.T, p *Threads, ways []way) {
	t.Helper()
	for _, w := range ways {
		if w.want.To == 0 {
			w.want.To = w.at
		}
		if got := p.Standing(w.at); got != w.want {
			t.Errorf("%s: a thread at 0x%x: %+v, want %+v", w.what, w.at, got, w.want)
		}
		var blocks []*target.Site
		p.Blocked(w.at, func(s *target.Site, inDetour bool) {
			blocks = append(blocks, s)
			if inDetour != (w.at >= detours) {
				t.Errorf("%s: what blocks at 0x%x is in a detour: %v", w.what, w.at, inDetour)
			}
		})
		if !slices.Equal(blocks, w.blocks) || p.Returning(w.at) != (len(blocks) > 0) {
			t.Errorf("%s: a context at 0x%x: %v, blocks %v, want %v", w.what, w.at, p.Returning(w.at), blocks, w.blocks)
		}
		if lo, hi := p.Bounds(); len(blocks) > 0 && (w.at < lo || w.at >= hi) {
			t.Errorf("%s: 0x%x is not in [0x%x, 0x%x)", w.what, w.at, lo, hi)
		}
	}
}

// A jump is armed where nothing stood.
func TestThreadsArm(t *testing.T) {
	s := jump(0, 0)
	only := []*target.Site{s}
	ways := []way{
		{"the instruction before", code - 1, Way{}, nil},
		{"the first byte: it runs the patch", code, Way{}, nil},
		{"the second byte, where no instruction begins", code + 1, Way{}, nil},
		{"the second instruction", code + 2, Way{Fate: Moves, To: detours + 0x42}, only},
		{"the last instruction, whose last bytes are behind the patch", code + 4, Way{Fate: Moves, To: detours + 0x44}, only},
		{"the last byte of the patch is inside it", code + 3, Way{}, nil},
		{"behind the patch, inside the last instruction", code + 5, Way{}, nil},
		{"behind the region", code + 7, Way{}, nil},
		{"the new detour", detours + 0x42, Way{}, nil},
		{"no address at all", 0, Way{}, nil},
		{"the last address", ^uint64(0), Way{}, nil},
	}
	for _, p := range []Policy{{}, {MoveOut: true}} {
		check(t, NewThreads(only, nil, nil, p), ways)
	}
	p := NewThreads(only, nil, nil, Policy{})
	if !p.Anywhere() || p.AnyDetour() {
		t.Error("a thread may be anywhere, and blocks no jump; or it is in any detour, and blocks one")
	}
	p.BlockedAnywhere(func(got *target.Site) {
		if got != s {
			t.Errorf("%v is blocked", got)
		}
	})
}

// A thread waits in a system call while a jump is armed: it makes the call again, or goes on behind it.
func TestThreadsCalling(t *testing.T) {
	two := jump(0x20, 1)
	p := NewThreads([]*target.Site{jump(0, 0), two}, []*target.Site{jump(0x40, 2)}, nil, Policy{MoveOut: true})
	for _, w := range []struct {
		what        string
		call, after uint64
		want        Way
	}{
		{"the call is where the patch begins", code, code + 2, Way{Fate: Moves, To: detours + 0x40}},
		{"of another site", code + 0x20, code + 0x22, Way{Fate: Moves, To: two.Detour.Addr + 0x40}},
		{"the patch begins behind the call", code - 2, code, Way{To: code - 2}},
		{"behind the patch", code + 7, code + 9, Way{To: code + 7}},
		{"elsewhere", code + 0x100, code + 0x102, Way{To: code + 0x100}},
		{"in a detour that goes", detours + 2*roomSize + 0x40, detours + 2*roomSize + 0x42, Way{Fate: Leaves, To: code + 0x40}},
	} {
		if got := p.Calling(w.call, w.after); got != w.want {
			t.Errorf("%s: %+v, want %+v", w.what, got, w.want)
		}
	}
	two.Detour.Pairs = two.Detour.Pairs[1:]
	p = NewThreads([]*target.Site{two}, nil, nil, Policy{MoveOut: true})
	if got, want := p.Calling(code+0x20, code+0x22), (Way{Fate: Blocks, To: code + 0x22}); got != want || !p.Returning(got.To) {
		t.Errorf("no copy of the call: %+v, want %+v", got, want)
	}
}

// Work that comes behind the patch is not to be passed.
func TestThreadsWorkBehind(t *testing.T) {
	s := jump(0, 0)
	last := uint64(code + 7)
	s.Detour.Pairs = slices.Insert(s.Detour.Pairs, 3, arch.Pair{Orig: last, Copy: detours + 0x60})
	s.Detour.Pairs[4] = arch.Pair{Orig: code + 9, Copy: detours + 0x63}
	s.Detour.Back = detours + 0x63
	s.Detour.Points = append(s.Detour.Points, arch.PointEntry{Point: last, At: detours + 0x50})
	check(t, NewThreads([]*target.Site{s}, nil, nil, Policy{}), []way{
		{"the last point", last, Way{Fate: Moves, To: detours + 0x50}, []*target.Site{s}},
		{"behind it", last + 2, Way{}, nil},
	})
}

// A breakpoint covers one instruction: nobody can be inside.
func TestThreadsTrap(t *testing.T) {
	p := NewThreads([]*target.Site{trap(0, 0)}, nil, nil, Policy{})
	check(t, p, []way{{"first byte", code, Way{}, nil}, {"second byte", code + 1, Way{}, nil}, {"behind", code + 2, Way{}, nil}})
	if lo, hi := p.Bounds(); p.Anywhere() || p.AnyDetour() || lo != hi {
		t.Error("a thread can be in the way of a breakpoint")
	}
}

// A jump is taken out. Its way back is the program's own code: a thread may finish there, and is moved where the detour is to
// be freed.
func TestThreadsDisarm(t *testing.T) {
	remove := []*target.Site{jump(0, 0)}
	stays := []way{
		{"the patch", code, Way{}, nil},
		{"inside the patch, where nobody can be", code + 2, Way{}, nil},
		{"the work", detours + 1, Way{}, nil},
		{"a copy", detours + 0x42, Way{}, nil},
	}
	check(t, NewThreads(nil, remove, nil, Policy{}), stays)
	check(t, NewThreads(nil, nil, remove, Policy{MoveOut: true}), stays)
	p := NewThreads(nil, remove, nil, Policy{MoveOut: true})
	check(t, p, []way{
		{"before the detour", detours - 1, Way{}, nil},
		{"the point: its work is not done any more", detours, Way{Fate: Leaves, To: code}, nil},
		{"in the work", detours + 1, Way{}, nil},
		{"the first copy", detours + 0x40, Way{Fate: Leaves, To: code}, nil},
		{"inside a copy", detours + 0x41, Way{}, nil},
		{"the second copy", detours + 0x42, Way{Fate: Leaves, To: code + 2}, nil},
		{"the way back", detours + 0x47, Way{Fate: Leaves, To: code + 7}, nil},
		{"the end of its room", detours + roomSize - 1, Way{}, nil},
		{"behind its room", detours + roomSize, Way{}, nil},
	})
	if p.Anywhere() || p.AnyDetour() {
		t.Error("a thread can be in the way of a removal")
	}
}

// Of two detours that touch each is told from the other at the boundary.
func TestThreadsNeighbouringDetours(t *testing.T) {
	check(t, NewThreads(nil, []*target.Site{jump(0, 0), jump(0x20, 1)}, nil, Policy{MoveOut: true}), []way{
		{"the end of the first", detours + roomSize - 1, Way{}, nil},
		{"the point of the second", detours + roomSize, Way{Fate: Leaves, To: code + 0x20}, nil},
		{"behind the second", detours + 2*roomSize, Way{}, nil},
	})
	add := []*target.Site{jump(0x40, 3)}
	check(t, NewThreads(add, []*target.Site{jump(0, 0), trap(0x40, 1)}, nil, Policy{MoveOut: true}), []way{
		{"the end of the first, which leads nowhere new", detours + roomSize - 1, Way{}, nil},
		{"the point of the second", detours + roomSize, Way{Fate: Leaves, To: detours + 3*roomSize}, add},
	})
}

// A jump takes the place of a breakpoint, whose detour goes back to inside the jump: nobody may finish there. So it is with
// one that was taken out before.
func TestThreadsReplace(t *testing.T) {
	old, add := trap(0, 0), jump(0, 1)
	only := []*target.Site{add}
	const to = detours + roomSize
	ways := []way{
		{"the patch", code, Way{}, nil},
		{"inside the new patch", code + 2, Way{Fate: Moves, To: to + 0x42}, only},
		{"the point: its work is still to be done", detours, Way{Fate: Leaves, To: to}, only},
		{"in the work", detours + 1, Way{Fate: Blocks}, only},
		{"the copy: the work is done, and not done again", detours + 0x40, Way{Fate: Leaves, To: to + 0x40}, only},
		{"inside the copy", detours + 0x41, Way{Fate: Blocks}, only},
		{"the way back", detours + 0x42, Way{Fate: Leaves, To: to + 0x42}, only},
		{"the end of its room", detours + roomSize - 1, Way{Fate: Blocks}, only},
		{"the new detour", to + 0x40, Way{}, nil},
	}
	for _, policy := range []Policy{{}, {MoveOut: true}} {
		for _, p := range []*Threads{NewThreads(only, []*target.Site{old}, nil, policy), NewThreads(only, nil, []*target.Site{old}, policy)} {
			check(t, p, ways)
			n := 0
			p.BlockedAnyDetour(func(s *target.Site) { n++ })
			if !p.AnyDetour() || n != 1 {
				t.Errorf("a thread that may be in any detour blocks %d sites", n)
			}
		}
	}
}

// The same jump with other work: its way back leads behind the new patch. A thread may finish in the old detour.
func TestThreadsRenew(t *testing.T) {
	old, add := jump(0, 0), jump(0, 1)
	const to = detours + roomSize
	check(t, NewThreads([]*target.Site{add}, []*target.Site{old}, nil, Policy{}), []way{
		{"the point", detours, Way{}, nil}, {"in the work", detours + 1, Way{}, nil}, {"a copy", detours + 0x44, Way{}, nil},
	})
	check(t, NewThreads([]*target.Site{add}, []*target.Site{old}, nil, Policy{MoveOut: true}), []way{
		{"the point", detours, Way{Fate: Leaves, To: to}, nil},
		{"in the work", detours + 1, Way{}, nil},
		{"a copy", detours + 0x44, Way{Fate: Leaves, To: to + 0x44}, nil},
		{"the way back: it is behind the region", detours + 0x47, Way{Fate: Leaves, To: code + 7}, nil},
	})
}

// The way back of an old detour leads to the next site's point, or the detour calls it: the work there is still to be done.
// A thread that has called goes back with what the copy has pushed taken off its stack.
func TestThreadsCalls(t *testing.T) {
	old, next := trap(0, 0), jump(2, 1)
	old.Detour.Pairs = append(old.Detour.Pairs, arch.Pair{Orig: code + 2, Copy: detours + 0x50}, arch.Pair{Orig: code, Copy: detours + 0x60, SP: 8})
	const to = detours + roomSize
	check(t, NewThreads([]*target.Site{next}, []*target.Site{old}, nil, Policy{MoveOut: true}), []way{
		{"the way back", detours + 0x42, Way{Fate: Leaves, To: to}, nil},
		{"the call", detours + 0x50, Way{Fate: Leaves, To: to}, nil},
		{"in the middle of an emulated call", detours + 0x60, Way{Fate: Leaves, To: code, SP: 8}, nil},
	})
}

// The way back of a new site's detour leads to the next site. A thread that has done the work there in an old detour goes on at
// the copy, and does not do it again.
func TestThreadsNeighbour(t *testing.T) {
	old, neighbour, add := trap(2, 0), trap(0, 2), jump(2, 1)
	const to = detours + roomSize
	check(t, NewThreads([]*target.Site{neighbour, add}, []*target.Site{old}, nil, Policy{}), []way{
		{"the point", detours, Way{Fate: Leaves, To: to}, []*target.Site{add}},
		{"the copy", detours + 0x40, Way{Fate: Leaves, To: to + 0x40}, []*target.Site{add}},
		{"the way back", detours + 0x42, Way{Fate: Leaves, To: to + 0x42}, []*target.Site{add}},
		{"the neighbour's way back", detours + 2*roomSize + 0x42, Way{}, nil},
	})
}

// The work of an instruction inside the patch is not passed by who stands there.
func TestThreadsWorkInside(t *testing.T) {
	s := jump(0, 0)
	s.Detour.Points = append(s.Detour.Points, arch.PointEntry{Point: code + 2, At: detours + 0x20})
	check(t, NewThreads([]*target.Site{s}, nil, nil, Policy{}), []way{
		{"the point", code + 2, Way{Fate: Moves, To: detours + 0x20}, []*target.Site{s}},
	})
}

// Where the work of a point is empty the copy stands where it begins: a thread there has still to do the new one's.
func TestThreadsNoWork(t *testing.T) {
	old, add := trap(0, 0), jump(0, 1)
	old.Detour.Pairs[0].Copy = detours
	check(t, NewThreads([]*target.Site{add}, []*target.Site{old}, nil, Policy{}), []way{
		{"the point", detours, Way{Fate: Leaves, To: detours + roomSize}, []*target.Site{add}},
	})
}

// The code of a trampoline is patched in its table, and moves as a whole: a thread in an old detour goes on in the new one, not in
// the bare code, which does no work.
func TestThreadsTrampoline(t *testing.T) {
	const stubs, table, ret = 0x500000, 0x600000, 0x500014
	tramp := func(n uint64) *target.Site {
		d := detours + n*roomSize
		return &target.Site{
			Addr: table, Orig: make([]byte, 8), Patch: []byte("--------"), Region: interval.Range{Start: stubs, End: ret + 1}, Room: roomSize,
			Detour: &arch.Detour{
				Addr: d, Points: []arch.PointEntry{{Point: ret, At: d + 0x14}},
				Pairs: []arch.Pair{{Orig: stubs, Copy: d}, {Orig: ret, Copy: d + 0x80}},
			},
		}
	}
	const to = detours + roomSize
	check(t, NewThreads([]*target.Site{tramp(1)}, []*target.Site{tramp(0)}, nil, Policy{MoveOut: true}), []way{
		{"the bare code", stubs, Way{}, nil},
		{"its return", ret, Way{}, nil},
		{"the detour begins", detours, Way{Fate: Leaves, To: to}, nil},
		{"the point", detours + 0x14, Way{Fate: Leaves, To: to + 0x14}, nil},
		{"its work is done", detours + 0x80, Way{Fate: Leaves, To: to + 0x80}, nil},
	})
}

// Where a saved address may be in the middle of an instruction, every byte of a patch but the first is inside.
func TestThreadsEveryByte(t *testing.T) {
	s := jump(0, 0)
	p := NewThreads([]*target.Site{s}, nil, nil, Policy{EveryByte: true})
	for at := uint64(code - 1); at < code+9; at++ {
		if got, want := p.Returning(at), at > code && at < code+5; got != want {
			t.Errorf("0x%x: %v", at, got)
		}
	}
	if got, want := p.Standing(code+2), (Way{Fate: Moves, To: detours + 0x42}); got != want {
		t.Errorf("%+v", got)
	}
}

// Old patches are taken out before threads are moved if one would come to inside them.
func TestThreadsOld(t *testing.T) {
	remove := []*target.Site{jump(0x20, 0), jump(0, 1)}
	p := NewThreads(nil, remove, nil, Policy{MoveOut: true})
	for at := uint64(code - 1); at < code+0x30; at++ {
		if got, want := p.InOld(at), at > code && at < code+5 || at > code+0x20 && at < code+0x25; got != want {
			t.Errorf("0x%x: %v", at, got)
		}
	}
	if p.ReturnsIntoOld() {
		t.Error("no new detour leads anywhere")
	}
	for _, add := range []*target.Site{jump(0, 2), trap(0, 2), trap(3, 2), trap(0x1e, 2)} {
		back := add.Detour.Pairs[len(add.Detour.Pairs)-1].Orig
		want := back > code && back < code+5
		if got := NewThreads([]*target.Site{add}, remove, nil, Policy{MoveOut: true}).ReturnsIntoOld(); got != want {
			t.Errorf("a detour that goes back to 0x%x leads into an old patch: %v", back, got)
		}
	}
}

// Thousands of sites are told apart, in whatever order they come.
func TestThreadsMany(t *testing.T) {
	const sites = 2000
	var add, remove []*target.Site
	for i := range uint64(sites) {
		n := i * 769 % sites
		remove = append(remove, trap(n*0x10, 2*n))
		add = append(add, jump(n*0x10, 2*n+1))
	}
	p := NewThreads(add, remove, nil, Policy{})
	for n := range uint64(sites) {
		at, from, to := code+n*0x10, detours+2*n*roomSize, detours+(2*n+1)*roomSize
		if got, want := p.Standing(at+2), (Way{Fate: Moves, To: to + 0x42}); got != want {
			t.Fatalf("site %d: %+v, want %+v", n, got, want)
		}
		if got, want := p.Standing(from+0x40), (Way{Fate: Leaves, To: to + 0x40}); got != want {
			t.Fatalf("site %d: %+v, want %+v", n, got, want)
		}
		if got := p.Standing(from + 1); got.Fate != Blocks {
			t.Fatalf("site %d: %+v", n, got)
		}
		p.Blocked(from+1, func(s *target.Site, _ bool) {
			if s.Addr != at {
				t.Fatalf("site %d: 0x%x is blocked", n, s.Addr)
			}
		})
	}
	if n := testing.AllocsPerRun(100, func() { p.Standing(code + 2); p.Returning(detours + 1); p.Anywhere(); p.AnyDetour() }); n > 0 {
		t.Errorf("%v allocations in a stop", n)
	}
}

func TestRetired(t *testing.T) {
	sites := []*target.Site{trap(0x30, 3), trap(0x10, 1), trap(0x20, 2)}
	for _, c := range []struct {
		marks []uint64
		busy  []int // numbers of detours
	}{
		{nil, nil},
		{[]uint64{detours + roomSize - 1, detours + 4*roomSize, 0, ^uint64(0)}, nil},
		{[]uint64{detours + roomSize}, []int{1}},
		{[]uint64{detours + 2*roomSize - 1}, []int{1}},
		{[]uint64{detours + 2*roomSize}, []int{2}},
		{[]uint64{detours + 3*roomSize + 8, detours + 3*roomSize + 9, detours + roomSize}, []int{1, 3}},
	} {
		r := NewRetired(sites)
		r.Mark(detours + 2*roomSize + 1)
		r.Begin()
		for _, m := range c.marks {
			r.Mark(m)
		}
		busy, free := r.Split()
		var got []int
		for _, s := range busy {
			got = append(got, int(s.Detour.Addr-detours)/roomSize)
		}
		if !slices.Equal(got, c.busy) || len(busy)+len(free) != len(sites) || r.Busy() != (len(busy) > 0) {
			t.Errorf("%#x: busy %v, %d are free", c.marks, got, len(free))
		}
	}
	r := NewRetired(nil)
	r.Mark(detours)
	if busy, free := r.Split(); len(busy)+len(free) > 0 || r.Busy() {
		t.Error("there is none")
	}
}

func BenchmarkStanding(b *testing.B) {
	for _, sites := range []uint64{1, 10_000} {
		var add []*target.Site
		for i := range sites {
			add = append(add, jump(i*0x10, i))
		}
		p := NewThreads(add, nil, nil, Policy{})
		b.Run(fmt.Sprintf("%d sites", sites), func(b *testing.B) {
			for i := range b.N {
				p.Standing(code + uint64(i)%(sites*0x10))
			}
		})
	}
}
