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
		if lo, err = target.mapPrivate(s, stubsName, 0, 2*amd64.FlatStubs, unix.PROT_READ|unix.PROT_EXEC); err != nil {
			return err
		}
		return s.Mprotect(lo+amd64.FlatStubs, amd64.FlatStubs, unix.PROT_READ|unix.PROT_WRITE)
	})
	stub := lo + 4096 + 4000
	if err := errors.Join(target.p.WriteMem(stub+amd64.FlatStubs, binary.LittleEndian.AppendUint64(nil, real)), target.control.put(hdrVersion, controlStubs)); err != nil {
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
