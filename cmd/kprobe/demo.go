package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/target/process"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/demoapp"
	"kprobes.dev/kprobes/internal/ring"
)

func newDemo() *cobra.Command {
	var inGuest bool
	var kernel string
	c := &cobra.Command{
		Use:   "demo [--guest [--kernel FILE]]",
		Short: "show what this does, with nothing to set up; ends within 20 seconds",
		Long: `Start a small multi-threaded server with clients (this command itself, as a process of
its own), probe it as Linux's documentation of Kprobes does, and show the trace, the listing, a
histogram of a function's latency and the cost of a hit. It ends by itself within 20
seconds and leaves nothing behind.

With --guest boot a Linux kernel in QEMU, probe it from outside as that documentation does, and
compare every line with what its own kprobe_events print for the same calls.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := untilEnd(c.Context())
			defer stop()
			switch {
			case inGuest:
				return runGuestDemo(ctx, c.OutOrStdout(), kernel)
			case kernel != "":
				return usagef("--kernel goes with --guest")
			}
			return runDemo(ctx, c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&inGuest, "guest", false, "probe the kernel of a QEMU guest instead, which is booted for it")
	c.Flags().StringVar(&kernel, "kernel", "", "the guest's kernel, a bzImage (default: Debian's, which apt-get download fetches)")
	return c
}

// demoAppVerb is the verb by which the command starts itself as the demo's workload.
const demoAppVerb = "__demo"

func newDemoApp() *cobra.Command {
	return &cobra.Command{
		Use:    demoAppVerb,
		Hidden: true,
		Args:   noArgs,
		RunE:   func(*cobra.Command, []string) error { return demoapp.Serve(os.Stdin, os.Stdout) },
	}
}

const (
	demoLimit = 15 * time.Second // for all the steps; what follows takes a moment
	demoRing  = 4 << 20          // bytes of a shard of the ring
)

// steps tells what is done, step by step.
type steps struct {
	out io.Writer
	n   int
}

// step begins a step with the line that explains it.
func (s *steps) step(format string, args ...any) {
	s.n++
	if s.n > 1 {
		fmt.Fprintln(s.out)
	}
	fmt.Fprintf(s.out, "== %d. %s\n", s.n, fmt.Sprintf(format, args...))
}

// demo is one run of the verb.
type demo struct {
	steps
	ctx context.Context
	app *demoapp.App
	s   *session
	evs []*kprobes.Event // armed until cost takes them out
}

// runDemo is the verb. Whatever happens, everything is taken out again.
func runDemo(ctx context.Context, w io.Writer) (err error) {
	limited, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	d := &demo{ctx: limited, steps: steps{out: w}}
	err = d.run()
	err = errors.Join(err, d.leave())
	if d.app != nil {
		err = errors.Join(err, d.app.Close())
	}
	switch {
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "kprobe: interrupted: everything is taken out")
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("demo took longer than %v on this machine: %w", demoLimit, err)
	}
	return err
}

// leave takes everything out of the workload. To do so again does nothing.
func (d *demo) leave() error {
	if d.s == nil {
		return nil
	}
	s := d.s
	d.s = nil
	return errors.Join(s.core.Close(nil), s.proc.Close())
}

func (d *demo) run() error {
	for _, step := range []func() error{d.start, d.trace, d.list, d.histogram, d.cost, d.detach} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// start runs the workload and opens it.
func (d *demo) start() error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	if d.app, err = demoapp.Start(path, demoAppVerb); err != nil {
		return err
	}
	if _, err = d.app.Resume(d.ctx); err != nil {
		return err
	}
	if d.s, err = attach(d.app.PID(), process.TargetOptions{Buffer: demoRing, Events: ring.DefaultEvents}); err != nil {
		return err
	}
	tasks, err := d.s.proc.Tasks()
	if err != nil {
		return err
	}
	d.step("A key-value server runs as process %d, with %d clients and %d threads. It knows nothing of probes.",
		d.app.PID(), demoapp.Clients, len(tasks))
	return nil
}

// add arms probes. count makes them count only.
func (d *demo) add(count bool, texts ...string) ([]*kprobes.Event, error) {
	var defs []*event.Def
	for _, t := range texts {
		def, err := event.Parse(t)
		if err != nil {
			return nil, err
		}
		defs = append(defs, def)
	}
	return d.s.core.Add(defs, &kprobes.AddOptions{Count: count})
}

// arm adds probes that record and stay until cost, and shows their definitions.
func (d *demo) arm(texts ...string) ([]*kprobes.Event, error) {
	evs, err := d.add(false, texts...)
	if err != nil {
		return nil, err
	}
	d.evs = append(d.evs, evs...)
	for _, t := range texts {
		fmt.Fprintf(d.out, "     %s\n", t)
	}
	return evs, nil
}

// pollPause is the pause between two looks at a ring that had nothing new.
const pollPause = 2 * time.Millisecond

// read gives records to f until done says that it is enough.
func (d *demo) read(f func(*hit.Hit), done func() bool) error {
	for !done() {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		select {
		case <-d.s.proc.Exited():
			return fmt.Errorf("demo workload: process %d has ended", d.app.PID())
		default:
		}
		if d.s.core.Poll(f) == 0 {
			time.Sleep(pollPause)
		}
	}
	return nil
}

// settleTime is more than the reader keeps a record back, to give all out in order
// (ring.ReaderConfig.Margin), even where the time stamp counter is slow.
const settleTime = 25 * time.Millisecond

// settle reads all records that a paused workload has written.
func (d *demo) settle(f func(*hit.Hit)) error {
	since := time.Now()
	return d.read(f, func() bool { return time.Since(since) > settleTime && d.s.core.Poll(f) == 0 })
}
