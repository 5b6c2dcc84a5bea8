package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/target/guest/qemu"
)

func newGuest() *cobra.Command {
	c := &cobra.Command{
		Use:   "guest start|stop",
		Short: "boot a kernel in QEMU as kprobe wants it, and end it",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("guest %s is not known%s: start or stop", args[0], symbol.DidYouMean(symbol.Nearest(args[0], []string{"start", "stop"})))
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			_ = c.Help()
			return usagef("guest start or guest stop?")
		},
	}
	c.AddCommand(newGuestStart(), newGuestStop(), newGuestGuard())
	return c
}

func newGuestStart() *cobra.Command {
	o := new(qemu.StartOptions)
	c := &cobra.Command{
		Use:   "start --kernel FILE [FLAGS] [DIR]",
		Short: "boot a kernel and print what --guest takes",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("argument %q is one too many", args[1])
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if o.Kernel == "" {
				return usagef("give the kernel's image: --kernel FILE")
			}
			if len(args) == 1 {
				o.Dir = args[0]
			}
			spec, err := qemu.Start(o)
			if err != nil {
				return specError(err)
			}
			fmt.Fprintln(stdout, spec)
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&o.Kernel, "kernel", "", "the kernel's image: a bzImage")
	f.StringVar(&o.Initrd, "initrd", "", "its initial RAM disk")
	f.StringVar(&o.Append, "append", "console=ttyS0", "its command line")
	f.IntVar(&o.Memory, "memory", 256, "RAM in MB")
	f.IntVar(&o.CPUs, "cpus", 1, "number of virtual CPUs")
	f.StringVar(&o.CPUModel, "cpu", "", "CPU model, as qemu -cpu takes it (default qemu64, with kvm host)")
	f.StringVar(&o.Accel, "accel", "tcg", "tcg or kvm")
	f.BoolVar(&o.Icount, "icount", false, "count instructions: the guest's clock and TSC advance by one for each (tcg)")
	f.IntVar(&o.Ring, "ring", 32, "MB of the device that the ring lies in, a power of two; -1 is none")
	f.StringVar(&o.SerialLog, "serial", "", "file for the guest's console (default serial.log in DIR)")
	f.StringArrayVar(&o.Extra, "qemu", nil, "a further argument for QEMU; may be given again")
	return c
}

func newGuestStop() *cobra.Command {
	return &cobra.Command{
		Use:   "stop SPEC",
		Short: "end a QEMU that guest start has started, and remove its files",
		Args:  oneSpec,
		RunE: func(_ *cobra.Command, args []string) error {
			spec, err := qemu.ParseSpec(args[0])
			if err != nil {
				return specError(err)
			}
			return qemu.End(spec)
		},
	}
}

// newGuestGuard is what a tracer of a guest starts beside itself: see qemu.Guard.
func newGuestGuard() *cobra.Command {
	return &cobra.Command{
		Use:    "guard SPEC",
		Hidden: true,
		Args:   oneSpec,
		RunE: func(_ *cobra.Command, args []string) error {
			spec, err := qemu.ParseSpec(args[0])
			if err != nil {
				return err
			}
			return qemu.Guard(spec, os.Stdin)
		},
	}
}

// specError tells a SPEC or a size that can be none, which is wrong usage, from a guest that is
// not there.
func specError(err error) error {
	if errors.Is(err, unix.EINVAL) {
		return usageError{err}
	}
	return err
}

// oneSpec wants the guest as the only argument.
func oneSpec(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("give the guest: SPEC, what guest start has printed")
	}
	return nil
}
