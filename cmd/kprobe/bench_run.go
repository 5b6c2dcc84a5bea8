package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/cbuild"
	"kprobes.dev/kprobes/internal/kmod"
	"kprobes.dev/kprobes/internal/modules"
	"kprobes.dev/kprobes/internal/workload"
	"kprobes.dev/kprobes/target/process"
)

// bench is one run of the verb.
type bench struct {
	ctx    context.Context
	rounds int
	room   uint64 // calls whose records the ring holds
	locked uint64 // likewise, of records that take the locked way: those with strings do
	calls  uint64 // of a round whose hits do not trap
	slow   uint64 // of a round whose hits trap

	goProgram bool // the workload is the Go one
	path      string
	args      []string
	// Three processes of one program: nothing is ever done to the first; the engine probes
	// the second; the third runs a copy of the file, which the kernel probes.
	plain, probed, copied *workload.Program
	s                     *session
	closed                bool // s.core is: nothing is left in the second
	copyPath              string
	noCopy                error // why there is no copy to probe

	modules benchModules

	serial  int // of the events' names, which a Core uses once
	out     printer
	quick   bool
	cells   []cell
	figures []figure
}

// choose takes the C program where it can be built, else this program itself.
func (b *bench) choose(goOnly bool, dir string) (err error) {
	if !goOnly {
		b.path, err = workload.BuildC()
		if err == nil {
			b.args = []string{fmt.Sprint(ringBytes)}
			return nil
		}
		if !errors.Is(err, cbuild.ErrNoCompiler) {
			return err
		}
	}
	b.goProgram, b.args = true, []string{workloadVerb}
	b.path, err = copySelf(dir)
	return err
}

// copySelf copies this program, to be started as a workload: a tracer and its target do
// not run one file, for what is done to the target's code is told apart by the file.
func copySelf(dir string) (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir, err = os.MkdirTemp(dir, "self-")
	if err != nil {
		return "", err
	}
	return cbuild.Copy(dir, exe)
}

// symbol is a function's name in the program's file.
func (b *bench) symbol(function string) string {
	if b.goProgram {
		return workload.Symbols[function]
	}
	return function
}

// start starts the processes and attaches to the one that the engine probes.
func (b *bench) start(dir string) (err error) {
	if b.plain, err = workload.Start(b.path, b.args...); err != nil {
		return err
	}
	if b.probed, err = workload.Start(b.path, b.args...); err != nil {
		return err
	}
	if b.copyPath, b.noCopy = cbuild.Copy(dir, b.path); b.noCopy == nil {
		b.copied, b.noCopy = workload.Start(b.copyPath, b.args...)
	}
	if b.s, err = attach(b.probed.PID(), process.TargetOptions{Buffer: ringBytes, Events: ringEvents}); err != nil {
		return err
	}
	if err := b.s.target.Prepare(); err != nil {
		return err
	}
	l := b.s.target.CodegenEnv().Layout
	b.locked = l.LockedUnits() * 8 / perCall
	b.room = b.locked
	if b.s.target.CodegenEnv().HasRseq {
		b.room = l.Units() * 8 / perCall
	}
	return nil
}

// end takes everything out again and ends the processes.
func (b *bench) end() error {
	var errs []error
	if b.s != nil {
		errs = append(errs, b.closeCore())
		b.s.proc.Close()
	}
	for _, p := range []*workload.Program{b.plain, b.probed, b.copied} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	return errors.Join(errs...)
}

// closeCore takes everything out of the probed program, once.
func (b *bench) closeCore() error {
	if b.closed {
		return nil
	}
	b.closed = true
	return b.s.core.Close(nil)
}

// callsOf is the number of calls in a round of a row.
func (b *bench) callsOf(r *row) uint64 {
	switch {
	case r.traps():
		return b.slow
	case r.args != "", r.means == meansModule && !r.count:
		return min(b.calls, b.locked)
	}
	return b.calls
}

// errInterrupted says that a signal ended the run: what it prints is not all.
var errInterrupted = errors.New("interrupted: the rest was not measured")

// Sizes of a measurement.
const (
	batches     = 32      // of a round (package workload)
	ringBytes   = 4 << 20 // of a shard, and of a tracepoint's buffer: what kprobe trace takes
	recordBytes = 48      // of a record with four arguments, at least
	stringBytes = 40      // of a record with the text, likewise
	perCall     = 128     // bytes: more than the records of one call take
	trapBatch   = 30      // calls of a batch whose hits trap
	quickCalls  = batches * 100
	quickBatch  = 5
	fullRounds  = 15
	fewRounds   = 3
	ringEvents  = 1024 // more than are armed in a run
)

// add takes a figure and prints it.
func (b *bench) add(fs ...figure) error {
	var errs []error
	for _, f := range fs {
		b.figures = append(b.figures, f)
		b.out.figure(f)
		errs = append(errs, f.error())
	}
	return errors.Join(errs...)
}

const workloadVerb = "__workload"

// prober is one way to probe the workload: a row at work.
type prober interface {
	// arm puts the probe on a class's function. The error says why there is none; then
	// disarm takes out what there is of it.
	arm(cl class) error
	// program gives the workload that is probed, and the function to call in it.
	program(function string) (*workload.Program, string)
	// drain reads what the last round recorded, until so many hits were counted since arm.
	drain(hits uint64)
	tactic() arch.Tactic
	// counts gives hits and lost records since arm.
	counts() (hits, lost uint64, err error)
	disarm() error
}

// errAsks says why a Go program's records ask the kernel.
var errAsks = errors.New("this kprobe, which is the workload, was built with C code, and records of such a program ask the kernel: build it with CGO_ENABLED=0")

// drainTime bounds the wait for records: the reader gives one out a moment after it was
// written. What has not come by then shows in the counts.
const drainTime = 10 * time.Second

// benchModules has what is loaded into the probed program, and the object of the module: both are made once.
type benchModules struct {
	table  *modules.Table
	object *kmod.Object
	err    error
}
