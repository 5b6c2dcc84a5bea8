package process

import (
	"errors"
	"math/bits"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/headroom"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// Trampolines of all functions stand in one room of the address space, which is taken as a whole
// when the first one is needed: a mapping without access takes no memory. Pieces of it
// (native.TrampolinePiece) are mapped as they are needed, each three times as many as there are. A
// function keeps its trampoline for as long as the tracer is there: a call that is in progress
// returns through it, whatever became of the probe.
//
// The address of a stub tells where the room begins, and the name of the file that is mapped there
// how large it is. So the mappings alone tell whoever comes next where stubs and tables are.
const (
	stubRangeName  = "kprobes:returns-" // and log2 of the room's size
	stubsName      = "kprobes:stubs"    // the file in which all stood before there were pieces
	maxTrampolines = 1 << 20            // functions
	roomSize       = maxTrampolines / native.TrampolinesPerPiece * native.TrampolinePiece
	// roomShare: where the address space is limited the room takes at most one part in so many.
	roomShare = 16
	// firstTake is about what the first functions of the first piece take.
	firstTake = 256 << 10
)

// trampolines is the room of them, as the tracer fills it.
type trampolines struct {
	numbers map[uint64]int // by function
	pieces  int            // that are mapped
}

// ErrInCall says that the trampolines stay mapped, since a call may still return through one.
// It returns as it should; what unwinds it meanwhile (an exception, pthread_exit) finds no caller.
var ErrInCall = errors.New("a call may still return through a trampoline: these pages stay mapped, and it returns well, but an exception through it would not find its way")

func isStubs(m procfs.Map) bool {
	return strings.HasPrefix(m.Path, "/memfd:"+stubsName) || strings.HasPrefix(m.Path, "/memfd:"+stubRangeName)
}

var _ target.ReturnReplacer = (*Target)(nil)

// Replaceable says why no return address of the process may be replaced.
func (t *Target) Replaceable() (err error) {
	defer func() { err = asGone(err) }()
	if isGo(t.p) {
		return errno.Errorf(unix.EOPNOTSUPP, "Go's runtime reads and moves its stacks")
	}
	st, err := t.p.Status()
	if err != nil {
		return err
	}
	if st.ShadowStack {
		return errno.Errorf(unix.EOPNOTSUPP, "the process has shadow stacks, which tell a replaced return address")
	}
	maps, err := t.p.Maps()
	if err != nil {
		return err
	}
	for _, m := range fileMaps(maps) {
		switch {
		case m.Perm&procfs.PermExec == 0 || ours(m) || kernels(m):
		case m.Anonymous() || strings.HasPrefix(m.Path, "/memfd:"):
			return errno.Errorf(unix.EOPNOTSUPP, "the process makes code while it runs (at 0x%x), which may know its callees by the return address", m.Start)
		case t.Space() != nil && t.Space().ModuleAt(m.Start) == nil:
			return errno.Errorf(unix.EOPNOTSUPP, "the process runs code of %s (at 0x%x), which is no program or shared object that can be read, and may know its callees by the return address", m.Path, m.Start)
		}
	}
	return nil
}

// kernels says whether a mapping is the kernel's own code in the process.
func kernels(m procfs.Map) bool {
	return m.Path == "[vdso]" || m.Path == "[vsyscall]" || m.Path == "[uprobes]"
}

// Trampoline gives the trampoline of the function at an address.
func (t *Target) Trampoline(fn uint64) (_ *arch.Trampoline, err error) {
	defer func() { err = asGone(err) }()
	n, ok := t.trampolines.numbers[fn]
	if ok {
		return t.trampolineAt(n), nil
	}
	n = len(t.trampolines.numbers)
	if err := t.roomFor(n); err != nil {
		return nil, err
	}
	tr := t.trampolineAt(n)
	if err := t.fill(tr, n); err != nil {
		return nil, err
	}
	if t.trampolines.numbers == nil {
		t.trampolines.numbers = map[uint64]int{}
	}
	t.trampolines.numbers[fn] = n
	return tr, nil
}

func (t *Target) trampolineAt(n int) *arch.Trampoline {
	st := t.stubs.Load()
	return native.TrampolineAt(st.lo, st.size, t.control.addr+hdrReturns, n)
}

// fill writes what a trampoline's memory holds before the first call. The stubs of the first piece
// are written one by one: most processes need few.
func (t *Target) fill(tr *arch.Trampoline, n int) error {
	if n%native.TrampolinesPerPiece == 0 {
		if err := t.p.WriteMem(tr.Table, native.PieceHeads(tr.Stubs)); err != nil {
			return err
		}
	}
	if n >= native.TrampolinesPerPiece {
		return nil
	}
	first, more, err := native.NewStubs(tr)
	if err != nil {
		return err
	}
	return errors.Join(t.p.WriteMem(tr.More, more), t.p.WriteMem(tr.Stubs, first))
}

// roomFor has the memory of the n-th trampoline mapped.
func (t *Target) roomFor(n int) error {
	if n/native.TrampolinesPerPiece < t.trampolines.pieces {
		return nil
	}
	if t.stubs.Load() == nil {
		return t.takeRoom()
	}
	have := t.trampolines.pieces
	more := min(3*have, int(t.stubs.Load().size/native.TrampolinePiece)-have)
	if more == 0 {
		return errno.Errorf(unix.ENOSPC, "trampolines: %d functions have one, and there is room for no more", n)
	}
	for {
		err := t.checkRoom("trampolines", headroom.Take{
			Charged: uint64(more) * (native.TrampolineDist + tablesPerMap), Ours: native.TrampolinePiece,
			Private: uint64(more) * native.TrampolineDist,
		})
		if err == nil {
			break
		}
		if more == 1 {
			return err
		}
		more /= 2
	}
	code, err := native.PieceStubs()
	if err != nil {
		return err
	}
	return t.stopped(func(s *ptrace.Stopped) error { return t.mapPieces(s, code, more) })
}

// takeRoom takes the room and maps the first piece of it.
func (t *Target) takeRoom() error {
	ls, err := t.limits()
	if err != nil {
		return err
	}
	size := uint64(roomSize)
	for size > native.TrampolinePiece && ls.Check(headroom.Take{Mapped: roomShare / 2 * size, Locked: roomShare / 2 * size}) != nil {
		size /= 2
	}
	err = t.checkRoom("trampolines", headroom.Take{
		Charged: firstTake, Ours: firstTake, Mapped: 2 * size, Private: native.TrampolineDist, Locked: size,
	})
	if err != nil {
		return err
	}
	return t.stopped(func(s *ptrace.Stopped) error {
		lo, err := t.mapRoom(s, size)
		if err != nil {
			return err
		}
		st := newStubs(t.p, lo, size)
		t.stubs.Store(st)
		if err := t.mapPieces(s, nil, 1); err != nil {
			t.stubs.Store(nil)
			return errors.Join(err, s.Munmap(lo, size))
		}
		return nil
	})
}

// mapRoom takes a range of so many bytes, which divide its address. Precondition: the world is
// stopped.
func (t *Target) mapRoom(s *ptrace.Stopped, size uint64) (lo uint64, err error) {
	err = t.memfd(s, roomFile(size), func(local *os.File, fd int) error {
		at, err := s.Mmap(0, 2*size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_NORESERVE, fd, 0)
		if err = errors.Join(err, local.Close()); err != nil {
			return err
		}
		lo = (at + size - 1) &^ (size - 1)
		if lo > at {
			err = s.Munmap(at, lo-at)
		}
		return errors.Join(err, s.Munmap(lo+size, at+size-lo))
	})
	return lo, err
}

// roomFile is the name of the files of a room.
func roomFile(size uint64) string {
	return stubRangeName + strconv.Itoa(bits.TrailingZeros64(size))
}

// mapPieces maps pieces with the code of all stubs, or, without it, one to which it is still to be
// written. What a failure leaves of a piece is mapped anew when it is tried again. Precondition: the
// world is stopped.
func (t *Target) mapPieces(s *ptrace.Stopped, code []byte, n int) error {
	st := t.stubs.Load()
	return t.memfd(s, roomFile(st.size), func(local *os.File, fd int) error {
		if err := fillPiece(local, code); err != nil {
			return errors.Join(err, local.Close())
		}
		for range n {
			at := st.lo + uint64(t.trampolines.pieces)*native.TrampolinePiece
			_, err := s.Mmap(at, native.TrampolinePiece, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_NORESERVE|unix.MAP_FIXED, fd, 0)
			if err == nil {
				err = s.Mprotect(at+native.TrampolineDist, native.TrampolineDist, unix.PROT_READ|unix.PROT_WRITE)
			}
			if err == nil {
				err = t.control.put(hdrReturns, at+native.TrampolinePiece-st.lo)
			}
			if err != nil {
				return errors.Join(err, local.Close())
			}
			t.trampolines.pieces++
		}
		if code != nil {
			return local.Close()
		}
		t.p.AddBacking(st.lo, native.TrampolinePiece, local)
		return nil
	})
}

// fillPiece gives the file of a piece its size, and, with code, its pages: the tracer pays for them.
// Nobody can write to it after that.
func fillPiece(f *os.File, code []byte) error {
	if err := f.Truncate(native.TrampolinePiece); err != nil {
		return err
	}
	if code != nil {
		if _, err := f.WriteAt(code, 0); err != nil {
			return err
		}
		err := unix.Fallocate(int(f.Fd()), 0, native.TrampolineDist, native.TrampolineDist)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
	}
	return seal(f)
}

// Strays tells how many returns of the function at an address came through its trampoline
// that belonged to no call that an event knew, and where the last had its return address.
func (t *Target) Strays(fn uint64) (count, slot uint64, err error) {
	n, ok := t.trampolines.numbers[fn]
	if !ok {
		return 0, 0, nil
	}
	b := make([]byte, native.StrayHeader)
	if err := t.p.ReadMem(t.trampolineAt(n).Table, b); err != nil {
		return 0, 0, err
	}
	count, slot = native.Stray(b)
	return count, slot, nil
}
