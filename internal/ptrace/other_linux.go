//go:build !amd64

package ptrace

import (
	"debug/elf"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
)

// What another processor must have: registers, signal frames, the instructions by which a thread is made to call the
// system, and the numbers of system calls. Here is none of it, so that no process can be opened (checkMachine).

var errOther = errno.Errorf(unix.EOPNOTSUPP, "no process can be probed on %s yet", runtime.GOARCH)

const (
	redZone     = 0
	auditArch   = 0
	syscallSize = 4
	trapSize    = 0

	requestGetRegs = -1
	requestSetRegs = -2
)

var breakpoint []byte

func checkMachine(elf.Class, elf.Machine) error {
	return fmt.Errorf("%w: %w", ErrUnsupported, errOther)
}

// Regs is a thread's registers.
type Regs struct{}

// InSyscall says whether the thread stands at the end of a system call.
func (r *Regs) InSyscall() bool { return false }

// PC is the instruction pointer.
func (r *Regs) PC() uint64 { return 0 }

// SP is the stack pointer.
func (r *Regs) SP() uint64 { return 0 }

// Shift has the thread go on so many bytes further, and with a stack pointer that is so many bytes higher.
func (r *Regs) Shift(_, _ uint64) {}

// Unstep has no trap follow the next instruction.
func (r *Regs) Unstep() {}

// Words are the registers that may hold an address of code, the instruction pointer among them.
func (r *Regs) Words() []*uint64 { return nil }

// NoSyscall stands for the number of a system call where there is none.
const NoSyscall = ^uint64(0)

// ThreadPointer is what the C library finds the thread's own data by; 0 before the program has set it.
func (t *Thread) ThreadPointer() uint64 { return 0 }

// PointsToItself says whether memory holds its own address, as a thread's control block does.
func (p *Process) PointsToItself(uint64) bool { return false }

// InFrame says whether a word is a signal frame's saved instruction pointer or its return address.
func (p *Process) InFrame(uint64) bool { return false }

// SavedIP says whether a word of a signal frame that InFrame knows is the instruction pointer, not the return address.
func (p *Process) SavedIP(uint64) bool { return false }

// SavedSP gives the stack pointer of the signal frame whose instruction pointer stands at an address.
func (p *Process) SavedSP(uint64) (uint64, error) { return 0, errOther }

// SavedRegs gives the general registers, the instruction pointer and the flags of that signal frame.
func (p *Process) SavedRegs(uint64) (Regs, error) { return Regs{}, errOther }

func (r *Regs) resumePC() uint64                                      { return 0 }
func (r *Regs) setPC(uint64)                                          {}
func (r *Regs) call() uint64                                          { return 0 }
func (r *Regs) result() int64                                         { return 0 }
func (r *Regs) waits(*wait)                                           {}
func (r *Regs) wide() bool                                            { return false }
func (r *Regs) restarts() (again, block bool)                         { return false, false }
func (r Regs) fast() (Regs, bool)                                     { return r, false }
func (r Regs) again(uint64) Regs                                      { return r }
func (r Regs) undecided() Regs                                        { return r }
func (r Regs) resumed(bool) Regs                                      { return r }
func (r Regs) enter(_, _, _ uint64, _ *[6]uint64) Regs                { return r }
func getRegs(int) (Regs, error)                                       { return Regs{}, errOther }
func setRegs(int, *Regs) error                                        { return errOther }
func getXstate(int) ([]byte, error)                                   { return nil, errOther }
func setXstate(int, []byte) error                                     { return errOther }
func repeatable(uint64) bool                                          { return false }
func (s *Stopped) vforks(wait) bool                                   { return false }
func (p *Process) threadStack(procfs.Map, *Regs) bool                 { return false }
func (p *Process) stillThere(*gadgetSet) bool                         { return false }
func (s *Stopped) altStack(procfs.Map, uint64) (interval.Range, bool) { return interval.Range{}, false }

func (s *Stopped) StartThread(*NewThread) error { return errOther }
func frameSize(_, _ int) int                    { return 0 }

func (c *caller) layFrame(_, _ uint64, _ []byte, _ int) (*frame, error) { return nil, errOther }

// gadgets are the instructions of the program that a frame needs.
type gadgets struct{ sigreturn uint64 }

var sigreturnCode = [][]byte{nil}

func (g gadgets) complete() bool           { return false }
func (g gadgets) ranges() []interval.Range { return nil }
func (g *gadgets) search(uint64, []byte)   {}
func (g gadgets) callSite(uint64) uint64   { return 0 }
