package ptrace

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Sigaction is what a process does on a signal, struct kernel_sigaction of amd64.
type Sigaction struct {
	Handler  uint64 // SigDefault, SigIgnore or an address
	Flags    uint64 // SA_*
	Restorer uint64 // where the handler returns to
	Mask     uint64 // blocked while it runs: bit n-1 is signal n
}

// The handlers that are none.
const (
	SigDefault = 0
	SigIgnore  = 1
)

// Signals is the number of signals and one, so that it can be indexed by signal.
const Signals = 65

const (
	sigactionSize = 32
	actNodefer    = 0x40000000 // SA_NODEFER
)

// Sigaction asks the target for one of its signal actions. Several are asked for more
// cheaply by Dispositions.
func (s *Stopped) Sigaction(sig int) (Sigaction, error) {
	calls := []Syscall{askAction(sig)}
	if err := s.CallAll(calls); err != nil {
		return Sigaction{}, err
	}
	return calls[0].action()
}

// SetSigaction changes a signal action of the target.
func (s *Stopped) SetSigaction(sig int, a Sigaction) error {
	call := Syscall{Nr: unix.SYS_RT_SIGACTION, Args: [6]uint64{uint64(sig), 0, 0, 8}, Data: a.Bytes(), DataArg: 1}
	calls := []Syscall{call}
	err := s.CallAll(calls)
	if err == nil {
		err = calls[0].Err
	}
	if err != nil {
		return fmt.Errorf("rt_sigaction of signal %d in the target: %w", sig, err)
	}
	return nil
}

// Dispositions asks the target for all its signal actions. Those that the kernel's status
// file shows as default or ignored have no handler, and nothing more is asked about them.
func (s *Stopped) Dispositions() (*[Signals]Sigaction, error) {
	st, err := s.threads[0].Status()
	if err != nil {
		return nil, err
	}
	var all [Signals]Sigaction
	var calls []Syscall
	for sig := 1; sig < Signals; sig++ {
		switch {
		case st.Catches(sig):
			calls = append(calls, askAction(sig))
		case st.Ignores(sig):
			all[sig].Handler = SigIgnore
		}
	}
	if len(calls) == 0 {
		return &all, nil
	}
	if err := s.CallAll(calls); err != nil {
		return nil, err
	}
	for i := range calls {
		sig := calls[i].Args[0]
		if all[sig], err = calls[i].action(); err != nil {
			return nil, err
		}
	}
	return &all, nil
}

func askAction(sig int) Syscall {
	return Syscall{
		Nr: unix.SYS_RT_SIGACTION, Args: [6]uint64{uint64(sig), 0, 0, 8},
		Data: make([]byte, sigactionSize), DataArg: 2,
	}
}

// action is the answer to askAction.
func (c *Syscall) action() (Sigaction, error) {
	if c.Err != nil {
		return Sigaction{}, fmt.Errorf("rt_sigaction of signal %d in the target: %w", c.Args[0], c.Err)
	}
	return ParseSigaction(c.Data), nil
}

// ParseSigaction reads a struct kernel_sigaction.
func ParseSigaction(b []byte) Sigaction {
	return Sigaction{
		Handler: le.Uint64(b), Flags: le.Uint64(b[8:]),
		Restorer: le.Uint64(b[16:]), Mask: le.Uint64(b[24:]),
	}
}

func (a *Sigaction) Bytes() []byte {
	b := make([]byte, sigactionSize)
	for i, v := range []uint64{a.Handler, a.Flags, a.Restorer, a.Mask} {
		le.PutUint64(b[8*i:], v)
	}
	return b
}

// Blocks is what a handler of signal sig blocks while it runs: itself too, mostly.
func (a *Sigaction) Blocks(sig int) uint64 {
	if a.Flags&actNodefer != 0 {
		return a.Mask
	}
	return a.Mask | 1<<(sig-1)
}
