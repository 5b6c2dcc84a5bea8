package process

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
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

// The mapping is never writable and executable at once.
func TestTrampolineMaps(t *testing.T) {
	prog, target, tr := trampolined(t)
	want := map[procfs.Perm]bool{procfs.PermRead | procfs.PermExec: true, procfs.PermRead | procfs.PermWrite: true, 0: true}
	for _, m := range stubMaps(t, target.p) {
		if !want[m.Perm] || m.Contains(tr.Stubs) != (m.Perm&procfs.PermExec != 0) || m.Contains(tr.Table) != (m.Perm&procfs.PermWrite != 0) {
			t.Errorf("%+v, of %+v", m, tr)
		}
		delete(want, m.Perm)
	}
	if len(want) != 0 {
		t.Errorf("no mapping %v", want)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
	if left := stubMaps(t, target.p); len(left) > 0 {
		t.Errorf("%+v", left)
	}
	prog.Counts("go 10")
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

// Where code is made at run time, and in a Go program, no return address is replaced.
func TestTrampolineReplaceable(t *testing.T) {
	_, target, _ := trampolined(t)
	if err := target.Replaceable(); err != nil {
		t.Fatal(err)
	}
	err := target.stopped(func(s *ptrace.Stopped) error {
		_, err := s.Mmap(0, procfs.PageSize, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Replaceable(); !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "makes code while it runs") {
		t.Errorf("%v", err)
	}
	for fn := uint64(0); len(target.trampolines.numbers) < maxTrampolines; fn++ {
		target.trampolines.numbers[fn] = 0
	}
	target.trampolines.pieces = int(target.stubs.Load().size / amd64.TrampolinePiece)
	if _, err := target.Trampoline(1 << 40); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
	prog := testprog.Start(t, testprog.Build(t, "gowork"))
	p, err := OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	other, err := Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Replaceable(); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("Go: %v", err)
	}
	if n, _, err := other.Strays(1); n != 0 || err != nil || other.Caller(77) != 77 {
		t.Errorf("without trampolines: %d, %v", n, err)
	}
}

// Where the tables can not be made writable nothing is left, and the next attempt begins anew.
func TestTrampolineNoRoom(t *testing.T) {
	prog, target := prepared(t)
	var was unix.Rlimit
	if err := unix.Prlimit(prog.PID, unix.RLIMIT_DATA, &unix.Rlimit{Cur: 1, Max: unix.RLIM_INFINITY}, &was); err != nil {
		t.Fatal(err)
	}
	if _, err := target.Trampoline(0x1234); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("no memory may be made writable, and %v", err)
	}
	if left := stubMaps(t, target.p); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
	if err := unix.Prlimit(prog.PID, unix.RLIMIT_DATA, &was, nil); err != nil {
		t.Fatal(err)
	}
	tr, err := target.Trampoline(0x1234)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range stubMaps(t, target.p) {
		if m.Contains(tr.Table) != (m.Perm&procfs.PermWrite != 0) {
			t.Errorf("%+v, of %+v", m, tr)
		}
	}
	if err := target.Close(); err != nil {
		t.Error(err)
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
		if !slices.ContainsFunc(r.Found, func(m ptrace.Resident) bool { return m.Lo <= at && at < m.Hi && m.Shared == (at == shared+8) }) {
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

// More functions than a piece serves have trampolines that are all their own, and the same code.
func TestTrampolinePieces(t *testing.T) {
	const functions = 6*amd64.TrampolinesPerPiece + 10
	prog, target := prepared(t)
	seen := map[uint64]bool{}
	var last *arch.Trampoline
	for fn := range uint64(functions) {
		tr, err := target.Trampoline(fn)
		if err != nil {
			t.Fatal(err)
		}
		if seen[tr.Stubs] || seen[tr.More] {
			t.Fatalf("function %d: %+v is another's", fn, tr)
		}
		seen[tr.Stubs], seen[tr.More] = true, true
		if fn%611 != 0 && fn%amd64.TrampolinesPerPiece > 1 {
			continue
		}
		last = tr
		first, more, err := amd64.NewStubs(tr)
		if err != nil {
			t.Fatal(err)
		}
		code, further := make([]byte, len(first)), make([]byte, len(more))
		if err := errors.Join(target.p.ReadMem(tr.Stubs, code), target.p.ReadMem(tr.More, further)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(code, first) || !slices.Equal(further, more) {
			t.Errorf("function %d at 0x%x has other stubs", fn, tr.Stubs)
		}
		if common := planted(t, target.p, tr.Table, 3); common[0] != tr.Stubs || common[1] != 1 || common[2] != 1 {
			t.Errorf("function %d begins with %#x", fn, common)
		}
	}
	if mapped, err := target.control.get(hdrReturns); err != nil || mapped != 16*amd64.TrampolinePiece {
		t.Errorf("%d bytes are mapped: %v", mapped, err)
	}
	const real = 0x401237
	if err := target.p.WriteMem(last.More+amd64.TrampolineDist, binary.LittleEndian.AppendUint64(nil, real)); err != nil {
		t.Fatal(err)
	}
	at := plant(t, target, last.More, last.More+8)
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
	if got := planted(t, target.p, at, 2); got[0] != real || got[1] != last.More+8 {
		t.Errorf("%#x stands where a further stub stood", got)
	}
	if left := stubMaps(t, target.p); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
	prog.Counts("go 10")
}

// Where the address space is limited the room is smaller, and says when it is full.
func TestTrampolineSmallRoom(t *testing.T) {
	prog, target := prepared(t)
	limit := unix.Rlimit{Cur: 1 << 30, Max: unix.RLIM_INFINITY}
	if err := unix.Prlimit(prog.PID, unix.RLIMIT_AS, &limit, nil); err != nil {
		t.Fatal(err)
	}
	for fn := uint64(0); ; fn++ {
		tr, err := target.Trampoline(fn)
		if err == nil && fn < 1<<14 {
			continue
		}
		if size := target.stubs.Load().size; !errors.Is(err, unix.ENOSPC) || fn != size/amd64.TrampolinePiece*amd64.TrampolinesPerPiece || size > 1<<30/roomShare {
			t.Errorf("function %d: %+v, %v; the room has %d bytes", fn, tr, err, size)
		}
		break
	}
	if err := target.Close(); err != nil {
		t.Error(err)
	}
	prog.Counts("go 10")
}

// What a tracer of the version before has left is undone: all functions' stubs there stand in one
// piece, and their tables behind it.
func TestTrampolineEarlier(t *testing.T) {
	const real = 0x401237
	prog, target := prepared(t)
	var lo uint64
	inStop(t, target, func(s *ptrace.Stopped) (err error) {
		if lo, err = target.mapPrivate(s, flatName, 0, 2*amd64.FlatStubs, unix.PROT_READ|unix.PROT_EXEC); err != nil {
			return err
		}
		return s.Mprotect(lo+amd64.FlatStubs, amd64.FlatStubs, unix.PROT_READ|unix.PROT_WRITE)
	})
	stub := lo + 4096 + 4000
	if err := errors.Join(target.p.WriteMem(stub+amd64.FlatStubs, binary.LittleEndian.AppendUint64(nil, real)), target.control.put(hdrVersion, homeStubs)); err != nil {
		t.Fatal(err)
	}
	at := plant(t, target, stub, stub+8, lo+4096+16)
	l, err := findLeftover(target.p)
	if err != nil || l == nil || len(l.stubs) != 1 {
		t.Fatalf("%+v, %v", l, err)
	}
	if u, err := l.Undo(); err != nil || u.InCall {
		t.Fatalf("%+v, %v", u, err)
	}
	if got, want := planted(t, target.p, at, 3), []uint64{real, stub + 8, lo + 4096 + 16}; !slices.Equal(got, want) {
		t.Errorf("%#x, want %#x", got, want)
	}
	if left := stubMaps(t, target.p); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
	prog.Counts("go 10")
}

// A tracer that is killed while it takes the room, or maps a piece of it, leaves what the next one
// finds and takes out.
func TestTrampolineHalfMapped(t *testing.T) {
	for name, left := range map[string]func(target *Target, s *ptrace.Stopped, lo uint64) error{
		"room": func(*Target, *ptrace.Stopped, uint64) error { return nil },
		"code": func(target *Target, s *ptrace.Stopped, lo uint64) error {
			return target.memfd(s, roomFile(roomSize), func(local *os.File, fd int) error {
				if err := errors.Join(fillPiece(local, nil), local.Close()); err != nil {
					return err
				}
				_, err := s.Mmap(lo, amd64.TrampolinePiece, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_FIXED, fd, 0)
				return err
			})
		},
		"piece": func(target *Target, s *ptrace.Stopped, lo uint64) error {
			target.stubs.Store(newStubs(target.p, lo, roomSize))
			return target.mapPieces(s, nil, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			prog, target := prepared(t)
			inStop(t, target, func(s *ptrace.Stopped) error {
				lo, err := target.mapRoom(s, roomSize)
				if err == nil && lo%roomSize != 0 {
					t.Errorf("the room begins at 0x%x", lo)
				}
				return errors.Join(err, left(target, s, lo))
			})
			if len(stubMaps(t, target.p)) == 0 {
				t.Fatal("nothing is mapped")
			}
			l, err := findLeftover(target.p)
			if err != nil || l == nil {
				t.Fatalf("%+v, %v", l, err)
			}
			if u, err := l.Undo(); err != nil || u.InCall {
				t.Fatalf("%+v, %v", u, err)
			}
			if got := stubMaps(t, target.p); len(got) > 0 {
				t.Errorf("left: %+v", got)
			}
			prog.Counts("go 10")
		})
	}
}
