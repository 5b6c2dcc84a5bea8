package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/perfetto"
	"kprobes.dev/kprobes/internal/tracedat"
	"kprobes.dev/kprobes/target/process"
)

// preparePerfetto makes a file for Perfetto, and tells of the functions whose returns are recorded.
func (g *recording) preparePerfetto(s tracee) error {
	p, ok := s.(interface {
		Events() []*kprobes.Event
		Core() *kprobes.Core
	})
	if !ok {
		return usagef("--format %s: there are no such traces of this target", formPerfetto)
	}
	of := perfetto.Target{Name: "guest " + g.f.of.guest, Monotonic: clockNow(unix.CLOCK_MONOTONIC)}
	if t, ok := engine.Of(p.Core()).Target().(*process.Target); ok {
		of.PID = t.Proc().PID()
		of.Name, of.Boottime, of.Realtime = s.Names().Comm(of.PID), clockNow(unix.CLOCK_BOOTTIME), clockNow(unix.CLOCK_REALTIME)
	}
	to, err := perfetto.Create(g.f.con.path(g.f.out), of, s.Names(), g.f.stack > 0)
	if err != nil {
		return g.f.con.pathError(err, g.f.out)
	}
	for _, e := range p.Events() {
		if e.Def.Kind == event.Return {
			to.Returns(e.Place().Addr)
		}
	}
	g.to = to
	return nil
}

// clockNow is the time of a clock, in nanoseconds.
func clockNow(clock int32) uint64 {
	var t unix.Timespec
	if unix.ClockGettime(clock, &t) != nil {
		return 0
	}
	return uint64(t.Nano())
}

// converting makes a trace for Perfetto of a trace.dat file.
type converting struct {
	file   *tracedat.File
	to     *perfetto.Trace
	last   *perfetto.Event // not written yet: its stack may follow
	ip, fn uint64          // its place
}

// writePerfetto writes a trace for Perfetto of a trace.dat file.
func writePerfetto(from, path string) error {
	returns, err := returnsIn(from)
	if err != nil {
		return err
	}
	file, err := tracedat.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	c := &converting{file: file, to: perfetto.New(out, perfetto.Target{Name: filepath.Base(from)})}
	for fn := range returns {
		c.to.Returns(fn)
	}
	err = file.Each(c.record)
	if err == nil {
		err = c.flush()
	}
	if err == nil {
		err = c.to.Close()
	}
	tellUnreturned(os.Stderr, c.to)
	return errors.Join(err, out.Close())
}

// returnsIn finds the functions whose returns a file has records of.
func returnsIn(path string) (map[uint64]bool, error) {
	f, err := tracedat.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fns := map[uint64]bool{}
	return fns, f.Each(func(r *tracedat.Record) error {
		if r.Event() != nil {
			if _, fn, _ := r.Place(); fn != 0 {
				fns[fn] = true
			}
		}
		return nil
	})
}

// record takes a record.
func (c *converting) record(r *tracedat.Record) error {
	e := r.Event()
	if e != nil && e.Stack && c.last != nil && c.last.TID == r.TID && c.last.CPU == r.CPU {
		c.last.Args = append(c.last.Args, c.stack(r))
		return nil
	}
	if err := c.flush(); err != nil {
		return err
	}
	if r.Lost.Any {
		if err := c.to.Lost(r.Nanos, r.CPU, r.Lost.N); err != nil {
			return err
		}
	}
	c.last = &perfetto.Event{Nanos: r.Nanos, CPU: r.CPU, TID: r.TID, Comm: c.file.Comm(r.TID), Group: "unknown", Name: "unknown event"}
	c.ip, c.fn = 0, 0
	if e == nil {
		return nil
	}
	c.last.Group, c.last.Name = e.Group, e.Name
	if e.Stack {
		c.last.Args = append(c.last.Args, c.stack(r))
		return nil
	}
	for i := range e.Fields {
		c.last.Args = append(c.last.Args, perfetto.Arg{Name: e.Fields[i].Name, Value: r.Value(&e.Fields[i])})
	}
	var caller uint64
	if c.ip, c.fn, caller = r.Place(); caller != 0 {
		c.last.Args = append(c.last.Args, perfetto.Arg{Name: "caller", Value: c.symbol(caller)})
	}
	return nil
}

// flush writes the record that waits for its stack.
func (c *converting) flush() error {
	e := c.last
	if c.last = nil; e == nil {
		return nil
	}
	switch {
	case c.fn != 0:
		return c.to.Return(e, c.fn, 0)
	case c.ip != 0:
		return c.to.Enter(e, c.ip)
	}
	return c.to.Hit(e)
}

// stack is the stack of a record as an argument.
func (c *converting) stack(r *tracedat.Record) perfetto.Arg {
	var all []any
	for _, at := range r.Callers() {
		all = append(all, c.symbol(at))
	}
	return perfetto.Arg{Name: "callers", Value: all}
}

// symbol names an address, as lines of a trace do.
func (c *converting) symbol(addr uint64) string {
	name, off := c.file.Symbol(addr)
	if name == "" || strings.HasPrefix(name, "0x") {
		return fmt.Sprintf("0x%x", addr)
	}
	return fmt.Sprintf("%s+0x%x", name, off)
}
