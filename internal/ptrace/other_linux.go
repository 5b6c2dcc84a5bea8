//go:build !amd64

package ptrace

import (
	"debug/elf"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
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

func (r *Regs) pc() uint64                                          { return 0 }
func (r *Regs) sp() uint64                                          { return 0 }
func (r *Regs) resumePC() uint64                                    { return 0 }
func (r *Regs) setPC(uint64)                                        {}
func (r *Regs) call() uint64                                        { return 0 }
func (r *Regs) result() int64                                       { return 0 }
func (r *Regs) waits(*wait)                                         {}
func (r *Regs) wide() bool                                          { return false }
func (r *Regs) restarts() (again, block bool)                       { return false, false }
func (r Regs) fast() (Regs, bool)                                   { return r, false }
func (r Regs) again(uint64) Regs                                    { return r }
func (r Regs) resumed(bool) Regs                                    { return r }
func (r Regs) enter(_, _, _ uint64, _ *[6]uint64) Regs              { return r }
func getRegs(int) (Regs, error)                                     { return Regs{}, errOther }
func setRegs(int, *Regs) error                                      { return errOther }
func getXstate(int) ([]byte, error)                                 { return nil, errOther }
func setXstate(int, []byte) error                                   { return errOther }
func repeatable(uint64) bool                                        { return false }
func (s *Stopped) vforks(wait) bool                                 { return false }
func (p *Process) threadStack(procfs.Map, *Regs) bool               { return false }
func (p *Process) stillThere(*gadgetSet) bool                       { return false }
func (s *Stopped) altStack(procfs.Map, uint64) (procfs.Range, bool) { return procfs.Range{}, false }
func frameSize(_, _ int) int                                        { return 0 }

func (c *caller) layFrame(_, _ uint64, _ []byte, _ int) (*frame, error) { return nil, errOther }

// gadgets are the instructions of the program that a frame needs.
type gadgets struct{ sigreturn uint64 }

var sigreturnCode = [][]byte{nil}

func (g gadgets) complete() bool         { return false }
func (g gadgets) ranges() []procfs.Range { return nil }
func (g *gadgets) search(uint64, []byte) {}
func (g gadgets) callSite(uint64) uint64 { return 0 }
