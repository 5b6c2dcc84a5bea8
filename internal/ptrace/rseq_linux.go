package ptrace

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/interval"
)

// RseqConfig is struct ptrace_rseq_configuration (Linux 5.13).
type RseqConfig struct {
	Pointer   uint64
	size      uint32
	Signature uint32
	flags     uint32
	_         uint32
}

// RseqSection gives the restartable sequence that the thread stands in, and where it goes
// if that is aborted (rseq(2)). A thread that is moved out of one must go to its abort
// address, since the kernel aborts only what it finds inside.
func (t *Thread) RseqSection() (section interval.Range, abort uint64, in bool, err error) {
	err = t.s.Do(func() (err error) {
		section, abort, in, err = t.rseqSection()
		return err
	})
	return section, abort, in, err
}

func (t *Thread) rseqSection() (section interval.Range, abort uint64, in bool, err error) {
	c, err := t.rseq()
	if errors.Is(err, unix.EIO) || err == nil && c.Pointer == 0 {
		return section, 0, false, nil // a kernel without it, or not registered
	}
	if err != nil {
		return section, 0, false, t.lost(err)
	}
	var field [8]byte // struct rseq, rseq_cs
	if err := t.s.p.ReadMem(c.Pointer+8, field[:]); err != nil {
		return section, 0, false, err
	}
	at := le.Uint64(field[:])
	if at == 0 {
		return section, 0, false, nil
	}
	var cs [32]byte // struct rseq_cs: version, flags, start, length, abort
	if err := t.s.p.ReadMem(at, cs[:]); err != nil {
		return section, 0, false, nil // the kernel kills a thread in one; this one is in none
	}
	section.Start = le.Uint64(cs[8:])
	section.End = section.Start + le.Uint64(cs[16:])
	return section, le.Uint64(cs[24:]), section.Start <= t.regs.PC() && t.regs.PC() < section.End, nil
}

// abortRseq moves a thread that stands in a restartable sequence to its abort handler, as
// the kernel would when it goes on: a stop is a preemption.
func (t *Thread) abortRseq() error {
	section, abort, in, err := t.rseqSection()
	if err != nil || !in {
		return err
	}
	if section.Start <= abort && abort < section.End {
		return fmt.Errorf("%w: its restartable sequence %#x aborts to %#x within itself", ErrNoThread, section.Start, abort)
	}
	r := t.regs
	r.setPC(abort)
	return t.lost(t.setRegs(r))
}

// Rseq gives where the thread has registered its area, which only the thread itself can. The kernel is asked once in a stop.
func (t *Thread) Rseq() (c RseqConfig, err error) {
	err = t.s.Do(func() (err error) {
		c, err = t.rseq()
		return err
	})
	return c, err
}

// rseq is Rseq on the tracer's thread.
func (t *Thread) rseq() (RseqConfig, error) {
	if t.area != nil {
		return *t.area, nil
	}
	var c RseqConfig
	err := ptraceAt(unix.PTRACE_GET_RSEQ_CONFIGURATION, t.TID, unsafe.Sizeof(c), unsafe.Pointer(&c))
	if err == nil {
		t.area = &c
	}
	return c, err
}

// dispatchesSyscalls says whether the program takes its own system calls by SIGSYS. The kernel is asked once in a stop:
// a thread decides that for itself alone.
func (t *Thread) dispatchesSyscalls() bool {
	if !t.asked {
		var c struct{ mode, selector, offset, length uint64 } // struct ptrace_sud_config, Linux 6.4
		err := ptraceAt(unix.PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, t.TID, unsafe.Sizeof(c), unsafe.Pointer(&c))
		t.asked, t.answers = true, err == nil && c.mode != 0
	}
	return t.answers
}
