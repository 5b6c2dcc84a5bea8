package self

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// The start and the end of a module run on a thread of their own, of which the runtime does not know: no code of Go's runs there, and the garbage collector
// does not wait for it (internal/arch/amd64, slotthread.go). It asks by a futex, and a goroutine answers. A stop of the threads leaves it out: it runs only code
// in which nothing is changed, and it has SIGURG blocked.

// threadFlags make a thread as the runtime does. The kernel writes its number to the word of arch.ThreadAlive, and makes that 0 when it is gone.
const threadFlags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD | unix.CLONE_SYSVSEM |
	unix.CLONE_SETTLS | unix.CLONE_PARENT_SETTID | unix.CLONE_CHILD_CLEARTID

// cloneThread makes a thread that begins at start with a stack: clone(2). It gives the thread's number, or less than 0.
func cloneThread(flags, stack, alive, base, start uint64) int64

// Futexes that the kernel wakes, too: they are not private (futex(2)).
const (
	futexWait = 0
	futexWake = 1
)

// Call runs a function of the module on a thread of its own, and answers its requests.
func (m *module) Call(fn uint64, serve func(target.ModuleRequest) int64) (result int64, err error) {
	if !m.at.Text.Contains(fn) {
		return 0, errno.Errorf(unix.EFAULT, "a function of the module at 0x%x: it is not in its code", fn)
	}
	l := m.l
	if !l.thread.TryLock() {
		return 0, errno.Errorf(unix.EBUSY, "the start or the end of another module runs, or the target is being closed")
	}
	defer l.thread.Unlock()
	words := l.data.Start + threadOff
	clear(bytesAt(words, arch.ThreadSize))
	setWord(words+arch.ThreadFunc, fn)
	if err := l.startThread(words); err != nil {
		return 0, err
	}
	state := word32At(words + arch.ThreadState)
	become := func(from, to uint32) {
		if state.CompareAndSwap(from, to) {
			_, _, _ = unix.Syscall(unix.SYS_FUTEX, uintptr(words+arch.ThreadState), futexWake, 1)
		}
	}
	become(arch.ThreadWaits, arch.ThreadRuns)
	for {
		switch now := state.Load(); now {
		case arch.ThreadAsks:
			answer := serve(target.ModuleRequest{What: int64(peek(words + arch.ThreadAsked)), Of: peek(words + arch.ThreadAsked + 8), N: int64(peek(words + arch.ThreadAsked + 16))})
			setWord(words+arch.ThreadAnswer, uint64(answer))
			become(arch.ThreadAsks, arch.ThreadAnswered) // else it has given up
		case arch.ThreadEnded:
			result = int64(peek(words + arch.ThreadResult))
			l.awaitThread(words)
			return result, nil
		default:
			sleepOn(words+arch.ThreadState, now)
		}
	}
}

// startThread makes the thread, with all signals blocked. Its own code opens those that instructions cause.
func (l *inLine) startThread(words uint64) error {
	t := l.t
	t.mu.Lock()
	defer t.mu.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var old uint64
	all := ^uint64(0)
	setMask(&all, &old)
	tid := cloneThread(threadFlags, l.data.Start+stackOff+stackSize, words+arch.ThreadAlive, l.data.Start+blockOff+threadBlock, l.run.Start)
	setMask(&old, nil)
	if tid < 0 {
		return fmt.Errorf("a thread for the module: %w", unix.Errno(-tid))
	}
	world.aside = words + arch.ThreadAlive
	return nil
}

// awaitThread waits until the thread is gone.
func (l *inLine) awaitThread(words uint64) {
	for alive := word32At(words + arch.ThreadAlive); ; {
		tid := alive.Load()
		if tid == 0 {
			break
		}
		sleepOn(words+arch.ThreadAlive, tid)
	}
	l.t.mu.Lock()
	world.aside = 0
	l.t.mu.Unlock()
}

// sleepOn waits until a word is not v any more, or for no time.
func sleepOn(addr uint64, v uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(addr), futexWait, uintptr(v), 0, 0, 0)
}
