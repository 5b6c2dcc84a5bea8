package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/internal/cbuild"
	"kprobes.dev/kprobes/internal/workload"
	"kprobes.dev/kprobes/target/process"
)

// benchFlags are the flags of kprobe bench.
type benchFlags struct {
	format string
	quick  bool
	goOnly bool
}

func newBench() *cobra.Command {
	var f benchFlags
	c := &cobra.Command{
		Use:   "bench",
		Short: "measure what a hit costs here, beside the kernel's uprobes",
		Long: `Measure what a hit costs on this machine, in nanoseconds beyond the unprobed call:
the overhead table of Linux's documentation, beside the kernel's uprobe on the same instruction
of a copy of the same program in the same run, and a tracepoint written by hand; handlers
in the own process; and how fast probes come and go.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.format != "text" && f.format != "json" {
				return usagef("format %q: text or json", f.format)
			}
			ctx, stop := untilEnd(c.Context())
			defer stop()
			return f.run(ctx, stdout)
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.format, "format", "text", "text or json")
	fl.BoolVar(&f.quick, "quick", false, "few and short rounds: to see that it works, not for figures")
	fl.BoolVar(&f.goOnly, "go", false, "measure on the Go workload even where there is a C compiler")
	return c
}

// newWorkload is the verb by which the command starts itself as a workload.
func newWorkload() *cobra.Command {
	return &cobra.Command{
		Use:    workloadVerb,
		Hidden: true,
		Args:   noArgs,
		RunE:   func(*cobra.Command, []string) error { return workload.Serve(os.Stdin, os.Stdout, ringBytes) },
	}
}

const workloadVerb = "__workload"

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

	serial  int // of the events' names, which a Core uses once
	out     printer
	quick   bool
	cells   []cell
	figures []figure
}

func (f *benchFlags) run(ctx context.Context, w io.Writer) (err error) {
	b := &bench{ctx: ctx, quick: f.quick, rounds: fullRounds, slow: batches * trapBatch, out: newPrinter(f.format, w)}
	if f.quick {
		b.rounds, b.slow = fewRounds, batches*quickBatch
	}
	dir, err := os.MkdirTemp("", "kprobe-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := b.choose(f.goOnly, dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.end()) }()
	if err := b.start(dir); err != nil {
		return err
	}
	b.calls = b.room
	if f.quick {
		b.calls = min(b.room, quickCalls)
	}
	return b.all(dir)
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
	case r.args != "":
		return min(b.calls, b.locked)
	}
	return b.calls
}

// all measures and prints everything. What fails is told at the end, after all the rest.
func (b *bench) all(dir string) error {
	b.out.machine(b.describe())
	if err := b.warm(); err != nil {
		return err
	}
	var errs []error
	for _, cl := range classes {
		for i := range rows {
			errs = append(errs, b.one(&rows[i], cl, 1))
		}
	}
	for _, n := range threadSteps(runtime.NumCPU())[1:] {
		for _, name := range scaled {
			errs = append(errs, b.one(findRow(name), classes[0], n))
		}
	}
	errs = append(errs, b.others(dir))
	errs = append(errs, b.out.end(b.cells, b.figures, ratios(b.cells)))
	err := errors.Join(errs...)
	if b.ctx.Err() != nil && !errors.Is(err, errInterrupted) {
		err = errors.Join(err, errInterrupted)
	}
	return err
}

// others measures what is no cost of a hit in another process.
func (b *bench) others(dir string) error {
	var errs []error
	for _, f := range []func() error{
		b.own,
		func() error { return b.add(handlerFigures(b.cells)...) },
		func() error { return b.batch(dir) },
		func() error { return b.attach(dir) },
		func() error { return b.events(dir) },
		b.disarmed,
	} {
		if b.ctx.Err() == nil {
			errs = append(errs, f())
		}
	}
	return errors.Join(errs...)
}

// errInterrupted says that a signal ended the run: what it prints is not all.
var errInterrupted = errors.New("interrupted: the rest was not measured")

// one measures a cell and prints it.
func (b *bench) one(r *row, cl class, threads int) error {
	if b.ctx.Err() != nil {
		return nil // told once, by all
	}
	c, err := b.measure(r, cl, threads)
	if err != nil {
		c.Failed = escapedError(err)
	}
	b.cells = append(b.cells, c)
	b.out.cell(c)
	return err
}

// warm lets every CPU write its shards once round, those of records with strings too, so that no later round meets a
// page that is touched for the first time.
func (b *bench) warm() error {
	if err := b.warmBy(findRow(rowRecord), b.room, recordBytes); err != nil {
		return err
	}
	err := b.warmBy(findRow(rowString), b.locked, stringBytes)
	if errors.Is(err, errAsks) {
		return nil // there are no rows of such records
	}
	return err
}

// warmBy makes records of a row, of so many bytes at least, n in a round.
func (b *bench) warmBy(r *row, n, bytes uint64) (err error) {
	p := b.prober(r)
	defer func() { err = errors.Join(err, p.disarm()) }()
	if err := p.arm(classes[0]); err != nil {
		return err
	}
	laps := ringBytes/(n*bytes) + 1
	var hits uint64
	for range laps {
		r, err := b.probed.Run(classes[0].function, n, runtime.NumCPU())
		if err != nil {
			return err
		}
		hits += r.Calls
		p.drain(hits)
	}
	return nil
}
