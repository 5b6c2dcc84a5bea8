package main

import (
	"github.com/spf13/cobra"
)

func newDoctor() *cobra.Command {
	var pid int
	var format, spec string
	c := &cobra.Command{
		Use:   "doctor [-p PID | --guest SPEC]",
		Short: "tell what works here and what to change",
		Long: `Tell what works on this machine and what to change: the kernel and its settings, the
processor, the caller's rights and limits; with -p also a process, with --guest a QEMU guest
and its kernel. Nothing is changed; a
process is stopped for a moment, in which one of its threads asks the kernel what others
can not ask for it.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case format != "text" && format != "json":
				return usagef("format %q: text or json", format)
			case c.Flags().Changed("pid") && pid <= 0:
				return usagef("process %d: a pid is positive", pid)
			case pid != 0 && spec != "":
				return usagef("-p and --guest exclude each other")
			}
			fs := examineHost()
			if pid != 0 {
				fs = append(fs, examineProcess(pid)...)
			}
			if spec != "" {
				fs = append(fs, examineGuest(spec)...)
			}
			return printFindings(stdout, format, fs)
		},
	}
	c.Flags().IntVarP(&pid, "pid", "p", 0, "look at a process too")
	c.Flags().StringVar(&spec, "guest", "", "look at a QEMU guest too: see kprobe trace --help")
	c.Flags().StringVar(&format, "format", "text", "text or json")
	return c
}
