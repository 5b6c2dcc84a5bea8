package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// subject is what a verb's flags name: a process, the kernel that runs here, or a guest's.
type subject struct {
	pid    int
	kernel bool
	guest  string
	given  *pflag.Flag // -p
}

// flags adds them to a verb.
func (s *subject) flags(c *cobra.Command) {
	f := c.Flags()
	f.IntVarP(&s.pid, "pid", "p", 0, "the process")
	s.given = f.Lookup("pid")
	f.BoolVarP(&s.kernel, "kernel", "k", false, "the kernel that runs here")
	f.StringVar(&s.guest, "guest", "", "the kernel of a QEMU guest: a directory of kprobe guest start, or qmp=PATH,gdb=PATH,mem=PATH[,ring=PATH]")
}

// name is what messages call a process or a guest.
func (s *subject) name() string {
	if s.guest != "" {
		return "guest " + s.guest
	}
	return fmt.Sprintf("process %d", s.pid)
}

// named says whether one is named. Several are an error, and so is a process that can be
// none.
func (s *subject) named() (bool, error) {
	n := 0
	for _, is := range []bool{s.given.Changed, s.kernel, s.guest != ""} {
		if is {
			n++
		}
	}
	switch {
	case n > 1:
		return false, usagef("-p, -k and --guest exclude each other")
	case s.given.Changed && s.pid <= 0:
		return false, usagef("process %d: a pid is positive", s.pid)
	}
	return n == 1, nil
}

// need is named for a verb that must have one.
func (s *subject) need() error {
	ok, err := s.named()
	if err == nil && !ok {
		err = usagef("give the process: -p PID, or -k for the kernel, or --guest SPEC for a guest's")
	}
	return err
}
