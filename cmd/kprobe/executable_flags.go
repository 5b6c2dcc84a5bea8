package main

import (
	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/internal/executables"
)

// flags adds them to a verb.
func (e *everyProcess) flags(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVarP(&e.path, "executable", "x", "", "every process of this program's file: those that run and those that come; with -- CMD those that CMD starts, without root")
	fl.StringVar(&e.group, "cgroup", "", "with -x: only processes of this control group and those below it, such as /system.slice/cron.service")
	fl.StringVar(&e.container, "container", "", "with -x: only processes of this container, by its id")
}

// check says what is wrong with them, and finds the file.
func (e *everyProcess) check(f *traceFlags, subject bool) (err error) {
	switch {
	case !f.given("executable") && f.given("cgroup"), !f.given("executable") && f.given("container"):
		return usagef("--cgroup and --container choose among the processes of a program: give its file with -x FILE")
	case !f.given("executable"):
		return nil
	case subject:
		return usagef("-p, -k, --guest and -x exclude each other")
	case len(f.triggers) > 0:
		return usagef("-R is for one process: a trigger switches what it finds in that process")
	case f.given("tid"):
		return usagef("--tid is for one process: --comm takes threads by their names")
	}
	if e.only, err = executables.NewOnly(e.group, e.container); err != nil {
		return usageError{err}
	}
	e.file, err = executables.Find(e.path)
	return err
}

// named says whether -x was given. check has found its file then.
func (e *everyProcess) named() bool { return e.file != nil }
