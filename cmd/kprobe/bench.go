package main

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"
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
		b.stacks,
		b.filtered,
		b.latency,
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
