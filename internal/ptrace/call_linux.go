package ptrace

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// Syscall is a system call for the target to make.
type Syscall struct {
	Nr   uint64
	Args [6]uint64
	// Data is copied into the target before the call and out of it after, and argument
	// DataArg (from 0) becomes its address there. Nil: nothing is copied.
	Data    []byte
	DataArg int

	Result uint64 // filled in: what the kernel returned
	Err    error  // filled in: the errno, as syscall.Errno
}

// callTime is how long the kernel may take for one system call. Tests shorten it.
var callTime = 2 * time.Second

// turnTime is how long the only thread of a process may wait for a processor in all, if many want to run. Other threads would stand still meanwhile: for
// their sake one of several is given up.
const turnTime = 10 * time.Second

// Call lets one of the stopped threads make a system call, and gives its result. The error
// is the call's own errno, or says why none could be made: ErrNoThread (now; another time
// a thread may stand better), ErrSeccomp, ErrUnsupported. The call must be one that does
// not wait and does not end the thread.
//
// If the tracer dies in the middle the thread makes the call, or does not, and then goes
// on with what it was doing.
func (s *Stopped) Call(nr uint64, args ...uint64) (uint64, error) {
	c := Syscall{Nr: nr}
	copy(c.Args[:], args)
	calls := []Syscall{c}
	if err := s.CallAll(calls); err != nil {
		return 0, err
	}
	return calls[0].Result, calls[0].Err
}

// CallAll makes several calls on one thread, one after the other, and fills in their
// results. It stops at none that fails; its own error means that the calls could not be
// made, from the first one without a Result on.
func (s *Stopped) CallAll(calls []Syscall) error {
	return s.Do(func() error {
		c, err := s.newCaller(calls)
		if err != nil {
			return fmt.Errorf("process %d: %w", s.p.pid, err)
		}
		for i := range calls {
			if !keepsMaps(calls[i].Nr) {
				s.maps, s.files = nil, nil
			}
			if err := c.call(&calls[i]); err != nil {
				return fmt.Errorf("process %d: system call %d by thread %d: %w", s.p.pid, calls[i].Nr, c.t.TID, errors.Join(err, c.end()))
			}
		}
		return c.end()
	})
}

// keepsMaps says whether a system call leaves the mappings as they are.
func keepsMaps(nr uint64) bool {
	switch nr {
	case unix.SYS_MEMFD_CREATE, unix.SYS_CLOSE, unix.SYS_RT_SIGACTION, unix.SYS_PRCTL:
		return true
	case unix.SYS_MADVISE:
		return true // but for advice that we do not give
	}
	return false
}

// caller is a thread that makes calls for us.
type caller struct {
	s      *Stopped
	t      *Thread
	gadget gadgets
	place  place
	frame  *frame
	mask   uint64
	masked uint64 // the signals that the thread has blocked, perhaps for its system call only
	back   Regs   // what the thread goes on with
	used   bool   // its registers and mask are the call's
	lost   bool   // it is on its way through the frame by itself
	filter filterList
}

// frame is a signal frame ready to be written.
type frame struct {
	bytes []byte // from sp upwards
	sp    uint64
	data  uint64 // address of the room for arguments
}

// newCaller picks a thread and lays its frame.
func (s *Stopped) newCaller(calls []Syscall) (*caller, error) {
	g := s.p.findGadgets()
	if !g.complete() {
		if err := s.p.CheckImage(); err != nil {
			return nil, err // it died under the search
		}
		return nil, fmt.Errorf("%w: no syscall instruction followed by ret in its code", ErrNoThread)
	}
	err := fmt.Errorf("%w: all have ended", ErrNoThread)
	for _, t := range s.candidates() {
		c := &caller{s: s, t: t, gadget: g.gadgets}
		if err = c.prepare(calls); err == nil {
			return c, nil
		}
		err = fmt.Errorf("thread %d: %w", t.TID, err)
	}
	return nil, err
}

// candidates puts those threads last whose wait would begin anew if we died.
func (s *Stopped) candidates() []*Thread {
	var good, last []*Thread
	for _, t := range s.threads {
		if _, block := t.regs.restarts(); block {
			last = append(last, t)
		} else {
			good = append(good, t)
		}
	}
	return append(good, last...)
}

// prepare checks that the thread can make these calls, and writes its frame.
func (c *caller) prepare(calls []Syscall) (err error) {
	if !c.t.regs.wide() {
		return fmt.Errorf("%w: it runs 32-bit code", ErrNoThread)
	}
	if err := c.checkKernel(calls); err != nil {
		return err
	}
	if err := c.t.abortRseq(); err != nil {
		return err
	}
	if c.mask, err = getSigMask(c.t.TID); err != nil {
		return c.t.lost(err)
	}
	xstate, err := getXstate(c.t.TID)
	if err != nil {
		return c.t.lost(err)
	}
	c.back = c.t.regs
	if c.masked&^c.mask != 0 {
		// The mask of its call alone is lost. The kernel must not end the call for a signal that it blocks: it is made again.
		c.back = c.back.resumed(true)
	}
	data := 0
	for _, call := range calls {
		data = max(data, len(call.Data))
	}
	if c.place, err = c.s.placeFor(c.t, frameSize(len(xstate), data)); err != nil {
		return fmt.Errorf("%w: %w", ErrNoThread, err)
	}
	lo := c.place.Start
	if c.place.clean {
		lo += placeHead
	}
	if c.frame, err = c.layFrame(lo, c.place.End, xstate, data); err != nil {
		return fmt.Errorf("%w: %w", ErrNoThread, err)
	}
	if c.place.clean {
		if err := c.place.mark(c.s.p); err != nil {
			return err
		}
	}
	return c.s.p.WriteMem(c.frame.sp, c.frame.bytes)
}

// checkKernel looks for what would turn a system call into the thread's end.
func (c *caller) checkKernel(calls []Syscall) error {
	st, err := c.t.Status()
	if err != nil {
		return err
	}
	c.masked = st.SigBlk
	if st.ShadowStack {
		return fmt.Errorf("%w: it has a shadow stack, which a return into rt_sigreturn contradicts", ErrUnsupported)
	}
	if c.t.dispatchesSyscalls() {
		return fmt.Errorf("%w: it dispatches system calls to itself (PR_SET_SYSCALL_USER_DISPATCH)", ErrUnsupported)
	}
	switch st.Seccomp {
	case procfs.SeccompStrict:
		return fmt.Errorf("%w: seccomp strict mode", ErrSeccomp)
	case procfs.SeccompFilter:
		if c.filter, err = getFilters(c.t.TID); err != nil {
			return err
		}
	}
	for i := range calls {
		if err := c.allowed(&calls[i]); err != nil {
			return err
		}
	}
	return c.allowed(&Syscall{Nr: unix.SYS_RT_SIGRETURN})
}

// allowed asks the thread's seccomp filters about a call.
func (c *caller) allowed(call *Syscall) error {
	d := CallData{nr: uint32(call.Nr), arch: auditArch, ip: c.gadget.callSite(call.Nr) + syscallSize, args: call.Args}
	ok, err := c.filter.allows(&d)
	if err == nil && !ok {
		err = fmt.Errorf("number %d", call.Nr)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrSeccomp, err)
	}
	return nil
}

// call makes one system call. The steps, and what the thread does if we die after each:
//
//  1. data written         nothing: nobody reads there yet
//  2. registers set        makes the call, returns through the frame
//  3. all signals blocked  the same; the frame brings the mask back
//  4. at the call's entry  the same
//  5. at the call's end    the same, the call is made already
func (c *caller) call(call *Syscall) error {
	args := call.Args
	if call.Data != nil {
		args[call.DataArg] = c.frame.data
		if err := c.s.p.WriteMem(c.frame.data, call.Data); err != nil {
			return err
		}
	}
	if c.filter != nil {
		if err := c.allowed(&Syscall{Nr: call.Nr, Args: args}); err != nil {
			return err
		}
	}
	r := c.back.enter(c.gadget.callSite(call.Nr), c.frame.sp, call.Nr, &args)
	if err := setRegs(c.t.TID, &r); err != nil {
		return c.t.lost(err)
	}
	if !c.used {
		c.used = true
		if err := setSigMask(c.t.TID, ^uint64(0)); err != nil {
			return c.t.lost(err)
		}
	}
	for range 2 {
		if err := c.run(); err != nil {
			return err
		}
	}
	return c.result(call)
}

// run lets the thread go on to its next stop at a system call. The only signals that can
// come are SIGSTOP, which it may have (a stop of its process's group goes on at the end),
// and one for a fault of the call's own making.
func (c *caller) run() error {
	for sig := 0; ; {
		if err := ptrace(unix.PTRACE_SYSCALL, c.t.TID, 0, uintptr(sig)); err != nil {
			return c.t.lost(err)
		}
		begun := time.Now()
		ev, err := c.await(begun.Add(turnTime))
		switch {
		case err != nil:
			c.lost = true
			return fmt.Errorf("%w: the kernel has not ended it in %v; it ends by itself", ErrStuck, time.Since(begun).Round(time.Second))
		case ev.gone:
			c.t.reap(ev)
			return c.t.lost(unix.ESRCH)
		case ev.kind == 0 && ev.signal == int(unix.SIGTRAP)|0x80:
			return nil
		case ev.kind == unix.PTRACE_EVENT_STOP:
			sig = 0
		case ev.kind == 0 && ev.signal == int(unix.SIGSTOP):
			sig = ev.signal
		default:
			return fmt.Errorf("%w: it met %v", ErrNoThread, unix.Signal(ev.signal))
		}
	}
}

// await waits until the thread has stopped or ended: callTime, and until last if it only waits for a processor and no other thread stands still for it.
func (c *caller) await(last time.Time) (event, error) {
	for {
		ev, err := await(c.t.TID, time.Now().Add(callTime))
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(last) || len(c.s.Everyone()) > 1 {
			return ev, err
		}
		if st, statusErr := statusOf(c.t.TID); statusErr != nil || st.State != "R" && st.State != "t" { // t: it has just stopped
			return ev, err
		}
	}
}

// result takes the call's result.
func (c *caller) result(call *Syscall) error {
	r, err := getRegs(c.t.TID)
	if err != nil {
		return c.t.lost(err)
	}
	if r.PC() != c.gadget.callSite(call.Nr)+syscallSize || r.call() != call.Nr {
		return fmt.Errorf("%w: it stands at %#x in system call %d", ErrNoThread, r.PC(), int64(r.call()))
	}
	call.Result, call.Err = uint64(r.result()), nil
	if n := -r.result(); 0 < n && n < 4096 {
		call.Err = unix.Errno(n)
	}
	if call.Data != nil {
		return c.s.p.ReadMem(c.frame.data, call.Data)
	}
	return nil
}

// end puts the thread back: first its mask, while the frame would do the same, then its
// registers, which make the frame dead, and wipes that.
func (c *caller) end() error {
	if c.lost {
		c.t.stopped = false
		return nil
	}
	if c.used {
		if err := setSigMask(c.t.TID, c.mask); err != nil {
			return c.t.lost(err)
		}
		if err := c.t.setRegs(c.back); err != nil {
			return c.t.lost(err)
		}
	}
	if c.place.clean {
		return c.place.wipe(c.s.p)
	}
	// Dead now, but what looks for addresses on stacks must not take it for alive when
	// the stack has grown over it.
	return c.s.p.WriteMem(c.frame.sp, make([]byte, c.place.End-c.frame.sp))
}
