package process

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/testprog"
)

// prepared attaches to a program.
func prepared(t *testing.T) (*testprog.Proc, *Target) {
	t.Helper()
	prog := testprog.Start(t, testprog.Build(t, "tails"))
	p, err := OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	target, err := Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Prepare(); err != nil {
		t.Fatal(err)
	}
	return prog, target
}

// trampolined attaches to a program and makes a trampoline that is not armed.
func trampolined(t *testing.T) (*testprog.Proc, *Target, *arch.Trampoline) {
	t.Helper()
	prog, target := prepared(t)
	tr, err := target.Trampoline(0x1234)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := target.Trampoline(0x1234); err != nil || *again != *tr {
		t.Fatalf("%+v, %v, and before %+v", again, err, tr)
	}
	if other, err := target.Trampoline(0x5678); err != nil || other.Stubs == tr.Stubs || other.Table-other.Stubs != tr.Table-tr.Stubs {
		t.Fatalf("%+v, %v, beside %+v", other, err, tr)
	}
	return prog, target, tr
}

func stubMaps(t *testing.T, p *ptrace.Process) []procfs.Map {
	t.Helper()
	maps, err := p.Maps()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(maps, func(m procfs.Map) bool { return !isStubs(m) })
}

// plant writes words into the program's memory, where nobody else does, and gives their place.
func plant(t *testing.T, target *Target, vs ...uint64) (at uint64) {
	t.Helper()
	err := target.stopped(func(s *ptrace.Stopped) (err error) {
		at, err = s.Mmap(0, procfs.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
		return err
	})
	var b []byte
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	if err = errors.Join(err, target.p.WriteMem(at, b)); err != nil {
		t.Fatal(err)
	}
	return at
}

func planted(t *testing.T, p *ptrace.Process, at uint64, n int) (vs []uint64) {
	t.Helper()
	b := make([]byte, 8*n)
	if err := p.ReadMem(at, b); err != nil {
		t.Fatal(err)
	}
	for ; len(b) > 0; b = b[8:] {
		vs = append(vs, binary.LittleEndian.Uint64(b))
	}
	return vs
}

// used has a stub stand for a return address.
func used(t *testing.T, target *Target, tr *arch.Trampoline, ret uint64) (stub uint64) {
	t.Helper()
	if err := target.p.WriteMem(tr.Table+32, binary.LittleEndian.AppendUint64(nil, ret)); err != nil {
		t.Fatal(err)
	}
	return tr.Stubs + 32
}

// inStop does something while the program is stopped.
func inStop(t *testing.T, target *Target, f func(s *ptrace.Stopped) error) {
	t.Helper()
	if err := target.stopped(f); err != nil {
		t.Fatal(err)
	}
}

// Words that stand for return addresses are put back wherever they stand, nested ones too; what
// is no stub's address, or that of one which was never used, is left alone.
func TestTrampolinePutBack(t *testing.T) {
	const real = 0x401237
	prog, target, tr := trampolined(t)
	stub := tr.Stubs + 32
	for at, v := range map[uint64]uint64{tr.Table + 32: real, tr.Table + 40: stub} {
		if err := target.p.WriteMem(at, binary.LittleEndian.AppendUint64(nil, v)); err != nil {
			t.Fatal(err)
		}
	}
	for v, want := range map[uint64]uint64{stub: real, stub + 8: real, stub + 16: stub + 16, stub + 1: stub + 1, tr.Stubs: tr.Stubs, real: real} {
		if got := target.Caller(v); got != want {
			t.Errorf("0x%x stands for 0x%x, want 0x%x", v, got, want)
		}
	}
	at := plant(t, target, stub, stub+8, stub+16, stub+6, tr.Stubs, 7)
	for i, want := range []bool{true, true, false, true, false, false} {
		if target.stands(at+8*uint64(i), real) != want {
			t.Errorf("word %d stands for the return address: %v", i, !want)
		}
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := planted(t, target.p, at, 6), []uint64{real, real, stub + 16, stub + 6, tr.Stubs, 7}; !slices.Equal(got, want) {
		t.Errorf("%#x, want %#x", got, want)
	}
	prog.Counts("go 10")
}

// A process with more memory than is searched keeps the mapping, and is told to. It harms nobody;
// who can search more takes it out.
func TestTrampolineKept(t *testing.T) {
	const real = 0x401237
	prog, target, tr := trampolined(t)
	at := plant(t, target, used(t, target, tr, real))
	target.stubs.Load().limit = 0
	if err := target.Close(); !errors.Is(err, ErrInCall) {
		t.Fatalf("close: %v", err)
	}
	if got := planted(t, target.p, at, 1); got[0] != tr.Stubs+32 || len(stubMaps(t, target.p)) != 3 {
		t.Errorf("%#x, %+v", got, stubMaps(t, target.p))
	}
	maps, err := target.p.Maps()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range maps {
		if ours(m) && !isStubs(m) {
			t.Errorf("left beside the trampolines: %+v", m)
		}
	}
	l, err := findLeftover(target.p)
	if err != nil || l == nil || len(l.stubs) != 1 {
		t.Fatalf("%+v, %v", l, err)
	}
	l.stubs[0].limit = 0
	if u, err := l.Undo(); err != nil || !u.InCall || len(stubMaps(t, target.p)) != 3 {
		t.Fatalf("%+v, %v", u, err)
	}
	l.stubs[0].limit = maxSearch
	if u, err := l.Undo(); err != nil || u.InCall || len(stubMaps(t, target.p)) != 0 {
		t.Fatalf("%+v, %v", u, err)
	}
	if got := planted(t, target.p, at, 1); got[0] != real {
		t.Errorf("%#x, want %#x", got, real)
	}
	prog.Counts("go 10")
}

// The program can write the tables: a circle there stands for nothing, and ends.
func TestTrampolineCircle(t *testing.T) {
	_, target, tr := trampolined(t)
	stub := used(t, target, tr, tr.Stubs+40)
	if err := target.p.WriteMem(tr.Table+40, binary.LittleEndian.AppendUint64(nil, stub)); err != nil {
		t.Fatal(err)
	}
	if got := target.Caller(stub); got != stub {
		t.Errorf("0x%x, want 0x%x", got, stub)
	}
	if err := target.Close(); err != nil {
		t.Error(err)
	}
}

// Shared memory is searched, and huge memory that has hardly a page.
func TestTrampolineMemory(t *testing.T) {
	const real, huge = 0x401237, 1 << 40
	prog, target, tr := trampolined(t)
	stub := used(t, target, tr, real)
	var shared, sparse uint64
	inStop(t, target, func(s *ptrace.Stopped) (err error) {
		if shared, err = s.Mmap(0, procfs.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS, -1, 0); err != nil {
			return err
		}
		sparse, err = s.Mmap(0, huge, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, -1, 0)
		return err
	})
	places := []uint64{shared + 8, sparse, sparse + huge/2, sparse + huge - 8}
	for _, at := range places {
		if err := target.p.WriteMem(at, binary.LittleEndian.AppendUint64(nil, stub)); err != nil {
			t.Fatal(err)
		}
	}
	maps, err := target.p.Maps()
	if err != nil {
		t.Fatal(err)
	}
	r := &ptrace.Residents{Process: target.p, Limit: maxSearch, Asks: maxAsked}
	if all, err := r.Find(searchableOf(maps)); err != nil || all == r.NoScan || !r.NoScan && r.Asks != maxAsked {
		t.Fatalf("all: %v, %v, %d pages asked for one by one", all, err, maxAsked-r.Asks)
	}
	if r.NoScan {
		t.Skip("the kernel has no PAGEMAP_SCAN")
	}
	old := &ptrace.Residents{Process: target.p, Limit: maxSearch, Asks: maxAsked, NoScan: true}
	if all, err := old.Find(searchableOf(maps)); all || err != nil {
		t.Errorf("%d pages asked for, all: %v, %v", maxAsked-old.Asks, all, err)
	}
	for _, at := range places {
		if !slices.ContainsFunc(r.Found, func(m ptrace.Resident) bool { return m.Start <= at && at < m.End && m.Shared == (at == shared+8) }) {
			t.Errorf("0x%x was not found", at)
		}
	}
	few := &ptrace.Residents{Process: target.p, Limit: 2 * procfs.PageSize, Asks: maxAsked}
	if all, err := few.Find(searchableOf(maps)); all || err != nil {
		t.Errorf("two pages are all: %v, %v", all, err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
	for _, at := range places {
		if got := planted(t, target.p, at, 1); got[0] != real {
			t.Errorf("at 0x%x: %#x, want %#x", at, got, real)
		}
	}
	prog.Counts("go 10")
}

// A stack, or the place of a return address that is known, may lie in memory that is not
// searched: it is put back, and nobody can be sure of the rest there.
func TestTrampolineElsewhere(t *testing.T) {
	const real = 0x401237
	prog, target, tr := trampolined(t)
	stub := used(t, target, tr, real)
	at := plant(t, target, stub, stub, stub)
	inStop(t, target, func(s *ptrace.Stopped) error {
		if err := s.Mprotect(at, procfs.PageSize, unix.PROT_READ); err != nil {
			return err
		}
		st := target.stubs.Load()
		if sure, err := st.restore(s, nil); !sure || err != nil {
			t.Errorf("sure: %v, %v", sure, err)
		}
		if sure, err := st.restore(s, []uint64{at}); sure || err != nil {
			t.Errorf("with a place, sure: %v, %v", sure, err)
		}
		if got, want := planted(t, target.p, at, 3), []uint64{real, stub, stub}; !slices.Equal(got, want) {
			t.Errorf("%#x, want %#x", got, want)
		}
		th := s.Threads()[0]
		was := th.Regs()
		there := was
		there.RSP = at + 16
		if err := th.SetRegs(there); err != nil {
			return err
		}
		if sure, err := st.restore(s, nil); sure || err != nil {
			t.Errorf("with a stack, sure: %v, %v", sure, err)
		}
		if got, want := planted(t, target.p, at, 3), []uint64{real, real, real}; !slices.Equal(got, want) {
			t.Errorf("%#x, want %#x", got, want)
		}
		return th.SetRegs(was)
	})
	prog.Counts("go 10")
}

// A thread that copies a stack has return addresses in vector registers.
func TestTrampolineVectors(t *testing.T) {
	const real = 0x401237
	const xmm0, xstateBV, sse = 160, 512, 1 << 1 // SDM 1 13.4: where XMM0 and XSTATE_BV are, and SSE's bit
	prog, target, tr := trampolined(t)
	stub := used(t, target, tr, real)
	inStop(t, target, func(s *ptrace.Stopped) error {
		th := s.Threads()[0]
		return s.Do(func() error {
			was, err := th.Xstate()
			if err != nil {
				return err
			}
			there := slices.Clone(was)
			binary.LittleEndian.PutUint64(there[xmm0:], 77)
			binary.LittleEndian.PutUint64(there[xmm0+8:], stub)
			there[xstateBV] |= sse
			if err := th.SetXstate(there); err != nil {
				return err
			}
			if sure, err := target.stubs.Load().restore(s, nil); !sure || err != nil {
				t.Errorf("sure: %v, %v", sure, err)
			}
			got, err := th.Xstate()
			if err != nil {
				return err
			}
			binary.LittleEndian.PutUint64(there[xmm0+8:], real)
			if !slices.Equal(got, there) {
				t.Errorf("%x, want %x", got, there)
			}
			return th.SetXstate(was)
		})
	})
	prog.Counts("go 10")
}
