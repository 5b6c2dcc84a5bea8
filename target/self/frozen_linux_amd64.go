package self

import (
	"syscall"
	"unsafe"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
	"kprobes.dev/kprobes/internal/target/watchpoint"
)

// What is done while the world is stopped (world_linux_amd64.go says what may not be). Package patch decides, and says in which
// order; here threads are read, and what is decided is done.
//
//	1. Every thread is looked at, and every goroutine that was preempted between two
//	   instructions. A goroutine that was preempted inside the bytes that a jump will take, or a
//	   handler that will go back to a detour which other code replaces, blocks the change.
//	2. The bytes are compared with what is expected, and written. If that fails what was written is put back.
//	3. The tables of the signal handlers are replaced.
//	4. The threads are moved. They are the process's own: no tracer can die between this and the writes.

// verdict says how it went.
type verdict int32

const (
	changed verdict = iota
	blockedBy
	foreignBytes
	writeFailed
)

// plan is a change, ready to be made in a stopped world. Everything in it is allocated
// beforehand.
type plan struct {
	threads     *patch.Threads
	retired     *patch.Retired
	runs        []patch.Run
	heads       [4]uint64 // what the words at control block become: faults and their number, traps and theirs
	control     *[4]uint64
	mem         int // descriptor of /proc/self/mem
	lay         *layout
	places      *places
	goroutines  []goroutine // not nil: all goroutines are to be listed
	counted     int
	own         uint64           // the stopper's g
	reclaimable []reclaimable    // slots that may be cleared; by goroutine
	code        []interval.Range // where detours stand; for reclaimable
	salts       []uint64         // of the events that are armed; for reclaimable
	claimers    [64]claimer
	claimed     int
	unsettled   bool                 // not all that is reclaimable could be looked at
	dirty       bool                 // a thread is in a signal handler: it may come back to anywhere
	once        bool                 // it is not tried again
	handler     bool                 // the thread that blocks is in a signal handler
	gate        bool                 // it is in the gate, and may come from any detour
	blocks      func() target.Blocks // the new sites of groups that it blocks, if nothing else; nil: there are no groups

	opening *watchpoint.Opening // not nil: this is no change, and its events are opened

	late    bool // a thread did not stop
	verdict verdict
	tid     int32 // the thread that blocks
	at      uint64
	errno   syscall.Errno
}

// places are addresses in the runtime, of its variables, and of our own assembly.
type places struct {
	allgs   uint64         // variable: the list of all goroutines, a slice
	allgadd interval.Range // changes it
	async   interval.Range // asyncPreempt: what it is called by is the instruction that was preempted
	async2  interval.Range // asyncPreempt2, which it calls
	gate    interval.Range
}

// change stops the world and makes the change. It returns the thread that could not be
// stopped, 0 if all were. All signals must be blocked.
//
//go:norace
func (p *plan) change(w *worldState) int32 {
	if tid := w.stop(); tid != 0 {
		return tid
	}
	if p.opening != nil {
		p.open(w)
	} else {
		p.run(w)
	}
	w.release()
	return 0
}

//go:norace
func (p *plan) run(w *worldState) {
	p.verdict, p.dirty, p.handler, p.gate = changed, false, false, false
	p.retired.Begin()
	for i := uint32(0); i < w.asked && p.verdict == changed; i++ {
		p.look(&w.slots[w.list[i]])
	}
	if p.verdict == changed && lines.n > 0 {
		lineLook(p, w)
	}
	if p.verdict == changed {
		p.lookPreempted()
	}
	if p.verdict == changed {
		p.patch()
	}
	if p.verdict != changed {
		return
	}
	*p.control = p.heads
	if p.goroutines != nil {
		p.list(w)
	}
	if p.reclaimable != nil {
		p.reap(w)
	}
	for i := uint32(0); i < w.asked; i++ {
		p.move(&w.slots[w.list[i]])
	}
	syscall.RawSyscall(sysMembarrier, membarrierSyncCore, 0, 0)
}

// Offsets in struct ucontext (asm/ucontext.h, asm/sigcontext.h).
const (
	ucStackFlags = 24
	ucRBP        = 120
	ucRSP        = 160
	ucRIP        = 168
	ucFlags      = 176

	onStack  = 1      // SS_ONSTACK
	trapFlag = 1 << 8 // EFLAGS.TF: a trap after the next instruction (SDM vol. 1, section 3.4.3)
)

const (
	sysMembarrier      = 324
	membarrierSyncCore = 1 << 5
)

// word is the word at an address that is known to be there.
//
//go:norace
//go:nocheckptr
func word(addr uint64) uint64 { return **(**uint64)(unsafe.Pointer(&addr)) }

//go:norace
//go:nocheckptr
func setWord(addr, v uint64) { **(**uint64)(unsafe.Pointer(&addr)) = v }

// look looks at a parked thread.
//
//go:norace
func (p *plan) look(s *slot) {
	if s.state&3 != slotParked {
		return
	}
	uc := uint64(s.uc)
	pc := word(uc + ucRIP)
	switch {
	case p.places.allgadd.Contains(pc):
		p.block(s.tid, pc)
		return
	case p.places.gate.Contains(pc): // it may come from any detour, and go back there
		p.unsure(s.tid, pc, p.threads.AnyDetour())
		p.gate = p.verdict != changed
	case lines.code.Contains(pc):
		p.meet(s.tid, word(uc+ucR13), false)
	case word(uc+ucStackFlags)&onStack != 0: // in somebody's signal handler that does not block our signal
		p.unsure(s.tid, pc, p.threads.Anywhere())
		p.handler = p.verdict != changed
	}
	p.meet(s.tid, pc, true)
	if h := word(busyTable+8*uint64(s.tid)) &^ seenMask; h != 0 { // a handler runs: what hit may be preempting a goroutine
		p.meet(s.tid, word(h+hitResume), false)
		p.preempted(s.tid, word(h+hitG), word(h+hitIP), word(h+hitSP), word(h+hitBP))
	}
	if s.g != 0 {
		p.lookStack(s, pc, word(uc+ucRSP), word(uc+ucRBP))
	}
}

// unsure takes into account a thread that may come back to anywhere.
//
//go:norace
func (p *plan) unsure(tid int32, pc uint64, blocks bool) {
	p.dirty = true
	if blocks {
		p.block(tid, pc)
	}
}

// lookStack looks whether the goroutine that a thread runs, or has left for its system
// stack, is being preempted.
//
//go:norace
func (p *plan) lookStack(s *slot, pc, sp, bp uint64) {
	g := uint64(s.g)
	p.preempted(s.tid, g, pc, sp, bp)
	m := word(g + uint64(p.lay.M))
	if m == 0 {
		return
	}
	if cur := word(m + uint64(p.lay.CurG)); cur != 0 && cur != g {
		p.parked(s.tid, cur)
	}
}

// parked looks at a goroutine that does not run, or has left its stack for the system's.
//
//go:norace
func (p *plan) parked(tid int32, g uint64) {
	if pc := word(g + uint64(p.lay.SchedPC)); p.places.async2.Contains(pc) {
		p.preempted(tid, g, pc, word(g+uint64(p.lay.SchedSP)), word(g+uint64(p.lay.SchedBP)))
	}
}

// lookPreempted looks at all goroutines.
//
//go:norace
func (p *plan) lookPreempted() {
	list, n := word(p.places.allgs), word(p.places.allgs+8)
	for i := uint64(0); i < n && p.verdict == changed; i++ {
		p.parked(0, word(list+8*i))
	}
}

// maxCallees is more than asyncPreempt2 calls one within the other on a goroutine's stack.
const maxCallees = 8

// preempted looks whether a goroutine at pc is in asyncPreempt or what that calls, and where
// it was then. Frame pointers lead there; before asyncPreempt has made its frame, and once it
// has left it, the place stands at the stack pointer.
//
//go:norace
func (p *plan) preempted(tid int32, g, pc, sp, bp uint64) {
	lo, hi := word(g+uint64(p.lay.StackLo)), word(g+uint64(p.lay.StackHi))
	if p.places.async.Contains(pc) && sp >= lo && sp+16 <= hi {
		p.meet(tid, word(sp), false)
		p.meet(tid, word(sp+8), false)
	}
	for range maxCallees {
		if bp < lo || bp+16 > hi || bp&7 != 0 {
			return
		}
		ret := word(bp + 8)
		p.meet(tid, ret, false) // also of a function that has no frame of its own yet, or whose probe is at work
		if p.places.async.Contains(pc) {
			return
		}
		pc, lo, bp = ret, bp, word(bp)
	}
}

// meet takes into account that a thread is at an address, or will come back to it.
//
//go:norace
func (p *plan) meet(tid int32, a uint64, is bool) {
	p.retired.Mark(a)
	blocks := false
	if is {
		blocks = p.threads.Standing(a).Fate == patch.Blocks
	} else {
		blocks = p.threads.Returning(a)
	}
	if blocks {
		p.block(tid, a)
	}
}

//go:norace
func (p *plan) block(tid int32, at uint64) {
	p.verdict, p.tid, p.at = blockedBy, tid, at
}

// move moves a thread that stands in bytes that have changed, or in a detour that goes.
//
//go:norace
func (p *plan) move(s *slot) {
	if s.state&3 != slotParked {
		return
	}
	uc := uint64(s.uc)
	w := p.threads.Standing(word(uc + ucRIP))
	if w.Fate != patch.Moves && w.Fate != patch.Leaves {
		return
	}
	setWord(uc+ucRIP, w.To)
	setWord(uc+ucRSP, word(uc+ucRSP)+w.SP)
	if w.Fate == patch.Leaves { // it was perhaps about to step a copy
		setWord(uc+ucFlags, word(uc+ucFlags)&^trapFlag)
	}
}

// patch checks and writes the program's bytes.
//
//go:norace
func (p *plan) patch() {
	for i := range p.runs {
		r := &p.runs[i]
		readCode(r.Addr, r.Have)
		if site := r.Resolve(patch.Breakpoint); site != nil {
			p.verdict, p.at = foreignBytes, site.Addr
			return
		}
	}
	for i := range p.runs {
		r := &p.runs[i]
		if !r.Changed() {
			continue
		}
		if errno := p.write(r.Addr, r.New); errno != 0 {
			p.verdict, p.at, p.errno = writeFailed, r.Addr, errno
			p.unpatch(i)
			return
		}
	}
}

// unpatch puts back the first n runs, the last first.
//
//go:norace
func (p *plan) unpatch(n int) {
	for i := n - 1; i >= 0; i-- {
		if r := &p.runs[i]; r.Changed() {
			p.write(r.Addr, r.Have)
		}
	}
}

// readCode reads the program's bytes.
//
//go:norace
//go:nocheckptr
func readCode(addr uint64, to []byte) {
	have := *(**[1 << 30]byte)(unsafe.Pointer(&addr))
	for i := range to {
		to[i] = have[i]
	}
}

//go:norace
func (p *plan) write(addr uint64, b []byte) syscall.Errno {
	got, _, e := syscall.RawSyscall6(syscall.SYS_PWRITE64, uintptr(p.mem), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(addr), 0, 0)
	if e == 0 && int(got) != len(b) {
		return syscall.EIO
	}
	return e
}
