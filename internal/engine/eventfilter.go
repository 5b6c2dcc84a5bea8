package engine

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
)

// compileFilter compiles the filter of an event that has its program. Generated code runs it where it can; else whoever reads the
// records does.
func (c *Core) compileFilter(e *Event) error {
	f, err := c.FilterOf(e, e.Def.Filter)
	if err != nil {
		return err
	}
	e.filter, e.work.Filter = f, nil
	if f.InCode(e.Prog) {
		e.work.Filter = f
	}
	return nil
}

// counts says whether the event records nothing.
func (e *Event) counts() bool { return e.work.Count || e.work.CountPassing }

// countPassing has the code at the hit run the filter of an event that only counts: nobody reads a record of it. Precondition:
// compileFilter.
func countPassing(e *Event) error {
	if e.work.Filter == nil {
		return errno.Errorf(unix.EOPNOTSUPP, "filter %q of an event that only counts: the code at the hit can not run it: %s; record the event",
			e.Def.Filter, e.filter.NotInCode(e.Prog))
	}
	e.work.Count, e.work.CountPassing = false, true
	return nil
}

// knowsComm says whether COMM is a field of filters: records have the thread's name, or somebody tells it.
func (c *Core) knowsComm() bool { return c.t.CodegenEnv().Kernel != nil || c.records.Comm != nil }

// FilterOf compiles a filter of what an event records. Its errors are *event.FilterError. Precondition: the event has its program.
func (c *Core) FilterOf(e *Event, text string) (*fetch.Filter, error) {
	f, err := e.Prog.Filter(text, fetch.FilterEnv{Functions: c.functionAt, Comm: c.knowsComm()})
	var bad *event.FilterError
	if errors.As(err, &bad) && bad.Code == event.FilterFieldNotFound {
		bad.Why = fmt.Sprintf("%s has %s", e.Def.Text, c.fieldNames(e))
	}
	return f, err
}

// FilterFor compiles a filter of what a definition with a program records. Its errors are *event.FilterError.
func (c *Core) FilterFor(d *event.Def, prog *fetch.Program, text string) (*fetch.Filter, error) {
	return c.FilterOf(&Event{Def: d, Prog: prog}, text)
}

// fieldNames lists what a filter of an event may test, for a message.
func (c *Core) fieldNames(e *Event) string {
	s := ""
	for i := range e.Prog.Args {
		if a := &e.Prog.Args[i]; a.Type.Kind != event.SymStr {
			s += a.Name + ", "
		}
	}
	if e.Prog.Return {
		s += "__probe_func, __probe_ret_ip, "
	} else {
		s += "__probe_ip, "
	}
	if c.knowsComm() {
		return s + "common_pid, CPU and COMM"
	}
	return s + "common_pid and CPU; the thread's name is a field if it is recorded (comm=$comm)"
}
