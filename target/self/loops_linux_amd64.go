package self

import (
	"syscall"
	"unsafe"

	"kprobes.dev/kprobes/internal/arch/amd64"
)

// A handler in line that does not end can be ended: where a fault would send its thread, all else is in its slot. The watch looks for one, since a goroutine could not:
// from the next garbage collection on none runs. It says which run is to end, and sends all threads a SIGURG. The handler of this signal (endLoop) sees, on the thread
// that runs it, whether the thread is in the module's own code: there it has no lock and is in the middle of no record.

// loopState is what the watch needs for that, at a fixed address. Zero: there are no handlers in line.
type loopState struct {
	keys, slots uint64 // addresses
	seen        uint64 // address of a word for each slot: the number of its run, and in the lowest bits how often it was seen
	texts       uint64 // address of maxModules pairs of words: where modules have their code
	abandon     uint64 // where a thread goes on that gives its handler up

	// What endLoop reads. key is written last: the FS base of the thread whose run is to end; 0: none is.
	key, runs, run, desc, lo, hi uint64
}

var loops loopState

// endLoopPC tells where the code is that sigurg calls.
func endLoopPC() uintptr

// seenBits is how many bits of a word say how often a run was seen.
const seenBits = 3

// lookLoops notes which handlers run, and which one is to end: one that was seen as often as the watch would tell of one in Go.
//
//go:nosplit
//go:norace
func lookLoops() {
	l := &loops
	store64(&l.key, 0)
	if l.keys == 0 {
		return
	}
	for n := uintptr(0); n < lineSlots; n++ {
		slot := uintptr(l.slots) + n*amd64.SlotSize
		key := load64(wordAt(uintptr(l.keys) + 8*n))
		if key == 0 || load32((*uint32)(unsafe.Pointer(wordAt(slot+amd64.SlotAtomic)))) == 0 {
			continue
		}
		seen := wordAt(uintptr(l.seen) + 8*n)
		run, was := load64(wordAt(slot+amd64.SlotRuns)), load64(seen)
		if was>>seenBits != run<<seenBits>>seenBits {
			was = run << seenBits
		}
		if was&(1<<seenBits-1) < watchTells {
			store64(seen, was+1)
			continue
		}
		l.runs, l.run, l.desc = uint64(slot+amd64.SlotRuns), run, load64(wordAt(slot+amd64.SlotDescAt))
		if l.find(load64(wordAt(uintptr(l.desc) + amd64.SlotDescHandler))) {
			store64(&l.key, key)
			watch.signalAll()
			return // the others come with later looks
		}
	}
}

// signalAll sends all threads a SIGURG.
//
//go:nosplit
//go:norace
func (w *watchState) signalAll() {
	if _, _, e := syscall.RawSyscall(syscall.SYS_LSEEK, uintptr(w.tasks), 0, 0); e != 0 {
		return
	}
	for {
		n, _, e := syscall.RawSyscall(syscall.SYS_GETDENTS64, uintptr(w.tasks), uintptr(unsafe.Pointer(&w.dents)), dirents)
		if e != 0 || n == 0 {
			return
		}
		for at := uintptr(unsafe.Pointer(&w.dents)); n > 19; { // see look
			if tid := number(at + 19); tid != 0 {
				syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(w.pid), tid, uintptr(syscall.SIGURG))
			}
			size := uintptr(byteAt(at+16)) | uintptr(byteAt(at+17))<<8
			if size == 0 || size > n {
				break
			}
			at, n = at+size, n-size
		}
	}
}

// find finds the code of the module that has a handler.
//
//go:nosplit
//go:norace
func (l *loopState) find(handler uint64) bool {
	for i := uintptr(0); i < maxModules; i++ {
		at := uintptr(l.texts) + 16*i
		l.lo, l.hi = load64(wordAt(at)), load64(wordAt(at+8))
		if l.lo <= handler && handler < l.hi {
			return true
		}
	}
	return false
}
