package self

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/target"
)

// EnableModules has targets take modules of C. Package modules calls it, in an init function: a program that does not import that package
// has nothing of them in it.
func EnableModules() {
	newModules = func(t *Target) {
		l := &inLine{t: t}
		t.modules, t.caller = l, &lineCaller{t, l}
	}
	lineLook, loopLook, loopEnd = lookInLine, lookLoops, uint64(endLoopPC())
}

// What modules need stands in the first 2 GB, as they do, until the target is closed:
//
//	code  the gates, and what handlers call (amd64.NewSlotGate, amd64.NewSlotRuntime)
//	data  the slots' keys, the slots, what the watch needs, the clock, the words of the thread that runs starts of modules (arch.ThreadState) and
//	      its block, descriptors of handlers, its stack, and those of the slots
//
// Code and data are in pages of their own: a processor slows down where a page is written in that it runs.
const (
	pageSize = 4096

	lineGroups  = 7 // log2 of the groups of 8 slots
	lineSlots   = 8 << lineGroups
	keysOff     = 0
	slotsOff    = keysOff + 8*lineSlots
	seenOff     = slotsOff + lineSlots*amd64.SlotSize // words of the watch: loopState.seen
	textsOff    = seenOff + 8*lineSlots               // of the modules, for the watch: pairs of words
	clockOff    = textsOff + 16*maxModules
	threadOff   = clockOff + pageSize
	blockOff    = threadOff + pageSize // the thread's block: its FS base points there
	descsOff    = blockOff + pageSize
	descStep    = 128 // a descriptor, its count of misses, and whether it has looped
	descCount   = 1 << 12
	stackOff    = descsOff + descStep*descCount
	stackSize   = 64 << 10 // of the thread, and of each slot
	slotStacks  = stackOff + stackSize
	lineSize    = slotStacks + lineSlots*stackSize
	maxModules  = 256
	threadBlock = 1024 // where in its page the thread's block begins: below it a Go program has its g

	threadPatience = 60 // seconds, after which a module's thread goes on that nobody has answered
)

// inLine has the modules of the own process, and makes their handlers callable.
type inLine struct {
	t          *Target
	data, code interval.Range
	gen        *amd64.SlotCode
	run        *amd64.SlotRuntime // of gen
	modules    []*module          // changed while Target.mu is held, and that of texts
	thread     sync.Mutex         // held while a module's start or end runs, and none may; it comes before Target.mu
	held       bool               // by hold
	faults     table              // of what may fault in line

	mu     sync.Mutex
	free   []uint64 // descriptors
	next   uint64   // the first that was never used
	calls  map[*arch.Call]*inLineCall
	blocks map[*target.InLineCalls]*callBlocks
}

var (
	_ target.ModuleLoader = (*inLine)(nil)
	_ inLines             = (*inLine)(nil)
)

// OpenModules maps and writes that memory. EOPNOTSUPP: the threads' FS bases can not be read here.
func (l *inLine) OpenModules(o *target.ModuleOptions) (*target.ModuleRuntime, error) {
	t := l.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if attachedLines == nil {
		switch {
		case t.control == nil:
			return nil, errno.Errorf(unix.EINVAL, "a module needs a target that is prepared")
		case !native.ReadsBase():
			return nil, errno.Errorf(unix.EOPNOTSUPP, "handlers in line: this kernel lets no program read its thread pointer, as Linux does from 5.9 on: use handlers in Go")
		}
		if err := l.open(o); err != nil {
			return nil, errors.Join(err, l.unmap())
		}
		attachedLines = l
		if err := l.setModules(nil); err != nil {
			attachedLines = nil
			return nil, errors.Join(err, l.unmap())
		}
		lines = linePlaces{code: l.code, keys: l.data.Start + keysOff, slots: l.data.Start + slotsOff, n: lineSlots}
		loops = loopState{keys: lines.keys, slots: lines.slots, seen: l.data.Start + seenOff, texts: l.data.Start + textsOff, abandon: l.run.Abandon}
	}
	return &target.ModuleRuntime{Symbols: l.run.Symbols, CPUs: lineSlots}, nil
}

// open maps and writes the memory, and has the watch look for handlers that do not end.
func (l *inLine) open(o *target.ModuleOptions) error {
	l.calls, l.blocks = map[*arch.Call]*inLineCall{}, map[*target.InLineCalls]*callBlocks{}
	if err := mapLow(&l.data, lineSize, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return err
	}
	if err := mapLow(&l.code, amd64.SlotCodeMost, unix.PROT_READ|unix.PROT_EXEC); err != nil {
		return err
	}
	for n := range lineSlots {
		at := l.data.Start + slotsOff + uint64(n)*amd64.SlotSize
		amd64.PutSlot(bytesAt(at, amd64.SlotSize), at, n, l.data.Start+slotStacks+uint64(n+1)*stackSize)
	}
	l.guardStacks()
	for i, v := range []uint64{o.Clock.Tick, o.Clock.Nanos, o.Clock.Length} {
		setWord(l.data.Start+clockOff+8*uint64(i), v)
	}
	block := l.data.Start + blockOff + threadBlock
	setWord(block, block)
	l.next = l.data.Start + descsOff
	if err := l.generate(o.Event); err != nil {
		return err
	}
	return watch.start()
}

// madvGuardInstall is of linux/mman.h.
const madvGuardInstall = 102

// guardStacks makes a guard of the lowest page of each stack, where the kernel has such (Linux 6.13): a handler that needs more faults there, and is ended, since
// Go's threads have alternate stacks for signals.
func (l *inLine) guardStacks() {
	for at := l.data.Start + stackOff; at < l.data.End; at += stackSize {
		if _, _, e := unix.Syscall(unix.SYS_MADVISE, uintptr(at), pageSize, madvGuardInstall); e != 0 {
			return
		}
	}
}

// mapLow maps memory in the first 2 GB.
func mapLow(to *interval.Range, size uint64, prot int) error {
	if size == 0 {
		return nil
	}
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE | unix.MAP_32BIT
	at, _, e := unix.Syscall6(unix.SYS_MMAP, 0, uintptr(size), uintptr(prot), flags, ^uintptr(0), 0)
	if e != 0 {
		return fmt.Errorf("%d bytes for modules, in the first 2 GB: %w", size, e)
	}
	*to = interval.Range{Start: uint64(at), End: uint64(at) + size}
	return nil
}

// generate writes the code.
func (l *inLine) generate(event int) error {
	t := l.t
	gates := amd64.SlotGateEnv{Keys: l.data.Start + keysOff, Slots: l.data.Start + slotsOff, Groups: lineGroups, Stacks: true}
	c, err := amd64.NewSlotCode(l.code.Start, amd64.SlotRuntimeEnv{
		SlotGateEnv: gates, Event: event, Clock: l.data.Start + clockOff, Thread: l.data.Start + threadOff, Patience: threadPatience,
	}, &t.writer)
	if err != nil {
		return err
	}
	l.gen, l.run = c, c.Run
	_, err = t.mem.WriteAt(c.Code, int64(l.code.Start))
	return err
}

// newFaults makes the table of what may fault in line: a fault in a module's code has its fault handler called, or ends the handler.
func (l *inLine) newFaults(of []*module) (table, error) {
	entries := slices.Clone(l.gen.Faults)
	for _, m := range of {
		entries = append(entries, amd64.FaultEntry{Lo: m.at.Text.Start, Hi: m.at.Text.End, To: l.run.Fault, Called: true})
	}
	slices.SortFunc(entries, func(a, b amd64.FaultEntry) int { return cmp.Compare(a.Lo, b.Lo) })
	return newTable(len(entries)*amd64.FaultEntrySize, func(to []byte) {
		to = to[:0]
		for i := range entries {
			to = entries[i].Append(to)
		}
	})
}

// directory makes the directory of faults: that of the detours, with the code that runs in line. It is sorted, and heads.write has its entries.
// It comes before code is put in that calls handlers: those that were switched off for a time are called again.
func (l *inLine) directory(h *heads) (n int, err error) {
	l.wake()
	dir, ranges := make([]byte, len(h.pieces)*amd64.FaultEntrySize), []interval.Range{l.code}
	h.write(dir)
	for _, m := range l.modules {
		ranges = append(ranges, m.at.Text)
	}
	entry := func(lo, table, n uint64) []byte {
		return le.AppendUint64(le.AppendUint64(le.AppendUint64(le.AppendUint64(nil, lo), math.MaxUint64), table), n)
	}
	for _, r := range ranges {
		i := 0
		for ; i < len(dir) && le.Uint64(dir[i:]) <= r.Start; i += amd64.FaultEntrySize {
		}
		behind := entry(r.End, 0, 0)
		if i > 0 { // what has begun before goes on there
			before := dir[i-amd64.FaultEntrySize : i]
			behind = entry(r.End, le.Uint64(before[16:]), le.Uint64(before[24:]))
		}
		dir = slices.Insert(dir, i, append(entry(r.Start, l.faults.addr, uint64(len(l.gen.Faults)+len(l.modules))), behind...)...)
	}
	h.directory, err = newTable(len(dir), func(to []byte) { copy(to, dir) })
	return len(dir) / amd64.FaultEntrySize, err
}

// module is a module of C in the own process.
type module struct {
	l  *inLine
	at target.ModuleMemory
}

// NewModule maps a module's memory. ENOSPC: there are too many.
func (l *inLine) NewModule(size *target.ModuleSize) (target.Module, error) {
	t := l.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(l.modules) == maxModules {
		return nil, errno.Errorf(unix.ENOSPC, "%d modules are loaded, and there is room for no more: remove some first", maxModules)
	}
	m := &module{l: l}
	const rw = unix.PROT_READ | unix.PROT_WRITE
	err := cmp.Or(
		mapLow(&m.at.Text, size.Text, unix.PROT_READ|unix.PROT_EXEC),
		mapLow(&m.at.Rodata, size.Rodata, unix.PROT_READ),
		mapLow(&m.at.Data, size.Data, rw),
		mapLow(&m.at.PerCPU, size.PerCPU*lineSlots, rw),
		mapLow(&m.at.Heap, size.Heap, rw),
	)
	if err == nil {
		err = l.setModules(append(slices.Clone(l.modules), m))
	}
	if err != nil {
		return nil, errors.Join(err, m.unmap())
	}
	return m, nil
}

// setModules has the handlers of signals know which modules there are. Precondition: Target.mu is held.
func (l *inLine) setModules(to []*module) error {
	faults, err := l.newFaults(to)
	if err != nil {
		return err
	}
	oldModules, oldFaults := l.modules, l.faults
	l.modules, l.faults = to, faults
	if err := l.t.change(&target.Change{}); err != nil {
		l.modules, l.faults = oldModules, oldFaults
		return errors.Join(fmt.Errorf("the signal handlers' table of modules: %w", err), faults.unmap())
	}
	for i := range uint64(maxModules) {
		at, r := l.data.Start+textsOff+16*i, interval.Range{}
		if i < uint64(len(to)) {
			r = to[i].at.Text
		}
		setWord(at, math.MaxUint64) // the watch reads them meanwhile
		setWord(at+8, r.End)
		setWord(at, r.Start)
	}
	return oldFaults.unmap()
}

// Memory is where the module lies.
func (m *module) Memory() *target.ModuleMemory { return &m.at }

// Write writes memory of the module's. EFAULT: it is not the module's.
func (m *module) Write(addr uint64, b []byte) error {
	if !m.at.Contains(addr, uint64(len(b))) {
		return errno.Errorf(unix.EFAULT, "0x%x is no memory of the module", addr)
	}
	_, err := m.l.t.mem.WriteAt(b, int64(addr))
	return err
}

// unloadTries are the looks for threads on the way to a module's code.
const unloadTries = 40

// Unload takes the module's memory out. No handler of it can be run any more: EndCall has waited for that, or has failed to, and then the detours tell.
func (m *module) Unload() error {
	t := m.l.t
	for i := 0; ; i++ {
		all, err := t.reclaim()
		if all && err == nil {
			break
		}
		if i == unloadTries {
			return cmp.Or(err, error(errno.Errorf(unix.EBUSY, "a thread is on the way to a handler, or in one: the memory of the module stays")))
		}
		time.Sleep(drainWait)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if attachedLines != inLines(m.l) { // Close has taken it out
		return nil
	}
	if err := m.l.setModules(slices.DeleteFunc(slices.Clone(m.l.modules), func(o *module) bool { return o == m })); err != nil {
		return err
	}
	return m.unmap()
}

func (m *module) unmap() error {
	var errs []error
	for _, r := range m.at.All() {
		if r.Start != 0 {
			errs = append(errs, unmap(r.Start, r.End-r.Start))
		}
	}
	return errors.Join(errs...)
}

// hold keeps the start and the end of modules from running. Precondition: Target.mu is held.
func (l *inLine) hold() error {
	if !l.held && !l.thread.TryLock() {
		return errno.Errorf(unix.EBUSY, "the start or the end of a module runs: wait for that")
	}
	l.held = true
	return nil
}

// close takes everything out. Preconditions: hold, Target.mu is held, no site is there, and no thread is on the way to a slot or from one; the watch has ended.
func (l *inLine) close() error {
	loops = loopState{}
	attachedLines, lines = nil, linePlaces{}
	var errs []error
	for _, m := range l.modules {
		errs = append(errs, m.unmap())
	}
	for _, b := range l.blocks {
		errs = append(errs, unmap(b.Start, b.End-b.Start))
	}
	errs = append(errs, l.faults.unmap())
	l.modules = nil
	return errors.Join(append(errs, l.unmap())...)
}

// unmap takes out what belongs to no module.
func (l *inLine) unmap() error {
	var errs []error
	for _, r := range []*interval.Range{&l.data, &l.code} {
		if r.Start != 0 {
			errs = append(errs, unmap(r.Start, r.End-r.Start))
			*r = interval.Range{}
		}
	}
	return errors.Join(errs...)
}

// word32At is a word that another thread reads or writes.
//
//go:nocheckptr
func word32At(addr uint64) *atomic.Uint32 { return *(**atomic.Uint32)(unsafe.Pointer(&addr)) }
