package self

//lint:file-ignore U1000 the assembly uses what looks unused

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/target"
)

// The control block is memory that signal handlers and gates read, outside of the Go heap:
//
//	0           four words: the directory of faults and its length, the table of breakpoints and its
//	residentOff a word: the handler of SIGSEGV (arch.CodegenEnv.Resident)
//	unwindOff   a word: the list of unwind tables (arch.CodegenEnv.Unwind)
//	actionsOff  saved dispositions, actionSize each, by signal number
//
// The tables are mappings of their own. Those words are only changed while the world is
// stopped, when no thread is in a handler.
const (
	faultsOff     = 0
	trapsOff      = 16
	residentOff   = 32
	unwindOff     = 40
	actionsOff    = 64
	actionSize    = 40
	actionHandler = 8
	homeSize      = 4096
)

// controlBlock is the own process's controlBlock.
type controlBlock struct {
	t       *Target
	addr    uint64
	code    interval.Range
	handler *amd64.Handler
	heads   *heads                    // in use
	stood   map[unix.Signal]sigaction // what our handlers stand before
}

// table is a mapping for a table of a handler.
type table struct{ addr, size uint64 }

// sigaction is struct kernel_sigaction (asm-generic/signal.h).
type sigaction struct {
	handler  uint64
	flags    uint64
	restorer uint64
	mask     uint64
}

// hooked are the signals that our handlers stand before.
var hooked = []unix.Signal{unix.SIGTRAP, unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGURG, unix.SIGPROF}

// Where our assembly goes on with what is not its own: fixed once handlers are installed.
var (
	afterFault   [65]uint64 // by signal: the runtime's, or what the disposition is else
	controlWords uint64     // address of the control block, or of noWords
	busyTable    uint64     // by thread id, a word: the hit whose handler runs, and seenMask
)

// noWords are the control block's words when there is none.
var noWords [4]uint64

// newControlBlock makes the control block and installs the handlers.
func (t *Target) newControlBlock() (*controlBlock, error) {
	h := &controlBlock{t: t, stood: map[unix.Signal]sigaction{}, heads: &heads{}}
	var err error
	if h.addr, err = mapAnon(0, homeSize, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil, err
	}
	if busyTable == 0 { // kept for good: a thread may be about to look there
		if busyTable, err = mapAnon(0, 8*maxTID, unix.PROT_READ|unix.PROT_WRITE); err != nil {
			return nil, errors.Join(err, unmap(h.addr, homeSize))
		}
	}
	if err := h.generate(); err != nil {
		return nil, errors.Join(err, unmap(h.addr, homeSize))
	}
	return h, errors.Join(world.open(), h.install())
}

// maxTID is PID_MAX_LIMIT of 64-bit kernels (linux/threads.h).
const maxTID = 4 << 20

// generate makes the handlers that are shared with other targets.
func (h *controlBlock) generate() error {
	at, err := h.t.Code(h.t.lowText(), h.t.lowText()+1, handlerRoom)
	if err != nil {
		return err
	}
	h.handler, err = amd64.NewHandler(at, amd64.HandlerEnv{
		Faults: h.addr + faultsOff, Directory: true, Traps: h.addr + trapsOff, Actions: h.addr + actionsOff,
		Hooked:     h.addr + actionsOff + uint64(unix.SIGTRAP)*actionSize + actionHandler, // the runtime handles it
		ActionSize: actionSize, ActionHandler: actionHandler,
	})
	if err == nil && len(h.handler.Code) > handlerRoom {
		err = fmt.Errorf("signal handler of %d bytes: more than %d", len(h.handler.Code), handlerRoom)
	}
	if err != nil {
		return err
	}
	h.code = interval.Range{Start: at, End: at + handlerRoom}
	_, err = h.t.mem.WriteAt(h.handler.Code, int64(at))
	return err
}

// handlerRoom is more than the generated handlers take, in bytes.
const handlerRoom = 2048

// install puts our handlers before those that stand.
func (h *controlBlock) install() error {
	controlWords = h.addr
	setWord(h.addr+residentOff, h.handler.Entry)
	for _, sig := range hooked {
		old, err := sigactionOf(sig)
		if err != nil {
			return err
		}
		if old.handler <= 1 && sig == unix.SIGPROF {
			continue // the runtime does not use it
		}
		h.stood[sig] = old
		afterFault[sig] = old.handler
		h.save(sig, old)
	}
	for sig := range h.stood {
		if err := setSigaction(sig, h.action(sig)); err != nil {
			return errors.Join(err, h.uninstall(false), h.uninstall(true))
		}
	}
	return nil
}

// save tells the generated handlers what they hand a signal on to: for a fault our own
// assembly, which looks whether a handler of a probe has failed.
func (h *controlBlock) save(sig unix.Signal, old sigaction) {
	at := h.addr + actionsOff + uint64(sig)*actionSize
	next := old
	switch sig {
	case unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL:
		next.handler = uint64(sigfaultPC())
	}
	setWord(at+actionHandler, next.handler)
	setWord(at+actionHandler+8, next.flags)
	setWord(at+actionHandler+16, next.restorer)
	setWord(at+actionHandler+24, next.mask)
}

// action is our disposition of a signal: the old one's flags and mask, with all signals
// blocked and the alternate stack used in any case.
func (h *controlBlock) action(sig unix.Signal) sigaction {
	a := h.stood[sig]
	a.flags |= saSiginfo | saOnstack | saRestorer
	a.mask = ^uint64(0)
	if a.restorer == 0 {
		a.restorer = h.handler.Return
	}
	switch sig {
	case unix.SIGTRAP:
		a.handler = h.handler.Trap
	case unix.SIGURG: // it may come at any time: calls of the system begin again
		a.handler, a.flags = uint64(sigurgPC()), a.flags|saRestart
	case unix.SIGPROF:
		a.handler = uint64(sigurgPC())
	default:
		a.handler = h.handler.Entry
	}
	return a
}

// Flags of struct kernel_sigaction (asm/signal.h).
const (
	saSiginfo  = 0x4
	saRestart  = 0x10000000
	saOnstack  = 0x08000000
	saRestorer = 0x04000000
)

// refit puts our handlers of signals back before ones that were installed since: os/signal
// lets SIGURG be ignored, and installs the runtime's anew.
func (h *controlBlock) refit(sigs ...unix.Signal) error {
	for _, sig := range sigs {
		if _, ok := h.stood[sig]; !ok {
			continue
		}
		now, err := sigactionOf(sig)
		if err != nil {
			return err
		}
		if want := h.action(sig); now.handler == want.handler {
			continue
		}
		h.stood[sig] = now
		afterFault[sig] = now.handler
		h.save(sig, now)
		if err := setSigaction(sig, h.action(sig)); err != nil {
			return err
		}
	}
	return nil
}

// uninstall puts back what stood before our handler of SIGURG, or before the others, where
// ours still stands.
func (h *controlBlock) uninstall(stop bool) error {
	var errs []error
	for sig, old := range h.stood {
		if stop != (sig == unix.SIGURG) {
			continue
		}
		now, err := sigactionOf(sig)
		if err == nil && now.handler == h.action(sig).handler {
			err = setSigaction(sig, old)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func sigactionOf(sig unix.Signal) (a sigaction, err error) {
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&a)), 8, 0, 0)
	if e != 0 {
		err = fmt.Errorf("disposition of signal %d: %w", sig, e)
	}
	return a, err
}

func setSigaction(sig unix.Signal, a sigaction) error {
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&a)), 0, 8, 0, 0)
	if e != 0 {
		return fmt.Errorf("disposition of signal %d: %w", sig, e)
	}
	return nil
}

// newTable maps a table of n bytes and has it filled.
func newTable(n int, fill func(to []byte)) (table, error) {
	if n == 0 {
		return table{}, nil
	}
	size := uint64(n+4095) &^ 4095
	addr, err := mapAnon(0, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return table{}, fmt.Errorf("table of %d bytes: %w", n, err)
	}
	fill(bytesAt(addr, n))
	return table{addr, size}, nil
}

func (t table) unmap() error {
	if t.size == 0 {
		return nil
	}
	return unmap(t.addr, t.size)
}

// close takes the handlers away and unmaps what they read, once no thread is in one.
func (h *controlBlock) close() error {
	if err := h.uninstall(false); err != nil {
		return err
	}
	controlWords = uint64(uintptr(unsafe.Pointer(&noWords)))
	if err := h.t.attempt(h.t.newPlan(&target.Change{})); err != nil {
		return err
	}
	return errors.Join(h.uninstall(true), h.heads.unmapAll(), unmap(h.addr, homeSize), world.close())
}

// open prepares the stopping of threads.
func (w *worldState) open() error {
	fd, err := unix.Open("/proc/self/task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the own threads can not be listed: %w", err)
	}
	w.tasks, w.pid = fd, int32(os.Getpid())
	return nil
}

func (w *worldState) close() error { return unix.Close(w.tasks) }
