package process

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/headroom"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// Handlers in line run in the process itself, at the hit. What they need stands in the first 2 GB, as their modules do, and stays as long as
// the tracer has the process, or until the next one takes it out:
//
//	code    the gates, and what handlers call (native.NewSlotGate, native.NewSlotRuntime)
//	data    the slots' keys, the slots, the clock, descriptors of handlers, the stack of the thread that starts modules
//	thread  the words of that thread (arch.ThreadState), which the tracer has mapped too
//
// Code and data are in pages of their own: a processor slows down where a page is written in that it runs.

const (
	slotGroups  = 7 // log2 of the groups of 8 slots
	slotCount   = 8 << slotGroups
	keysOff     = 0
	slotsOff    = keysOff + 8*slotCount
	clockOff    = slotsOff + slotCount*native.SlotSize
	blockOff    = clockOff + procfs.PageSize // the thread's block: its FS base points there
	descsOff    = blockOff + procfs.PageSize
	descStep    = 128 // a descriptor, and its count of misses
	descCount   = 1 << 12
	stackOff    = descsOff + descStep*descCount
	stackSize   = 64 << 10
	inLineSize  = stackOff + stackSize
	handlerSize = 64 << 10 // of the stack that a slot has in a Go program, whose goroutines have little

	threadPatience = 60 // seconds, after which a thread goes on that asked a tracer which has gone
)

// inLine is the tracer's side.
type inLine struct {
	t         *Target
	exclusive func(func() error) error
	data      interval.Range
	code      interval.Range
	gen       *native.SlotCode
	run       *native.SlotRuntime // of gen
	thread    *mailMem            // of arch.ThreadSize bytes
	words     uint64              // its address in the process

	mu      sync.Mutex
	free    []uint64 // descriptors
	next    uint64   // the first that was never used
	calls   map[*arch.Call]*inLineCall
	blocks  map[*target.InLineCalls]*callBlocks
	running map[uint64]*longRun // by key
}

// inLineCalls are the system calls of that code.
var inLineCalls = []ptrace.CallData{
	ptrace.CallOf(unix.SYS_CLONE, [6]uint64{}, 0, 1, 2, 3, 4, 5),
	ptrace.CallOf(unix.SYS_RT_SIGPROCMASK, [6]uint64{unix.SIG_SETMASK}, 1, 2, 3, 4, 5),
	ptrace.CallOf(unix.SYS_FUTEX, [6]uint64{0, futexWakeOp, 1}, 0, 3, 4, 5),
	ptrace.CallOf(unix.SYS_FUTEX, [6]uint64{0, futexWaitOp}, 0, 2, 3, 4, 5),
	ptrace.CallOf(unix.SYS_SCHED_YIELD, [6]uint64{}, 0, 1, 2, 3, 4, 5),
	ptrace.CallOf(unix.SYS_EXIT, [6]uint64{}, 0, 1, 2, 3, 4, 5),
	ptrace.CallOf(unix.SYS_GETTID, [6]uint64{}, 0, 1, 2, 3, 4, 5),
	ptrace.CallOf(unix.SYS_GETPID, [6]uint64{}, 0, 1, 2, 3, 4, 5),
	ptrace.CallOf(unix.SYS_PRCTL, [6]uint64{unix.PR_GET_NAME}, 1, 2, 3, 4, 5),
}

// openInLine puts that into the process. EOPNOTSUPP: its threads' FS bases can not be read there; EACCES: seccomp forbids it.
func (t *Target) openInLine(o *target.ModuleOptions) error {
	if t.inLine != nil {
		return nil
	}
	if t.control == nil {
		return errno.Errorf(unix.EINVAL, "process %d: a module needs a process that is prepared", t.p.PID())
	}
	if !native.ReadsBase() {
		return errno.Errorf(unix.EOPNOTSUPP, "handlers in line: this kernel lets no program read its thread pointer, as Linux does from 5.9 on: use handlers of the tracer's")
	}
	size := uint64(inLineSize)
	if t.golang != nil {
		size += slotCount * handlerSize
	}
	if err := t.checkRoom("handlers in line", headroom.Take{Charged: inLineSize, Ours: inLineSize, Mapped: size, Private: inLineSize, Locked: size}); err != nil {
		return err
	}
	l := &inLine{t: t, exclusive: o.Exclusive, calls: map[*arch.Call]*inLineCall{}, blocks: map[*target.InLineCalls]*callBlocks{}, running: map[uint64]*longRun{}}
	if l.exclusive == nil {
		l.exclusive = func(f func() error) error { return f() }
	}
	err := t.stopped(func(s *ptrace.Stopped) error { return l.mapAll(s, size) })
	if err == nil {
		err = l.fill(o)
	}
	if err != nil {
		return errors.Join(err, l.close())
	}
	t.inLine = l
	return nil
}

// mapAll maps the memory. Precondition: the world is stopped.
func (l *inLine) mapAll(s *ptrace.Stopped, size uint64) error {
	t := l.t
	why, err := t.whyNotCall(s, "run modules", inLineCalls)
	if why != nil || err != nil {
		return errors.Join(why, err)
	}
	at, err := t.mapLow(s, heapName, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	l.data = interval.Range{Start: at, End: at + size}
	if t.golang != nil {
		if err := l.guardStacks(s); err != nil {
			return err
		}
	}
	if at, err = t.mapLow(s, codeName, native.SlotCodeMost, unix.PROT_READ|unix.PROT_EXEC); err != nil {
		return err
	}
	l.code = interval.Range{Start: at, End: at + native.SlotCodeMost}
	return t.memfd(s, threadName, func(local *os.File, fd int) error {
		id, err := sealMail(local, procfs.PageSize)
		if err != nil {
			return errors.Join(err, local.Close())
		}
		if l.thread, err = mapMail(local, procfs.PageSize); err != nil {
			return err
		}
		t.threadID = id
		l.words, err = s.Mmap(0, procfs.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, fd, 0)
		return err
	})
}

// fill writes the memory.
func (l *inLine) fill(o *target.ModuleOptions) error {
	t := l.t
	if err := t.p.MakeBacking(l.data.Start, inLineSize); err != nil {
		return err
	}
	b := make([]byte, descsOff)
	for n := range slotCount {
		stack := uint64(0)
		if t.golang != nil {
			stack = l.data.Start + inLineSize + uint64(n+1)*handlerSize
		}
		at := slotsOff + n*native.SlotSize
		native.PutSlot(b[at:], l.data.Start+uint64(at), n, stack)
	}
	for i, v := range []uint64{o.Clock.Tick, o.Clock.Nanos, o.Clock.Length} {
		binary.LittleEndian.PutUint64(b[clockOff+8*i:], v)
	}
	writer := t.writer
	if !native.PutThreadBlock(b[blockOff:blockOff+procfs.PageSize], threadBlock, l.data.Start+blockOff+threadBlock, &writer) {
		writer.HasRseq = false
	}
	if err := t.p.WriteMem(l.data.Start, b); err != nil {
		return err
	}
	l.next = l.data.Start + descsOff
	return l.generate(o, &writer)
}

// threadBlock is where in its page the thread's block begins: the C library has words below its own, and a Go program its g.
const threadBlock = 1024

// generate writes the code, whose records are written as w says.
func (l *inLine) generate(o *target.ModuleOptions, w *arch.CodegenEnv) error {
	t := l.t
	gates := native.SlotGateEnv{Keys: l.data.Start + keysOff, Slots: l.data.Start + slotsOff, Groups: slotGroups, Stacks: t.golang != nil}
	c, err := native.NewSlotCode(l.code.Start, native.SlotRuntimeEnv{
		SlotGateEnv: gates, Event: o.Event, Clock: l.data.Start + clockOff, Quiet: t.writer.Quiet, Thread: l.words, Patience: threadPatience,
	}, w)
	if err != nil {
		return err
	}
	l.gen, l.run = c, c.Run
	return t.p.WriteMem(l.code.Start, c.Code)
}

// faults are the entries of the fault table for what runs in line: a fault in a module's code has its fault handler called, or ends the handler.
func (l *inLine) faults() []native.FaultEntry {
	out := slices.Clone(l.gen.Faults)
	for _, m := range l.t.kmods {
		out = append(out, native.FaultEntry{Lo: m.at.Text.Start, Hi: m.at.Text.End, To: l.run.Fault, Called: true})
	}
	return out
}

// close takes the memory out that only the tracer refers to. Precondition: no thread is in a slot.
func (l *inLine) close() error {
	err := l.t.stopped(func(s *ptrace.Stopped) error {
		var errs []error
		for _, r := range []interval.Range{l.data, l.code, {Start: l.words, End: l.words + procfs.PageSize}} {
			if r.Start != 0 {
				errs = append(errs, s.Munmap(r.Start, r.End-r.Start))
			}
		}
		return errors.Join(errs...)
	})
	return errors.Join(err, l.forget())
}

// closeInLine ends the tracer's side, once it is not in the process any more.
func (t *Target) closeInLine() error {
	if t.inLine == nil {
		return nil
	}
	l := t.inLine
	t.inLine, t.kmods = nil, nil
	return l.forget()
}

// forget ends the tracer's side, once nothing of it is in the process any more.
func (l *inLine) forget() error {
	if l.thread == nil {
		return nil
	}
	return l.thread.close()
}
