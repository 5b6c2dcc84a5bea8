package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/internal/arch/objfile"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/target/process"
)

func newFuncs() *cobra.Command {
	var s subject
	var verbose bool
	c := &cobra.Command{
		Use:   "funcs (-p PID | -k | --guest SPEC | FILE) [GLOB]",
		Short: "list the functions that can be probed",
		RunE: func(_ *cobra.Command, args []string) error {
			switch one, err := s.named(); {
			case err != nil:
				return err
			case one && len(args) > 1:
				return usagef("one pattern, not %d", len(args))
			case verbose && s.guest == "":
				return usagef("-v goes with --guest: a kernel's types tell of parameters")
			case s.kernel:
				return funcsOfKernel(pattern(args))
			case s.guest != "":
				return funcsOfGuest(s.guest, pattern(args), verbose)
			case one:
				return funcsOfProcess(s.pid, pattern(args))
			}
			if len(args) == 0 || len(args) > 2 {
				return usagef("give a process or a file: -p PID, or FILE")
			}
			return funcsOfFile(args[0], pattern(args[1:]))
		},
	}
	s.flags(c)
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "with --guest: declare each function as C does, with the parameters that can be named")
	return c
}

func pattern(args []string) string {
	if len(args) == 0 {
		return "*"
	}
	return args[0]
}

// funcsOfProcess lists the functions of the program and of all objects mapped.
func funcsOfProcess(pid int, glob string) error {
	p, err := process.OpenUnwaited(pid)
	if err != nil {
		return err
	}
	defer p.Close()
	t, err := process.Attach(p, nil)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(stdout)
	n := 0
	for _, m := range t.Space().Modules() {
		module := ""
		if !m.Main {
			module = m.Name
		}
		n += printFuncs(w, m.Image, glob, module, nil)
	}
	return finishFuncs(w, n, glob, t.Space().Modules())
}

func funcsOfFile(path, glob string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", strconv.Quote(path))
	}
	im, err := symbol.Open(f, st.Size(), path, nil)
	if err != nil {
		return err
	}
	if m := im.Machine(); m != objfile.X86_64 {
		return fmt.Errorf("file %q is made for %v: only x86-64 programs can be probed", path, m)
	}
	w := bufio.NewWriter(stdout)
	return finishFuncs(w, printFuncs(w, im, glob, "", nil), glob, []*symbol.Module{{Image: im, Main: true}})
}
