package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/target/process"
)

func newDetach() *cobra.Command {
	var s subject
	var force bool
	c := &cobra.Command{
		Use:   "detach (-p PID | -k | --guest SPEC)",
		Short: "take everything out of a process or a kernel that an earlier kprobe left there",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			switch err := s.need(); {
			case err != nil:
				return err
			case s.kernel:
				return detachKernel(force)
			case s.guest != "":
				return errors.Join(unmountDead("guest "+s.guest), detachGuest(s.guest, force))
			}
			return errors.Join(unmountDead(fmt.Sprintf("process %d", s.pid)), detach(s.pid, force))
		},
	}
	s.flags(c)
	c.Flags().BoolVar(&force, "force", false, "also if the kprobe that holds it still runs")
	return c
}

// detach undoes what a tracer that is gone has left.
func detach(pid int, force bool) error {
	p, err := process.OpenUnwaited(pid)
	if err != nil {
		return err
	}
	defer p.Close()
	var held *process.HeldError
	if err := p.Lock(); err != nil && (!errors.As(err, &held) || !force) {
		return err
	}
	l, err := process.FindLeftover(p)
	if err != nil {
		return err
	}
	if l == nil {
		if !reportKept(p, p.DropKept()) {
			fmt.Fprintf(os.Stderr, "kprobe: process %d holds nothing of ours\n", pid)
		}
		return nil
	}
	u, err := l.Undo()
	if err != nil {
		return err
	}
	reportKept(p, u.Kept)
	fmt.Fprintf(os.Stderr, "kprobe: process %d: %d sites restored, %d mappings removed\n", pid, u.Restored, u.Pages)
	if u.Copies > 0 {
		fmt.Fprintf(os.Stderr, "kprobe: process %d: %d pages of text stay private copies, with the bytes of their file: %v\n", pid, u.Copies, u.Why)
	}
	if u.InCall {
		return fmt.Errorf("process %d: %w", pid, process.ErrInCall)
	}
	if len(u.Foreign) > 0 {
		return fmt.Errorf("process %d: %d places hold bytes that are neither the file's nor ours, and were left alone: 0x%x", pid, len(u.Foreign), u.Foreign)
	}
	return nil
}

// reportKept tells of the uprobes that the kernel had kept, and says whether any were taken out.
func reportKept(p *process.Proc, k *process.Kept) bool {
	if n := len(k.Dropped); n > 0 {
		fmt.Fprintf(os.Stderr, "kprobe: process %d: %d breakpoints that the kernel had kept of tracers that were killed were taken out\n", p.PID(), n)
	}
	switch {
	case len(k.Stays) > 0:
		why := "they are in use"
		if k.Why != nil {
			why = k.Why.Error()
		}
		fmt.Fprintf(os.Stderr, "kprobe: process %d: %d breakpoints that are not ours stay, at 0x%x: %s\n", p.PID(), len(k.Stays), k.Stays, why)
	case k.Why != nil:
		fmt.Fprintf(os.Stderr, "kprobe: process %d: not all breakpoints that the kernel may have kept were looked for: %v\n", p.PID(), k.Why)
	}
	return len(k.Dropped) > 0
}
