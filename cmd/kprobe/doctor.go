package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// verdict is how a thing that was looked at is.
type verdict string

const (
	verdictOK   verdict = "ok"
	verdictWarn verdict = "warn" // works, but something is slower or left out
	verdictFail verdict = "fail" // probes do not work
)

// finding is a line of the doctor's.
type finding struct {
	Check  string  `json:"check"`
	Status verdict `json:"status"`
	Found  string  `json:"found"`
	Do     string  `json:"do,omitempty"` // what it costs and what changes it
}

func fine(check, format string, args ...any) finding {
	return finding{Check: check, Status: verdictOK, Found: fmt.Sprintf(format, args...)}
}

func (f finding) warn(do string) finding {
	f.Status, f.Do = verdictWarn, do
	return f
}

func (f finding) fail(do string) finding {
	f.Status, f.Do = verdictFail, do
	return f
}

// errDoctor makes the exit status 1: what is wrong has been told by then.
const errDoctor = statusError(exitFailed)

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

// printFindings writes the findings; one that fails is an error.
func printFindings(w io.Writer, format string, fs []finding) error {
	var err error
	enc := json.NewEncoder(w)
	for _, f := range fs {
		if f.Status == verdictFail {
			err = errDoctor
		}
		if format == "json" {
			if e := enc.Encode(f); e != nil {
				return e
			}
			continue
		}
		if e := f.write(w); e != nil {
			return e
		}
	}
	return err
}

func (f finding) write(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%-5s %-16s %s\n", f.Status, f.Check, clean(f.Found))
	if err == nil && f.Do != "" {
		_, err = fmt.Fprintf(w, "%22s %s\n", "", strings.ReplaceAll(strings.TrimSuffix(f.Do, "\n"), "\n", "\n"+strings.Repeat(" ", 23)))
	}
	return err
}
