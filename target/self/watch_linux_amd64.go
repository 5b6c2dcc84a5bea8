package self

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The watch tells of atomic handlers that do not end. Such a one keeps its thread, and from the next
// garbage collection on, which waits for that thread, all of the program stands: no goroutine could say
// why. A handler can not be ended from outside, but it can be named.
//
// What watches must need nothing of the runtime's. So it is a goroutine that the runtime takes for one in
// a system call that does not return: it sleeps, looks at what handlers run, and writes to the standard
// error, by raw system calls. Such a goroutine has no processor of the scheduler's, its stack can not
// grow, and it must not touch a pointer of the Go heap: what it reads of a hit it has the kernel copy.
//
//	a thread's word in busyTable   who changes it   to
//	0                              the gate         a hit, when a handler begins
//	a hit, seen n times            the watch        a hit, seen n+1 times, by compare and exchange
//	a hit, seen n times            the gate         0, when the handler has ended

// The watch looks every watchEvery seconds, and tells of a run that it sees for the watchTells-th time:
// of one that has run for 10 seconds at least.
const (
	watchEvery = 2
	watchTells = 6
)

// The message: the name of the probe stands between its parts.
const (
	watchBefore = "kprobes: a handler of the "
	watchAfter  = " has been running for 10 seconds. An atomic handler must end soon: the garbage collector waits for it, and the program for that. It can not be ended from outside (docs/HANDLERS.md)\n"
	watchName   = 512 // bytes of a name that are told
)

// watchState is what the watch needs, at a fixed address.
type watchState struct {
	on     uint32 // 1 while it is to watch
	tasks  int    // descriptor of /proc/self/task
	pid    int
	ended  chan bool
	next   syscall.Timespec // when it looks again, of CLOCK_MONOTONIC
	local  unix.Iovec
	remote unix.RemoteIovec
	desc   uint64
	name   [2]uint64 // a string's address and length
	text   [watchName]byte
	dents  [dirents]byte
}

var watch watchState

//go:linkname entersyscall runtime.entersyscall
func entersyscall()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

// start has the watch begin, unless it watches.
func (w *watchState) start() error {
	if w.on != 0 {
		return nil
	}
	fd, err := unix.Open("/proc/self/task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the own threads can not be listed: %w", err)
	}
	w.tasks, w.pid, w.ended = fd, unix.Getpid(), make(chan bool)
	w.on = 1
	go func(ended chan bool) {
		watchLoop()
		close(ended)
	}(w.ended)
	return nil
}

// stop has the watch end, and waits for that.
func (w *watchState) stop() error {
	if w.on == 0 {
		return nil
	}
	store32(&w.on, 0)
	_, _, e := unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&w.on)), futexWakePrivate, 1, 0, 0, 0)
	<-w.ended
	err := unix.Close(w.tasks)
	if e != 0 {
		err = errors.Join(err, e)
	}
	return err
}

// watchLoop is the watch. What it calls must not grow the stack either.
//
//go:nosplit
//go:norace
func watchLoop() {
	entersyscall()
	for load32(&watch.on) != 0 {
		watch.look()
		watch.sleep()
	}
	exitsyscall()
}

// sleep waits until it is time to look again, or stop is called. Signals, which each stop of the own
// threads sends, end a wait and do not count: the looks must be as far apart as they are said to be.
//
//go:nosplit
//go:norace
func (w *watchState) sleep() {
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&w.next)), 0)
	w.next.Sec += watchEvery
	for load32(&w.on) != 0 {
		_, _, e := syscall.RawSyscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(&w.on)), futexWaitUntil, 1, uintptr(unsafe.Pointer(&w.next)), 0, futexAny)
		if e != 0 && e != syscall.EINTR { // ETIMEDOUT, or EAGAIN: it is to end
			return
		}
	}
}

// The wait until a time of CLOCK_MONOTONIC (futex(2)): FUTEX_WAIT_BITSET, private.
const (
	futexWaitUntil = 9 | 128
	futexAny       = 0xffffffff
)

// look looks at all threads.
//
//go:nosplit
//go:norace
func (w *watchState) look() {
	if loopLook != nil {
		loopLook()
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_LSEEK, uintptr(w.tasks), 0, 0); e != 0 {
		return
	}
	for {
		n, _, e := syscall.RawSyscall(syscall.SYS_GETDENTS64, uintptr(w.tasks), uintptr(unsafe.Pointer(&w.dents)), dirents)
		if e != 0 || n == 0 {
			return
		}
		for at := uintptr(unsafe.Pointer(&w.dents)); n > 19; { // struct linux_dirent64: the length at 16, the name at 19
			w.lookAt(number(at + 19))
			size := uintptr(byteAt(at+16)) | uintptr(byteAt(at+17))<<8
			if size == 0 || size > n {
				break
			}
			at, n = at+size, n-size
		}
	}
}

//go:nosplit
//go:norace
//go:nocheckptr
func byteAt(addr uintptr) byte { return **(**byte)(unsafe.Pointer(&addr)) }

//go:nosplit
//go:norace
//go:nocheckptr
func wordAt(addr uintptr) *uint64 { return *(**uint64)(unsafe.Pointer(&addr)) }

// number reads a decimal number that a 0 ends; 0 for anything else.
//
//go:nosplit
//go:norace
func number(at uintptr) (n uintptr) {
	for ; n < maxTID; at++ {
		c := byteAt(at)
		if c == 0 {
			return n
		}
		if c < '0' || c > '9' {
			return 0
		}
		n = n*10 + uintptr(c-'0')
	}
	return 0
}

// lookAt notes that a thread's handler runs, and tells of one that was seen often enough.
//
//go:nosplit
//go:norace
func (w *watchState) lookAt(tid uintptr) {
	if tid == 0 {
		return
	}
	at := wordAt(uintptr(busyTable) + 8*tid)
	v := load64(at)
	if v&^seenMask == 0 || v&seenMask >= watchTells || !cas64(at, v, v+1) || v&seenMask != watchTells-1 {
		return
	}
	if !w.peek(uintptr(v&^seenMask)+unsafe.Offsetof(hit{}.desc), unsafe.Pointer(&w.desc), 8) ||
		!w.peek(uintptr(w.desc)+unsafe.Offsetof(desc{}.name), unsafe.Pointer(&w.name), 16) {
		return
	}
	n := uintptr(w.name[1])
	if n > watchName {
		n = watchName
	}
	if !w.peek(uintptr(w.name[0]), unsafe.Pointer(&w.text), n) || load64(at) != v+1 { // it has ended meanwhile
		return
	}
	say(uintptr(unsafe.Pointer(unsafe.StringData(watchBefore))), uintptr(len(watchBefore)))
	say(uintptr(unsafe.Pointer(&w.text)), n)
	say(uintptr(unsafe.Pointer(unsafe.StringData(watchAfter))), uintptr(len(watchAfter)))
}

// peek copies own memory that may not be there.
//
//go:nosplit
//go:norace
func (w *watchState) peek(addr uintptr, to unsafe.Pointer, n uintptr) bool {
	*wordAt(uintptr(unsafe.Pointer(&w.local))) = uint64(uintptr(to)) // a store of a pointer would have a write barrier
	w.local.Len, w.remote.Base, w.remote.Len = uint64(n), addr, int(n)
	got, _, e := syscall.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(w.pid), uintptr(unsafe.Pointer(&w.local)), 1, uintptr(unsafe.Pointer(&w.remote)), 1, 0)
	return e == 0 && got == n
}

//go:nosplit
//go:norace
func say(text, n uintptr) { syscall.RawSyscall(syscall.SYS_WRITE, 2, text, n) }
