package self

//lint:file-ignore U1000 the assembly uses what looks unused

import (
	"syscall"
	"unsafe"
)

// How the threads of the own process are stopped. Each other thread is sent a SIGURG, the
// signal by which the runtime preempts too, and parks in our handler until it is released: it
// stands between two instructions then, and its registers lie in the signal frame, where they
// can be read and changed. The kernel delivers the signal before a thread that is in a system
// call runs code again. Go's own handlers block all signals, so a thread that has parked is in
// none of them.
//
// A thread has at most one SIGURG pending, so that the runtime's and ours can become one: the
// handler parks a thread that was asked, whoever sent the signal, and always hands the signal
// on to the runtime. With SIGTRAP that would be deadly: that of a breakpoint which the thread
// has just taken would be lost in ours, and the thread go on behind the breakpoint.
//
//	state of a slot     who changes it          to
//	none                the stopper             asked    then the signal is sent
//	asked               the thread's handler    parked   and waits while the epoch is the one asked in
//	asked               the stopper             withdrawn  it gave up; the handler, whenever it runs, returns
//	parked, withdrawn   the stopper             none, asked
//
// While the world is stopped the stopper must not need anything that a parked thread may
// hold: no allocation, no lock, no growing of its stack, no other goroutine, nothing of the
// race detector's. So what runs then runs on the thread's system stack (onSystem), makes raw
// system calls only, and works on memory set up before. Its thread blocks all signals
// meanwhile, so that the goroutine stays on it.

// States of a slot: the two low bits of slot.state. The epoch stands above them.
const (
	slotNone = iota
	slotAsked
	slotParked
	slotWithdrawn
)

// The slots are buckets of ways: a thread's slot is one of those in the bucket of its id.
const (
	slotBuckets = 1024
	slotWays    = 16
	slotCount   = slotBuckets * slotWays
)

// slot is what is known of one thread of the process.
type slot struct {
	state uint64
	uc    uintptr // parked: its signal frame's struct ucontext
	g     uintptr // parked: the g that its thread-local storage names, or 0
	tid   int32
	round uint32 // number of the stop it was last seen in
}

// dirents is room for a part of a directory's list, in bytes.
const dirents = 32 << 10

// worldState is the state of stopping, at a fixed address for the handler.
type worldState struct {
	epoch    uint32 // counts the releases; parked threads wait for it to change
	parked   uint32 // threads that have parked in this stop
	asked    uint32 // threads that were asked, those that ended taken off
	stopping uint32 // not 0: a stop is in progress
	round    uint32
	pid      int32
	tid      int32  // the stopper's thread
	tasks    int    // descriptor of /proc/self/task
	aside    uint64 // not 0: address of the number of a thread that is not stopped, 32 bits
	list     [slotCount]uint16
	slots    [slotCount]slot
	dents    [dirents]byte
	path     [64]byte
	stat     [512]byte
}

// world is the one of this process.
var world worldState

// System calls and numbers that package syscall does not name for all.
const (
	futexWaitPrivate = 128
	futexWakePrivate = 129
	monotonic        = 1
)

// Times of a stop, in nanoseconds.
const (
	stopDeadline = 100e6 // after which a stop is given up
	stopPatience = 2e6   // after which threads are looked at that have not parked
	stopStep     = 200e3 // between two looks
)

// Atomic operations; those of package sync/atomic call the race detector in some builds.
func load32(p *uint32) uint32

func store32(p *uint32, v uint32)

func add32(p *uint32, v uint32)

func load64(p *uint64) uint64

func store64(p *uint64, v uint64)

func cas64(p *uint64, old, v uint64) bool

// onSystem calls p.change on the thread's system stack and returns its result.
func onSystem(p *plan) int32

// changeStopped is what onSystem calls.
//
//go:norace
func changeStopped(p *plan) int32 { return p.change(&world) }

// stoppedCode is the address of changeStopped's code.
var stoppedCode = func() uint64 {
	f := changeStopped
	return uint64(**(**uintptr)(unsafe.Pointer(&f)))
}()

// now is CLOCK_MONOTONIC.
//
//go:norace
func now() int64 {
	var ts syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Sec*1e9 + ts.Nsec
}

// stop stops all other threads. It returns 0, or the id of a thread that did not stop in
// time (-1: the threads can not be listed); then none is stopped. All signals must be
// blocked.
//
//go:norace
func (w *worldState) stop() int32 {
	w.round++
	store32(&w.parked, 0)
	w.asked = 0
	store32(&w.stopping, 1)
	end := now() + stopDeadline
	for {
		n := w.ask()
		if n < 0 {
			w.release()
			return -1
		}
		if n == 0 {
			return 0
		}
		if tid := w.wait(end); tid != 0 {
			w.release()
			return tid
		}
	}
}

// ask asks the threads that were not asked yet, and returns how many; -1: their list can
// not be read.
//
//go:norace
func (w *worldState) ask() int {
	if _, _, e := syscall.RawSyscall(syscall.SYS_LSEEK, uintptr(w.tasks), 0, 0); e != 0 {
		return -1
	}
	fresh := 0
	for {
		n, _, e := syscall.RawSyscall(syscall.SYS_GETDENTS64, uintptr(w.tasks), uintptr(unsafe.Pointer(&w.dents)), dirents)
		if e != 0 {
			return -1
		}
		if n == 0 {
			return fresh
		}
		for at := uintptr(0); at+19 < n && at+19 < dirents; {
			tid := tidOf(w.dents[at+19:])
			if tid > 0 && tid != w.tid && (w.aside == 0 || tid != int32(word32(w.aside))) {
				fresh += w.askOne(tid)
			}
			at += uintptr(w.dents[at+16]) | uintptr(w.dents[at+17])<<8
		}
	}
}

// tidOf reads a decimal number that a 0 ends; 0 for anything else.
//
//go:norace
func tidOf(b []byte) int32 {
	var n int32
	for _, c := range b {
		if c == 0 {
			return n
		}
		if c < '0' || c > '9' {
			return 0
		}
		n = n*10 + int32(c-'0')
	}
	return 0
}

// askOne asks a thread unless it has been asked in this stop. It returns 1 if it did.
//
//go:norace
func (w *worldState) askOne(tid int32) int {
	i := w.slotOf(tid)
	if i < 0 {
		return 0 // no way is free: the next look at the list finds the thread again
	}
	s := &w.slots[i]
	if s.round == w.round {
		return 0
	}
	s.round, s.tid = w.round, tid
	store64(&s.state, uint64(w.epoch)<<2|slotAsked)
	_, _, e := syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(w.pid), uintptr(tid), uintptr(syscall.SIGURG))
	if e != 0 { // it has ended
		store64(&s.state, slotNone)
		return 0
	}
	w.list[w.asked] = uint16(i)
	w.asked++
	return 1
}

// slotOf finds the slot of a thread, or one for it.
//
//go:norace
func (w *worldState) slotOf(tid int32) int {
	first := int(uint32(tid)%slotBuckets) * slotWays
	free := -1
	for i := first; i < first+slotWays; i++ {
		s := &w.slots[i]
		if s.tid == tid {
			return i
		}
		if free < 0 && (s.tid == 0 || s.round+1 < w.round) {
			free = i
		}
	}
	return free
}

// wait waits until all that were asked have parked. It returns 0, or a thread that has not
// in time.
//
//go:norace
func (w *worldState) wait(end int64) int32 {
	step := syscall.Timespec{Nsec: stopStep}
	patience := now() + stopPatience
	for {
		if now() > patience {
			w.dropEnded()
			if now() > end {
				return w.late()
			}
		}
		have := load32(&w.parked)
		if have >= w.asked && w.allParked() {
			return 0
		}
		syscall.RawSyscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(&w.parked)), futexWaitPrivate, uintptr(have), uintptr(unsafe.Pointer(&step)), 0, 0)
	}
}

// allParked says whether the threads that were asked have parked. Their number does not tell: one
// that parked as an earlier stop was given up may have added itself to this one's.
//
//go:norace
func (w *worldState) allParked() bool {
	for i := range w.asked {
		if load64(&w.slots[w.list[i]].state)&3 != slotParked {
			return false
		}
	}
	return true
}

// late is a thread that was asked and has not parked; 0: there is none.
//
//go:norace
func (w *worldState) late() int32 {
	for i := range w.asked {
		if s := &w.slots[w.list[i]]; load64(&s.state)&3 == slotAsked {
			return s.tid
		}
	}
	return 0
}

// dropEnded takes off the threads that have ended since they were asked.
//
//go:norace
func (w *worldState) dropEnded() {
	for i := uint32(0); i < w.asked; {
		s := &w.slots[w.list[i]]
		state := load64(&s.state)
		if state&3 != slotAsked || !w.ended(s.tid) || !cas64(&s.state, state, slotNone) {
			i++
			continue
		}
		w.asked--
		w.list[i] = w.list[w.asked]
	}
}

// ended says whether a thread is gone, or a zombie: one that will not run again.
//
//go:norace
func (w *worldState) ended(tid int32) bool {
	n := copy(w.path[:], "/proc/self/task/")
	n += w.digits(n, tid)
	n += copy(w.path[n:], "/stat\x00")
	fd, _, e := syscall.RawSyscall6(syscall.SYS_OPENAT, 0, uintptr(unsafe.Pointer(&w.path)), syscall.O_RDONLY|syscall.O_CLOEXEC, 0, 0, 0)
	if e != 0 {
		return e == syscall.ENOENT
	}
	got, _, e := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&w.stat)), uintptr(len(w.stat)))
	syscall.RawSyscall(syscall.SYS_CLOSE, fd, 0, 0)
	if e != 0 {
		return e == syscall.ESRCH
	}
	for at := int(got) - 1; at >= 0; at-- {
		if w.stat[at] == ')' { // the last one ends the name
			return at+2 < int(got) && (w.stat[at+2] == 'Z' || w.stat[at+2] == 'X')
		}
	}
	return false
}

// digits writes a number into the path at n and returns its length.
//
//go:norace
func (w *worldState) digits(n int, v int32) int {
	size := 1
	for x := v; x >= 10; x /= 10 {
		size++
	}
	for i := n + size - 1; i >= n; i-- {
		w.path[i] = byte('0' + v%10)
		v /= 10
	}
	return size
}

// release lets all threads go on.
//
//go:norace
func (w *worldState) release() {
	for i := range w.asked {
		s := &w.slots[w.list[i]]
		state := load64(&s.state)
		if state&3 == slotAsked && cas64(&s.state, state, state&^3|slotWithdrawn) {
			continue
		}
		store64(&s.state, slotNone)
	}
	store32(&w.stopping, 0)
	add32(&w.epoch, 1)
	syscall.RawSyscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(&w.epoch)), futexWakePrivate, 1<<30, 0, 0, 0)
}
