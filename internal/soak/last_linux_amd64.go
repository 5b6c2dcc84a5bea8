package soak

import (
	"fmt"

	"kprobes.dev/kprobes"
)

// Calls of a return probe that are in progress when the program ends, or that longjmp has left
// and nobody has found out, are known from the program's memory, which goes with it. So a
// handler holds the program where it ends until such calls have been counted.

// lastCall is where the C library ends the program.
const lastCall = "libc.so.6:_exit"

// holder holds the program where it ends.
type holder struct {
	there chan struct{} // a thread has come to the end
	goOn  chan struct{} // closed to let it go on
	calls map[*kprobes.Event]kprobes.Unreturned
	// vague are the events that were taken out while a thread was to return into the old code of
	// some probe: their calls in progress were found later, when they had returned unseen.
	vague map[*kprobes.Event]bool
}

func newHolder() *holder {
	return &holder{
		there: make(chan struct{}, 1), goOn: make(chan struct{}),
		calls: map[*kprobes.Event]kprobes.Unreturned{}, vague: map[*kprobes.Event]bool{},
	}
}

// holdAtEnd registers the handler, where the entries of return probes are compared.
func (x *session) holdAtEnd() error {
	if x.s.Go || x.s.Referee == Nobody {
		return nil
	}
	return x.core.RegisterKprobe(&kprobes.Kprobe{SymbolName: lastCall, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
		x.end.there <- struct{}{}
		<-x.end.goOn
		return 0
	}})
}

// ends waits for the program's end, and has the calls counted that do not return.
func (x *session) ends() (err error) {
	select {
	case <-x.end.there:
		err = x.unreturned()
	case <-x.proc.Exited():
	}
	close(x.end.goOn)
	<-x.proc.Exited()
	return err
}

// unreturned counts the calls that have not returned while the program is held.
func (x *session) unreturned() (err error) {
	if x.end.calls, err = x.core.Unreturned(); err != nil {
		return fmt.Errorf("held at its end: calls that did not return: %w", err)
	}
	return nil
}
