package amd64

import (
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// Regs are the registers of a thread at a probed instruction, as a handler sees them: the
// documents' struct pt_regs. What a handler changes is loaded back when it returns. They
// are valid during the call of the handler only.
//
// IP is the address of the probed instruction, in a post handler that of the next one. Of
// Flags the arithmetic flags are the thread's; the others are as user programs have them.
type Regs struct {
	AX, BX, CX, DX, SI, DI, BP, SP       uint64
	R8, R9, R10, R11, R12, R13, R14, R15 uint64
	IP, Flags                            uint64
	X                                    [16][2]uint64 // XMM0 to XMM15
	point                                *Point
	word                                 [8]byte // read from memory: a handler must not allocate
}

// Point is what is known of the place where Regs were taken.
type Point struct {
	Addr uint64 // the probed instruction
	Func uint64 // start of its function
	Go   bool   // the function is Go's: ABIInternal, or its assembly convention with ABI0
	ABI0 bool
	// Ret is the distance from the stack pointer to the return address of the call in
	// progress, in bytes; -1: it is not known here.
	Ret int
	// Mem reads and writes the memory that the registers point to.
	Mem Memory
	// Callers fills pcs with the return addresses of the calls in progress, the innermost
	// first, and returns how many there are; nil: they can not be told.
	Callers func(r *Regs, pcs []uint64) int
}

// Memory is an address space.
type Memory interface {
	Read(addr uint64, buf []byte) error
	Write(addr uint64, buf []byte) error
}

// Bind says where the registers were taken. Targets call it before a handler runs.
func (r *Regs) Bind(p *Point) { r.point = p }

// What the methods of Regs can not do. They are made beforehand: a handler must not
// allocate.
var (
	errNoPlace  = errno.Errorf(unix.EINVAL, "the registers are not bound to a place: they are valid during the handler only")
	errNegative = errno.Errorf(unix.EINVAL, "arguments count from 0")
	errTooMany  = errno.Errorf(unix.EINVAL, "no function has so many arguments")
	errInTypes  = errno.Errorf(unix.EINVAL, "Go's ABIInternal passes 9 integer words in registers; those after them stand where the types say")
	errNoRet    = errno.Errorf(unix.EINVAL, "where the return address stands is not known here: probe the function's entry")
	errPushed   = errno.Errorf(unix.EINVAL, "the function has pushed registers that its caller needs: leave it at its entry")
	errNoMemory = errno.Errorf(unix.EFAULT, "the memory that the registers point to can not be read here")
)

// ReturnValue is the first integer word of the results where the function returns: RAX in C
// and in Go's ABIInternal. Functions of Go's assembly convention have their results on the
// stack, behind the arguments.
func (r *Regs) ReturnValue() uint64 { return r.AX }

// SetReturnValue sets what ReturnValue gives.
func (r *Regs) SetReturnValue(v uint64) { r.AX = v }

// Arg is the nth integer word of the function's arguments, from 0, by its convention; 0 if
// it can not be told, for which ArgErr has the reason. The registers hold the arguments at
// the function's entry.
func (r *Regs) Arg(n int) uint64 {
	v, _ := r.ArgErr(n)
	return v
}

// ArgErr is Arg with the reason why a word can not be told: EINVAL where the convention or
// the place does not tell where it stands, else what Memory says of it.
func (r *Regs) ArgErr(n int) (uint64, error) {
	p := r.point
	switch {
	case p == nil:
		return 0, errNoPlace
	case n < 0:
		return 0, errNegative
	case n > maxArgs:
		return 0, errTooMany
	case p.Go && p.ABI0:
		return r.stackArg(n)
	case p.Go && n >= len(goWords):
		return 0, errInTypes
	case p.Go:
		return *r.general()[goWords[n]], nil
	case n >= len(sysVWords):
		return r.stackArg(n - len(sysVWords))
	}
	return *r.general()[sysVWords[n]], nil
}

// maxArgs bounds arguments: a stack of 8 GB.
const maxArgs = 1 << 30

// stackArg is the nth word above the return address.
func (r *Regs) stackArg(n int) (uint64, error) {
	if r.point.Ret < 0 {
		return 0, errNoRet
	}
	return r.load(r.SP + uint64(r.point.Ret) + 8 + 8*uint64(n))
}

// load reads a word of memory.
func (r *Regs) load(addr uint64) (uint64, error) {
	if r.point.Mem == nil {
		return 0, errNoMemory
	}
	if err := r.point.Mem.Read(addr, r.word[:]); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(r.word[:]), nil
}

// Return makes the thread leave the probed function at once, with what SetReturnValue says:
// IP and SP become what they are behind the function's return. The handler must ask for the
// changed path to be taken. It is for a function's entry: with EINVAL nothing is changed
// where the return address is not known to be on top of the stack.
func (r *Regs) Return() error {
	switch p := r.point; {
	case p == nil:
		return errNoPlace
	case p.Ret < 0:
		return errNoRet
	case p.Ret > 0:
		return errPushed
	}
	to, err := r.load(r.SP)
	if err != nil {
		return err
	}
	r.IP, r.SP = to, r.SP+8
	return nil
}

// Stack fills pcs with the return addresses of the calls in progress, the innermost first:
// that in the probed function's caller is pcs[0]. It gives the part that was filled, none
// where they can not be told. Tables of instructions know the call by the byte before it.
func (r *Regs) Stack(pcs []uint64) []uint64 {
	if r.point == nil || r.point.Callers == nil {
		return pcs[:0]
	}
	return pcs[:min(max(r.point.Callers(r, pcs), 0), len(pcs))]
}

// String prints the registers as the kernel does (show_regs). It allocates.
func (r *Regs) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "RIP: %04x:%016x\nRSP: %04x:%016x EFLAGS: %08x\n", userCS, r.IP, userDS, r.SP, r.Flags)
	fmt.Fprintf(&b, "RAX: %016x RBX: %016x RCX: %016x\n", r.AX, r.BX, r.CX)
	fmt.Fprintf(&b, "RDX: %016x RSI: %016x RDI: %016x\n", r.DX, r.SI, r.DI)
	fmt.Fprintf(&b, "RBP: %016x R08: %016x R09: %016x\n", r.BP, r.R8, r.R9)
	fmt.Fprintf(&b, "R10: %016x R11: %016x R12: %016x\n", r.R10, r.R11, r.R12)
	fmt.Fprintf(&b, "R13: %016x R14: %016x R15: %016x", r.R13, r.R14, r.R15)
	return b.String()
}
