package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"kprobes.dev/kprobes/target/process"

	"github.com/spf13/cobra"

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
