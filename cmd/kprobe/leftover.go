package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/target/process"
)

func newList() *cobra.Command {
	var s subject
	c := &cobra.Command{
		Use:   "list (-p PID | -k | --guest SPEC)",
		Short: "list the probes in a process or a kernel, in the format of kprobes/list",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			switch err := s.need(); {
			case err != nil:
				return err
			case s.kernel:
				return listKernel()
			case s.guest != "":
				return listGuest(s.guest)
			}
			return list(s.pid)
		},
	}
	s.flags(c)
	return c
}

// list shows what stands in a process, from the process's own memory.
func list(pid int) error {
	p, err := process.OpenUnwaited(pid)
	if err != nil {
		return err
	}
	defer p.Close()
	t, err := process.Attach(p, nil)
	if err != nil {
		return err
	}
	return writeList(stdout, p, newNames(t))
}

// writeList writes what stands in a process, a line for each probe.
func writeList(w io.Writer, p *process.Proc, n *names) error {
	l, err := process.FindLeftover(p)
	if err != nil || l == nil {
		return err
	}
	own, users := 0, 0 // patches that stand
	for _, s := range l.Sites {
		state := stateOf(p, &s)
		switch {
		case state == disabled:
		case len(s.Points) == 0:
			own++
		default:
			users++
		}
		line := func(at uint64, kind byte) string { return listLine(n, at, kind, state) }
		if place, ok := s.Gone(); ok {
			line = func(at uint64, kind byte) string { return placeLine(at, kind, clean(place), " ", "[GONE]") }
		}
		writePoints(w, s.Points, line)
	}
	if own > 0 && users == 0 {
		fmt.Fprintf(os.Stderr, "kprobe: %d of kprobe's own probes stand in process %d, and none of a user's: kprobe detach -p %d takes out what a tracer that was killed has left\n",
			own, p.PID(), p.PID())
	}
	return nil
}

// disabled is the state of a probe that does not stand.
const disabled = "[DISABLED]"

// stateOf tells the state of a site: [OPTIMIZED] for a jump, or why a changed path is taken at it all
// the same, for a breakpoint why it is none, and what stands there if it is neither the patch nor what the program had.
func stateOf(p *process.Proc, s *process.Patched) string {
	have := make([]byte, len(s.Patch))
	err := p.ReadMem(s.Addr, have)
	switch {
	case len(s.Patch) == 0:
		return "postponed: " + s.Why()
	case err != nil:
		return "[GONE]"
	case bytes.Equal(have, s.Orig):
		return disabled // a tracer ended before it patched, or after it restored
	case !bytes.Equal(have, s.Patch):
		return fmt.Sprintf("[FOREIGN % x]", have)
	case s.Jump() && s.Why() != "":
		return "jump: " + s.Why()
	case s.Jump():
		return "[OPTIMIZED]"
	case s.Why() != "":
		return "boost: " + s.Why()
	}
	return "boost"
}

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
				return detachGuest(s.guest, force)
			}
			return detach(s.pid, force)
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
