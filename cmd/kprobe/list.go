package main

import (
	"bytes"
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
	if h, err := p.Holder(); err == nil && h == nil && own > 0 && users == 0 {
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
