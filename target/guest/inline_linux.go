package guest

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
)

// Handlers in line run in the guest's kernel itself, at the hit, with interrupts off. What they need stands in the layout's parts for code and data, and
// stays as long as the tracer has the guest, or until the next one takes it out:
//
//	code  the gates, and what handlers call (native.NewKernelSlotGate, native.NewKernelRuntime); behind them the modules' code, and what they only read
//	data  the slots' keys, the slots, the clock, the words of the task that starts modules, descriptors of handlers; behind them the modules' data
//
// Modules' parts are in pages of their own: QEMU slows down where a page is written in that a vCPU runs.

const (
	descStep   = 128 // a descriptor, and its count of misses
	descCount  = 1 << 10
	inLineCode = 16 << 10 // bytes of the gates and what handlers call

	moduleShare = 4 // modules have one part in so many of the code, and of the data
)

// requestWait is how long a task that starts a module waits for the tracer's answer: less than what the kernel takes for a lockup.
const requestWait = 15 * time.Second

// inLine is the tracer's side.
type inLine struct {
	t   *Target
	mem []byte // of the data part
	va  uint64 // its address
	at  inLineLayout

	gates [native.KernelSlotKinds]slotGate // by native.SlotKind
	run   *native.KernelRuntime
	code  interval.Range // of the gates and modules' code
	text  *patch.Piece   // for modules' code
	data  *patch.Piece   // for their data

	mu      sync.Mutex
	kmods   []*kmodule
	free    []uint64 // descriptors
	next    uint64   // the first that was never used
	calls   map[*arch.Call]*inLineCall
	blocks  map[*target.InLineCalls]*callBlocks
	retired map[*target.Site]uint64 // the change that took a site out
	running map[int]*longRun        // by CPU
}

// slotGate is a gate, and where a CPU goes on that abandons its handler.
type slotGate struct{ addr, abandon uint64 }

// inLineLayout says where what stands in the data, in bytes.
type inLineLayout struct {
	cpus                              int
	keys, slots, clock, thread, descs int
	modules                           int // behind all else
}

func layInLine(cpus int) (l inLineLayout) {
	l.cpus = cpus
	end := 0
	take := func(size int) (at int) {
		at, end = end, end+(size+63)&^63
		return at
	}
	l.keys, l.slots = take(8*cpus), take((cpus+1)*native.SlotSize)
	l.clock, l.thread = take(3*8), take(arch.ThreadSize)
	l.descs = take(descStep * descCount)
	l.modules = int(procfs.PageUp(uint64(end)))
	return l
}

var _ target.ModuleLoader = (*Target)(nil)

// OpenModules puts the gates and what handlers call into the guest. Errors: EOPNOTSUPP (memory below 1 MiB; a kernel that does not tell the rate of its
// time-stamp counter), ENOSPC.
func (t *Target) OpenModules(o *target.ModuleOptions) (*target.ModuleRuntime, error) {
	if t.inLine == nil {
		l, err := t.openInLine(o)
		if err != nil {
			return nil, err
		}
		t.inLine = l
	}
	l := t.inLine
	return &target.ModuleRuntime{
		Symbols: l.run.Symbols, CPUs: l.at.cpus + 1, Strict: true, MaxActive: max(10, 2*l.at.cpus), // as in kernel/kprobes.c
		Lookup:  t.k.Addr,
		Starter: &target.ModuleGate{Gate: l.run.Starter, At: starters},
		Faulted: []*target.ModuleGate{{Gate: l.run.Faulted, At: []string{faultFunction}}, {Gate: l.run.PageFaulted, At: []string{pageFaultFunction}}},
	}, nil
}

func (t *Target) openInLine(o *target.ModuleOptions) (*inLine, error) {
	switch {
	case t.lay == nil:
		return nil, errno.Errorf(unix.EINVAL, "a module needs a guest that is prepared")
	case !t.lay.shared:
		return nil, errno.Errorf(unix.EOPNOTSUPP, "modules take more memory than a guest has below 1 MiB: give it an ivshmem device (kprobe doctor tells how)")
	}
	ticks, err := t.ticksOf(requestWait)
	if err != nil {
		return nil, err
	}
	l := &inLine{
		t: t, at: layInLine(t.k.CPUs()), calls: map[*arch.Call]*inLineCall{}, blocks: map[*target.InLineCalls]*callBlocks{},
		retired: map[*target.Site]uint64{}, running: map[int]*longRun{},
	}
	off := int(procfs.PageUp(uint64(t.heap)))
	size := l.at.modules + len(t.lay.data.mem)/moduleShare
	if off+size > len(t.lay.data.mem) {
		return nil, errno.Errorf(unix.ENOSPC, "modules take %d bytes, and the guest's memory for data has %d left: give it a larger ivshmem device (kprobe doctor tells how)",
			size, len(t.lay.data.mem)-off)
	}
	l.mem, l.va = t.lay.data.mem[off:][:size:size], t.lay.data.va+uint64(off)
	if err := l.fill(); err != nil {
		return nil, err
	}
	if err := l.generate(o, ticks); err != nil {
		return nil, err
	}
	t.heap = off + size
	t.control.put(hdrThread, uint64(off+l.at.thread)+1)
	return l, nil
}

// addr is the address of what stands in the data.
func (l *inLine) addr(at int) uint64 { return l.va + uint64(at) }

// fill writes the data.
func (l *inLine) fill() error {
	clear(l.mem)
	for n := range l.at.cpus + 1 {
		at := l.at.slots + n*native.SlotSize
		put := native.PutStartSlot
		if n < l.at.cpus {
			put = func(b []byte, addr uint64, n int) { native.PutSlot(b, addr, n, 0) }
		}
		put(l.mem[at:], l.addr(at), n)
	}
	tick, nanos, length, err := l.t.clock.moment()
	if err != nil {
		return err
	}
	for i, v := range []uint64{tick, nanos, length} {
		le.PutUint64(l.mem[l.at.clock+8*i:], v)
	}
	le.PutUint32(l.mem[l.at.thread+arch.ThreadState:], arch.ThreadEnded)
	l.next = l.addr(l.at.descs)
	l.data = patch.NewPiece(l.addr(l.at.modules), uint64(len(l.mem)-l.at.modules))
	return nil
}

// generate writes the code.
func (l *inLine) generate(o *target.ModuleOptions, ticks uint64) error {
	t := l.t
	size := inLineCode + len(t.lay.code.mem)/moduleShare
	room, err := t.Code(t.lay.code.va, t.lay.code.va, size+pageSize)
	if err != nil {
		return err
	}
	start := procfs.PageUp(room)
	l.code = interval.Range{Start: start, End: start + uint64(size)}
	l.text = patch.NewPiece(start+inLineCode, uint64(size-inLineCode))
	text, err := l.codeOf(o, ticks)
	if err == nil {
		err = t.writeCode(start, text)
	}
	if err != nil {
		t.FreeCode(room, size+pageSize)
	}
	return err
}

// codeOf generates the gates and what handlers call.
func (l *inLine) codeOf(o *target.ModuleOptions, ticks uint64) ([]byte, error) {
	slots := native.KernelSlotEnv{Keys: l.addr(l.at.keys), Slots: l.addr(l.at.slots), CPUs: l.at.cpus, Kernel: l.t.arch}
	mm, _, err := l.t.k.Offset("task_struct", "mm")
	if err != nil {
		return nil, err
	}
	env := native.KernelRuntimeEnv{
		KernelSlotEnv: slots, Event: o.Event, MM: int32(mm), Clock: l.addr(l.at.clock), Thread: l.addr(l.at.thread), Ticks: ticks,
		Modules: interval.Range{Start: l.text.Addr, End: l.text.Addr + l.text.Size},
	}
	var text []byte
	at := func() uint64 {
		for len(text)%64 != 0 {
			text = append(text, native.Breakpoint)
		}
		return l.code.Start + uint64(len(text))
	}
	for kind := range native.KernelSlotKinds {
		addr := at()
		g, err := native.NewKernelSlotGate(addr, kind, slots)
		if err != nil {
			return nil, err
		}
		l.gates[kind] = slotGate{addr, g.Abandon}
		env.Reads = append(env.Reads, g.Faults...)
		text = append(text, g.Code...)
	}
	run, err := native.NewKernelRuntime(at(), env, &l.t.writer)
	if err != nil {
		return nil, err
	}
	text = append(text, run.Code...)
	if len(text) > inLineCode {
		return nil, fmt.Errorf("gates and runtime of handlers in line: %d bytes, more than %d", len(text), inLineCode)
	}
	l.run = run
	return text, nil
}

// starters are functions that tasks enter with interrupts and preemption on, in a guest that does nothing too: the system calls that most programs make, and what
// the kernel does every second by itself.
var starters = []string{
	"vmstat_shepherd", "vmstat_update", "__x64_sys_read", "__x64_sys_write", "__x64_sys_openat", "__x64_sys_close", "__x64_sys_poll", "__x64_sys_ppoll",
	"__x64_sys_pselect6", "__x64_sys_epoll_wait", "__x64_sys_epoll_pwait", "__x64_sys_futex", "__x64_sys_clock_nanosleep", "__x64_sys_wait4",
	"__x64_sys_getpid", "__x64_sys_getppid", "__x64_sys_ioctl", "__x64_sys_recvmsg", "__x64_sys_sendto",
}

// The functions to which the kernel gives the registers of a fault in its own code: the first one looks for an instruction in the table of exceptions
// (arch/x86/mm/extable.c), the other is called for a page fault that no entry can be for (arch/x86/mm/fault.c, since Linux 5.12).
const (
	faultFunction     = "fixup_exception"
	pageFaultFunction = "page_fault_oops"
)

// ticksOf is a time in ticks of the guest's time-stamp counter.
func (t *Target) ticksOf(d time.Duration) (uint64, error) {
	var khz [4]byte
	at, ok := t.k.Addr("tsc_khz")
	if !ok || t.k.Read(at, khz[:]) != nil || le.Uint32(khz[:]) == 0 {
		return 0, errno.Errorf(unix.EOPNOTSUPP, "the guest's kernel does not know the rate of its time-stamp counter (tsc_khz), by which the wait is bounded")
	}
	hi, lo := bits.Mul64(uint64(d), uint64(le.Uint32(khz[:])))
	ticks, _ := bits.Div64(hi, lo, uint64(time.Second/1000))
	return max(ticks, 1), nil
}

// retire notes the sites that a change has taken out.
func (l *inLine) retire(sites []*target.Site, change uint64) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range sites {
		l.retired[s] = change
	}
}

// reclaim notes that nobody is in a retired site's detour any more.
func (l *inLine) reclaim(s *target.Site) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.retired, s)
}

// letThreadGo answers a task that starts a module and asks an earlier tracer, which has gone: it goes on, and ends soon. One that no task has taken yet
// is not begun any more. Precondition: nobody serves it.
func letThreadGo(l *layout) {
	off := newControl(l.control.mem).get(hdrThread)
	if off == 0 || off-1 > uint64(len(l.data.mem)-arch.ThreadSize) || (off-1)%8 != 0 {
		return
	}
	w := threadWords(l.data.mem[off-1:])
	w.become(arch.ThreadWaits, arch.ThreadEnded)
	w.storeUnserved(1)
	timedOut := -int64(unix.ETIMEDOUT)
	w.storeLong(arch.ThreadAnswer, uint64(timedOut))
	w.become(arch.ThreadAsks, arch.ThreadAnswered)
}

// errNoStart says that no task came to start a module.
var errNoStart = errors.New("no task of the guest came by to run the module's start or end")
