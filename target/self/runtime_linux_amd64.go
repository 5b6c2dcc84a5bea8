package self

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/goabi"
)

// currentG gives the address of the running goroutine's g, as the assembler finds it.
func currentG() uint64

// currentGCode gives the address of currentG's own code, not that of its ABI wrapper.
func currentGCode() uint64

// currentSP gives the stack pointer, about.
func currentSP() uint64

// procPin keeps the goroutine on its P: it increments m.locks, and nothing else. The
// runtime leaves it open to other packages.
//
//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()

// iscgo says whether the program has C code that Go code calls, or code that does as if. The
// runtime leaves it open to other packages.
//
//go:linkname iscgo runtime.iscgo
var iscgo bool

// layout is where this process's runtime keeps what we need: offsets in bytes in g and m.
type layout struct {
	goabi.Layout
	TLS int32 // of the pointer to the running g, from the FS base
}

// runtime gives what generated code needs of it.
func (l *layout) runtime() *arch.GoRuntime {
	return &arch.GoRuntime{
		TLS: l.TLS, StackLo: l.StackLo, StackHi: l.StackHi, M: l.M, GoID: l.GoID, ProcID: l.ProcID,
	}
}

// findLayout finds the layout of this process's runtime: the one that belongs to the
// toolchain's version, checked against what two goroutines on two threads hold. A runtime
// that is not known, or is not as its version says, is an error (EOPNOTSUPP). Nothing is
// changed, and memory is read so that a wrong offset can not fault.
//
// One field is not seen to change: mallocing is 0 in all code that may ask. It lies
// between id and locks, which are.
func findLayout() (*layout, error) { return findLayoutOf(runtime.Version()) }

func findLayoutOf(version string) (*layout, error) {
	known := goabi.Layouts(version)
	if version == "" || len(known) == 0 {
		return nil, errno.Errorf(unix.EOPNOTSUPP, "go runtime: the layout of version %q is not known here: "+
			"build the program with Go 1.25 or 1.26, or with a version of kprobes that knows this one; nothing was changed", version)
	}
	l := &layout{Layout: known[0]}
	if err := l.validate(); err != nil {
		instead := "build the program with an unchanged Go 1.25 or 1.26"
		if _, experiments, ok := strings.Cut(version, "-X:"); ok {
			instead = "build the program without GOEXPERIMENT=" + experiments
		}
		return nil, errno.Errorf(unix.EOPNOTSUPP, "go runtime: version %q does not have the layout of Go 1.%d: %w: %s; nothing was changed", version, l.Minor, err, instead)
	}
	return l, nil
}

// validate finds the TLS offset and checks every field, on two threads that the runtime
// made itself: those that C made have less to show.
func (l *layout) validate() error {
	mem, err := openOwnMemory()
	if err != nil {
		return err
	}
	defer mem.close()
	if l.TLS, err = findTLS(mem); err != nil {
		return err
	}
	var threads [2]*seen
	for i := range threads {
		s, done, err := l.onThread(mem)
		if err != nil {
			return err
		}
		defer done()
		if err := l.lookParked(mem, s); err != nil {
			return err
		}
		threads[i] = s
	}
	return l.compare(mem, threads[0], threads[1])
}

// findTLS finds the offset at which the runtime keeps g, in the code that the assembler
// made of a load of g in this very program.
func findTLS(mem *ownMemory) (int32, error) {
	var code [32]byte
	if err := mem.read(currentGCode(), code[:]); err != nil {
		return 0, err
	}
	off, ok := amd64.FirstFSLoad(code[:])
	if !ok {
		return 0, fmt.Errorf("the code that loads g (% x…) does not load it through FS", code[:16])
	}
	return off, nil
}

// seen is what one thread shows while it runs a goroutine.
type seen struct {
	g, m uint64
	id   uint64 // m.id
	tid  int
}

// look checks the fields of the running thread and its goroutine. Precondition: the
// goroutine is locked to its thread.
func (l *layout) look(mem *ownMemory) (*seen, error) {
	c := &checker{mem: mem}
	s := &seen{g: currentG(), tid: unix.Gettid()}
	l.checkTLS(c, s)
	s.m = c.word("g.m", s.g, l.M)
	c.equal("m.curg", s.m, l.CurG, s.g)
	c.equal("m.procid", s.m, l.ProcID, uint64(s.tid))
	l.checkStack(c, s)
	l.checkSystem(c, s)
	c.equal("g.goid", s.g, l.GoID, ownGoID())
	c.that("g.atomicstatus", s.g, l.Status, "running", func(v uint64) bool { return status(v) == statusRunning })
	l.checkP(c, s)
	s.id = c.word("m.id", s.m, l.ID)
	c.that("m.id", s.m, l.ID, "a small number", func(v uint64) bool { return v < 1<<20 })
	c.that("m.mallocing", s.m, l.Mallocing, "0", isZero32)
	l.checkLocks(c, s)
	return s, c.err
}

func (l *layout) checkTLS(c *checker, s *seen) {
	const archGetFS = 0x1003 // asm/prctl.h
	var base uint64
	if _, _, e := unix.RawSyscall(unix.SYS_ARCH_PRCTL, archGetFS, uintptr(unsafe.Pointer(&base)), 0); e != 0 {
		c.fail(fmt.Errorf("the FS base can not be had: %w", e))
		return
	}
	c.equal("g in the thread's own memory", base, l.TLS, s.g)
}

// What g.stackguard0 may be (runtime/stack.go): the distance from g.stack.lo, without and
// with -race, or a mark.
var (
	stackGuards = []uint64{928, 800*2 + 128}
	stackMarks  = []uint64{1<<64 - 1314, 1<<64 - 275} // stackPreempt, stackForceMove
)

// checkStack checks the bounds of the goroutine's stack: a power of two (runtime/stack.go),
// of which the guard lies a little above the lower end, or is one of the marks beyond all
// addresses that ask for a preemption or a move. The stack may be moved meanwhile, then
// once more.
func (l *layout) checkStack(c *checker, s *seen) {
	for range 8 {
		lo := c.word("g.stack.lo", s.g, l.StackLo)
		hi := c.word("g.stack.hi", s.g, l.StackHi)
		guard := c.word("g.stackguard0", s.g, l.StackGuard0)
		sp, size := currentSP(), hi-lo
		onStack := sp > lo && sp < hi && size&(size-1) == 0 && size < 1<<40
		guarding := slices.Contains(stackGuards, guard-lo) || slices.Contains(stackMarks, guard)
		if onStack && guarding || c.err != nil {
			return
		}
		if lo == c.word("g.stack.lo", s.g, l.StackLo) {
			c.fail(fmt.Errorf("g.stack.lo, hi and g.stackguard0 (offsets %d, %d, %d) are 0x%x, 0x%x and 0x%x, the stack pointer 0x%x",
				l.StackLo, l.StackHi, l.StackGuard0, lo, hi, guard, sp))
		}
	}
	c.fail(errors.New("g.stack changes whenever it is looked at"))
}

// checkSystem checks the thread's two other goroutines: that of its system stack, which
// stands where it was left for the user's, and that of its signals.
func (l *layout) checkSystem(c *checker, s *seen) {
	g0, sig := c.word("m.g0", s.m, l.G0), c.word("m.gsignal", s.m, l.GSignal)
	c.equal("m.g0.m", g0, l.M, s.m)
	c.equal("m.gsignal.m", sig, l.M, s.m)
	if c.err == nil && (g0 == sig || g0 == s.g || sig == s.g) {
		c.fail(fmt.Errorf("m.g0 0x%x, m.gsignal 0x%x and m.curg 0x%x are not three", g0, sig, s.g))
	}
	lo, hi := c.word("m.gsignal.stack.lo", sig, l.StackLo), c.word("m.gsignal.stack.hi", sig, l.StackHi)
	if c.err == nil && (lo == 0 || lo >= hi) {
		c.fail(fmt.Errorf("m.gsignal (offset %d) has a stack from 0x%x to 0x%x", l.GSignal, lo, hi))
	}
	lo, hi = c.word("m.g0.stack.lo", g0, l.StackLo), c.word("m.g0.stack.hi", g0, l.StackHi)
	c.that("m.g0.sched.sp", g0, l.SchedSP, "on its stack", func(v uint64) bool { return v > lo && v <= hi })
	c.that("m.g0.sched.pc", g0, l.SchedPC, "in the runtime", inRuntime)
}

// checkBarriers checks the buffer of write barriers in a P: the next entry's address, that
// behind the last one, and the entries, of which there are 512 (runtime/mwbbuf.go). Nobody
// writes to it but the thread that has the P. Where the offset is one word too large, the end is taken for the next entry's address and
// the first entry for the end: which it may be, since a P has pointers to what stands behind its buffer. The word below tells.
func (l *layout) checkBarriers(c *checker, p uint64) {
	const entries = 512
	first := p + uint64(l.WBNext) + 16
	c.that("p.wbBuf.next", p, l.WBNext, "in the buffer", func(v uint64) bool { return v >= first && v <= first+8*entries })
	c.that("p.wbBuf.end", p, l.WBNext+8, "the buffer's end", func(v uint64) bool { return v == first+8*entries })
	c.that("the word below p.wbBuf.next", p, l.WBNext-8, "no entry's address", func(v uint64) bool { return v < first-8 || v > first+8*entries })
}

// checkP checks that the thread's P belongs to it. Of a P is known that its number and its
// status come first, and that it points back before long (runtime/runtime2.go). A
// preemption would take it away.
func (l *layout) checkP(c *checker, s *seen) {
	const running = 1
	procPin()
	defer procUnpin()
	p := c.word("m.p", s.m, l.P)
	c.that("m.p.id and m.p.status", p, 0, "those of a running P", func(v uint64) bool {
		return uint32(v) < 1<<16 && v>>32 == running
	})
	l.checkBarriers(c, p)
	for off := int32(8); off < 128; off += 8 {
		if c.word("m.p", p, off) == s.m {
			return
		}
	}
	c.fail(fmt.Errorf("m.p (offset %d) is 0x%x, which does not point back to m 0x%x", l.P, p, s.m))
}

// checkLocks checks the counter of what keeps a goroutine on its thread. Between procPin
// and procUnpin is no call that the scheduler knows of.
func (l *layout) checkLocks(c *checker, s *seen) {
	c.that("m.locks", s.m, l.Locks, "0", isZero32)
	procPin()
	c.that("m.locks", s.m, l.Locks, "1 after procPin", func(v uint64) bool { return uint32(v) == 1 })
	procUnpin()
	c.that("m.locks", s.m, l.Locks, "0 after procUnpin", isZero32)
}

// onThread looks at a goroutine on a thread of its own, which then waits until done is
// called.
func (l *layout) onThread(mem *ownMemory) (s *seen, done func(), err error) {
	looked, release := make(chan struct{}), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		s, err = l.look(mem)
		close(looked)
		<-release
	}()
	<-looked
	if err != nil {
		close(release)
		return nil, nil, err
	}
	return s, func() { close(release) }, nil
}

// lookParked checks what a goroutine that waits and its thread show. It takes a moment
// until it waits.
func (l *layout) lookParked(mem *ownMemory, s *seen) error {
	const patience = 10 * time.Second
	var err error
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(100 * time.Microsecond) {
		c := &checker{mem: mem}
		c.that("g.atomicstatus", s.g, l.Status, "waiting", func(v uint64) bool { return status(v) == statusWaiting })
		c.equal("m.p of a waiting thread", s.m, l.P, 0)
		c.equal("m.curg of a waiting thread", s.m, l.CurG, 0)
		if err = c.err; err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	tries := 8
	for begin := time.Now(); tries > 0 && time.Since(begin) < patience; time.Sleep(100 * time.Microsecond) {
		if err = l.lookSched(mem, s.g); err == nil {
			return nil
		}
		// The collector may move the stack meanwhile, and its thread may have to wait in the middle of that.
		c := &checker{mem: mem}
		if v := c.word("g.atomicstatus", s.g, l.Status); status(v) == uint32(v) {
			tries--
		}
	}
	return err
}

// lookSched checks where a goroutine that waits will go on: in the runtime, in a small
// frame, which ends with the frame pointer and the return address of its caller.
func (l *layout) lookSched(mem *ownMemory, g uint64) error {
	const frame = 256 // runtime.gopark has some 60 bytes
	c := &checker{mem: mem}
	lo, hi := c.word("g.stack.lo", g, l.StackLo), c.word("g.stack.hi", g, l.StackHi)
	sp, pc, bp := c.word("g.sched.sp", g, l.SchedSP), c.word("g.sched.pc", g, l.SchedPC), c.word("g.sched.bp", g, l.SchedBP)
	outer, ret := c.word("the frame pointer at g.sched.bp", bp, 0), c.word("the return address above it", bp, 8)
	onStack := lo < sp && sp <= bp && bp-sp <= frame && bp < outer && outer < hi
	if c.err == nil && (!onStack || !inRuntime(pc) || !inRuntime(ret)) {
		c.fail(fmt.Errorf("g.sched.sp, pc and bp (offsets %d, %d, %d) of a waiting goroutine are 0x%x, 0x%x, 0x%x, its stack 0x%x-0x%x, its caller's frame 0x%x and return address 0x%x",
			l.SchedSP, l.SchedPC, l.SchedBP, sp, pc, bp, lo, hi, outer, ret))
	}
	return c.err
}

// compare checks what differs between two threads.
func (l *layout) compare(mem *ownMemory, one, two *seen) error {
	if one.g == two.g || one.m == two.m || one.id == two.id || one.tid == two.tid {
		return fmt.Errorf("two threads have g 0x%x and 0x%x, m 0x%x and 0x%x, m.id (offset %d) %d and %d, ids %d and %d",
			one.g, two.g, one.m, two.m, l.ID, one.id, two.id, one.tid, two.tid)
	}
	c := &checker{mem: mem}
	if one.id == uint64(one.tid) && two.id == uint64(two.tid) {
		return fmt.Errorf("m.id (offset %d) is the thread's id", l.ID)
	}
	c.equal("m.id, seen again,", one.m, l.ID, one.id)
	c.equal("m.id of the other thread, seen again,", two.m, l.ID, two.id)
	return c.err
}

// Statuses of goroutines (runtime/runtime2.go).
const (
	statusRunning = 2
	statusWaiting = 4
	statusScan    = 0x1000 // the collector looks at its stack
)

func status(v uint64) uint32 { return uint32(v) &^ statusScan }

func isZero32(v uint64) bool { return uint32(v) == 0 }

func inRuntime(pc uint64) bool {
	f := runtime.FuncForPC(uintptr(pc))
	return f != nil && strings.HasPrefix(f.Name(), "runtime.")
}

// ownGoID reads the goroutine's number where the runtime shows it: "goroutine 7 [running]:".
func ownGoID() uint64 {
	var buf [64]byte
	_, rest, _ := bytes.Cut(buf[:runtime.Stack(buf[:], false)], []byte(" "))
	digits, _, _ := bytes.Cut(rest, []byte(" "))
	id, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		return 0 // no goroutine has this number
	}
	return id
}

// checker reads fields and compares them; the first difference stays.
type checker struct {
	mem *ownMemory
	err error
}

func (c *checker) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// word reads a field of the struct at base; 0 after a failure.
func (c *checker) word(name string, base uint64, off int32) uint64 {
	var b [8]byte
	if c.err != nil {
		return 0
	}
	if err := c.mem.read(base+uint64(int64(off)), b[:]); err != nil {
		c.fail(fmt.Errorf("%s (offset %d): %w", name, off, err))
	}
	return binary.LittleEndian.Uint64(b[:])
}

func (c *checker) equal(name string, base uint64, off int32, want uint64) {
	c.that(name, base, off, fmt.Sprintf("0x%x", want), func(v uint64) bool { return v == want })
}

func (c *checker) that(name string, base uint64, off int32, want string, ok func(uint64) bool) {
	if v := c.word(name, base, off); c.err == nil && !ok(v) {
		c.fail(fmt.Errorf("%s (offset %d) is 0x%x, want %s", name, off, v, want))
	}
}
