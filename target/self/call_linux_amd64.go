package self

//lint:file-ignore U1000 the assembly uses what looks unused

import (
	"os"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// A handler runs on the system stack (g0) of the thread that hit, as the runtime's own
// systemstack runs functions. There the scheduler can not take the goroutine away, and the
// garbage collector waits, as for a handler of Linux with preemption off. The gate (see
// gate_linux_amd64.s) builds a hit on that stack and calls dispatch.

// Offsets that the gate has as constants (fitsGate), in bytes.
const (
	gateM       = 48
	gateSchedSP = 56
	gateG0      = 0
	gateSchedPC = 64
	gateSchedBP = 96
	gateProcID  = 64
)

// gateSwitch is the pc that a goroutine shows which is on its system stack for a while: in
// runtime.systemstack_switch.
var gateSwitch uint64

// Offsets that differ between Go versions, for the gate: in m, and of the write barriers'
// buffer in p.
var gateCurG, gateP, gateLocks, gateMallocing, gateBarrier uint64

const (
	gateBelow = 256  // left free between a hit and what is above it on the system stack
	gateRoom  = 8192 // that a handler finds below its hit at least, in bytes

	actionLeave = uint64(arch.ActionLeave)
	trapPanic   = target.TrapPanic
)

// Kinds of calls.
const (
	kindHandler = iota
	kindPanic   // not a handler: gopanic begins
	kindSleep   // the handler runs on a goroutine of its own
	kindFatal   // not a handler: the runtime is about to end the program
)

// desc is what the gate is given: one handler. It lies in the Go heap, where objects do not
// move, and is kept by Target.calls.
type desc struct {
	ip      uint64 // what Regs.IP is
	kind    uint32
	wide    uint32
	missed  uint32 // the action where the handler is not run
	_       uint32
	busy    uint64 // counts of hits at which it was not run
	system  uint64
	stopped uint64
	off     atomic.Bool
	name    string // of the handler's owner, see target.Handler
	h       target.Handler
	point   amd64.Point
}

// hit is one run of a handler, on the system stack.
type hit struct {
	regs      amd64.Regs
	desc      *desc
	instance  uint64
	frame     uint64 // of the detour
	action    uint64
	word0     uint64 // what the detour has at the top of its frame, and below
	word1     uint64
	top       uint64    // the stack pointer at the point; 0: the goroutine's sched is not ours
	sched     [3]uint64 // what that held: sp, pc, bp
	resume    uint64    // in the detour
	g, m, g0  uint64
	busy      uint64 // address of the thread's word in busyTable
	xsave     uint64
	locks     int32 // of the m, when the handler began
	mallocing int32
	failing   uint32
	direction uint32 // the direction flag, where it may be set
	trap      int32
	mxcsr     uint32
	faultPC   uint64
	faultAddr uint64 // and a word of gateRestore's
	panicType uint64
	panicData uint64
}

// Where a hit says where its detour goes on, and what it interrupted.
const (
	hitResume = uint64(unsafe.Offsetof(hit{}.resume))
	hitG      = uint64(unsafe.Offsetof(hit{}.g))
	hitIP     = uint64(unsafe.Offsetof(hit{}.regs) + unsafe.Offsetof(amd64.Regs{}.IP))
	hitSP     = uint64(unsafe.Offsetof(hit{}.regs) + unsafe.Offsetof(amd64.Regs{}.SP))
	hitBP     = uint64(unsafe.Offsetof(hit{}.regs) + unsafe.Offsetof(amd64.Regs{}.BP))
)

// The gate knows these offsets.
const (
	_ = -unsafe.Offsetof(hit{}.regs)
	_ = 128 - unsafe.Offsetof(amd64.Regs{}.IP)
	_ = unsafe.Offsetof(amd64.Regs{}.IP) - 128
	_ = 144 - unsafe.Offsetof(amd64.Regs{}.X)
	_ = unsafe.Offsetof(amd64.Regs{}.X) - 144
	_ = 48 - amd64.GateFlags
	_ = amd64.GateFlags - 48
)

// gatePC and gateEndPC tell where the gate's code is, the others where signal handlers are.
func gatePC() uintptr

func gateEndPC() uintptr

func sigfaultPC() uintptr

func sigurgPC() uintptr

// dispatch runs the handler of a hit.
//
//go:norace
func dispatch(h *hit) (action uint64) {
	d := h.desc
	if d.h.Off != nil && d.h.Off.Load() {
		return uint64(d.missed)
	}
	if d.off.Load() {
		atomic.AddUint64(&d.stopped, 1)
		return uint64(d.missed)
	}
	a := d.h.Run(&h.regs, h.instance)
	if d.h.Entry != nil {
		callEntry(d, h)
		a = arch.ActionGo
	}
	return h.land(a)
}

// land has a thread that a handler sends elsewhere go on in the detour that it came from, if its
// place is there, and nowhere in the middle of a jump. It gives the action.
//
//go:norace
func (h *hit) land(a arch.Action) uint64 {
	if a != arch.ActionLeave {
		return uint64(a)
	}
	to, inside := h.regs.IP, false
	if table := word(amd64.LandingWord(h.resume)); table != 0 {
		n, _ := amd64.LandingSize(bytesAt(table, amd64.LandingHead))
		to, inside = amd64.Land(bytesAt(table, n), to)
	}
	if to == h.regs.IP && !inside {
		lo, n := amd64.Around(to)
		inside = amd64.JumpsOver(bytesAt(lo, n), to, isDetour)
	}
	if !inside {
		h.regs.IP = to
		return uint64(a)
	}
	const why = "the new instruction pointer is inside an instruction that a probe's jump has taken the place of"
	if d := h.desc; d.h.Fault == nil || !d.h.Fault(&h.regs, target.TrapPanic, target.Why(why)) {
		d.off.Store(true)
	}
	return uint64(h.desc.missed)
}

// Bounds of the text of a panic, and of the time that its value may take to make it.
const (
	maxPanicText = 1024
	panicTextIn  = time.Second
)

// NewCall makes a handler callable by generated code.
func (t *Target) NewCall(h *target.Handler) (*arch.Call, error) {
	if h.Sleepable && h.Entry != nil {
		return nil, errno.Errorf(unix.EOPNOTSUPP, "a jprobe's Entry can not sleep: its arguments stand on the stack of the goroutine that waits")
	}
	if raceEnabled && !h.Sleepable {
		return nil, errno.Errorf(unix.EOPNOTSUPP, "the program is built with -race, whose checks can not run in an atomic handler: use FlagSleepable, an event, or a build without -race")
	}
	if h.Run == nil {
		return nil, errno.Errorf(unix.EINVAL, "a handler without a function to run")
	}
	d := &desc{ip: h.Point.Addr, missed: uint32(arch.ActionDrop), h: *h, point: h.Point, name: h.Name}
	if h.WideVectors {
		d.wide = 1
	}
	d.point.Mem, d.point.Callers = t, t.callers
	c := &arch.Call{Desc: uint64(uintptr(unsafe.Pointer(d)))}
	if h.Sleepable {
		if err := t.findWrap(); err != nil {
			return nil, err
		}
		d.kind, d.wide, c.Room = kindSleep, 0, sleepNeed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !h.Sleepable {
		if err := watch.start(); err != nil {
			return nil, err
		}
	}
	t.calls[c.Desc] = d
	return c, nil
}

// EndCall waits until no thread runs the handler, nor is on the way to it, and forgets it.
func (t *Target) EndCall(c *arch.Call) {
	t.mu.Lock()
	d := t.calls[c.Desc]
	delete(t.calls, c.Desc)
	t.mu.Unlock()
	if d == nil {
		return
	}
	d.off.Store(true)
	if t.drain() != nil { // threads could not be stopped: one may come yet
		unix.RawSyscall(sysMembarrier, membarrierSyncCore, 0, 0)
		t.mu.Lock()
		t.late = append(t.late, d)
		t.mu.Unlock()
	}
	t.await(d)
}

// Quiet waits until no thread runs the handler, whose Off is set.
func (t *Target) Quiet(c *arch.Call) {
	t.mu.Lock()
	d := t.calls[c.Desc]
	t.mu.Unlock()
	if d == nil {
		return
	}
	// A thread notes its run, then looks at Off: behind this each has done both in our sight,
	// or neither.
	unix.RawSyscall(sysMembarrier, membarrierSyncCore, 0, 0)
	t.await(d)
}

// await waits until no thread runs the handler.
func (t *Target) await(d *desc) {
	for wait := 10 * time.Microsecond; t.runs(d); wait = min(2*wait, drainWait) {
		time.Sleep(wait)
	}
}

// runs says whether a thread runs the handler.
func (t *Target) runs(d *desc) bool {
	es, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return false
	}
	for _, e := range es {
		tid, err := strconv.Atoi(e.Name())
		if err != nil || tid >= maxTID {
			continue
		}
		if at := word(busyTable+8*uint64(tid)) &^ seenMask; at != 0 && t.runsAt(at, d) {
			return true
		}
	}
	return false
}

// runsAt says whether the hit at an address is one of the handler. The thread may end it, and
// itself, meanwhile.
func (t *Target) runsAt(at uint64, d *desc) bool {
	var b [8]byte
	return t.Read(at+uint64(unsafe.Offsetof(hit{}.desc)), b[:]) == nil && le.Uint64(b[:]) == uint64(uintptr(unsafe.Pointer(d)))
}

// Guards are the calls that are to be made where something begins that a handler must not do. A panic
// in a handler is caught. Where the runtime ends the program (a handler that blocks, a map that two
// threads write), the probe is named on the standard error first. All else goes on.
func (t *Target) Guards() map[string]*arch.Call {
	out := map[string]*arch.Call{}
	t.mu.Lock()
	defer t.mu.Unlock()
	for fn, kind := range map[string]uint32{"runtime.gopanic": kindPanic, "runtime.throw": kindFatal, "runtime.fatal": kindFatal} {
		d := &desc{kind: kind}
		c := &arch.Call{Desc: uint64(uintptr(unsafe.Pointer(d)))}
		t.calls[c.Desc], out[fn] = d, c
	}
	return out
}

// What the gate writes around the name of a probe before the program dies.
var (
	fatalHead = "kprobes: the program dies in a handler of the "
	fatalTail = ", which did what an atomic handler must not do (docs/HANDLERS.md)\n"
)

// Missed tells how often the call's handler was not run.
func (t *Target) Missed(c *arch.Call) target.Missed {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.calls[c.Desc]
	if d == nil {
		return target.Missed{}
	}
	return target.Missed{Busy: atomic.LoadUint64(&d.busy), System: atomic.LoadUint64(&d.system), Stopped: atomic.LoadUint64(&d.stopped)}
}

// InHandler says whether the calling code is a handler of a probe: it runs on a system stack,
// or on the thread of a sleepable handler, which has it for itself.
func (t *Target) InHandler() bool {
	g := currentG()
	m := word(g + gateM)
	if m == 0 || word(m+gateG0) == g {
		return m != 0
	}
	procPin()
	defer procUnpin()
	m = word(g + gateM)
	return t.control != nil && word(busyTable+8*uint64(uint32(word(m+gateProcID)))) != 0
}

// hitOf is the hit that registers stand at the start of.
func hitOf(r *amd64.Regs) *hit { return (*hit)(unsafe.Pointer(r)) }

func addStopped(d *desc) { atomic.AddUint64(&d.stopped, 1) }

// seenMask are the low bits of a thread's word in busyTable, which is the address of a hit else. They
// count how often the word was seen unchanged; seenSleep is that of a sleepable handler.
const (
	seenMask  = 7
	seenSleep = 7
)

// dispatchFailed tells of a handler that was abandoned.
//
//go:norace
func dispatchFailed(h *hit) (action uint64) {
	d := h.desc
	if d.h.Fault == nil || !d.h.Fault(&h.regs, int(h.trap), h.reason()) {
		d.off.Store(true)
	}
	return uint64(d.missed)
}
