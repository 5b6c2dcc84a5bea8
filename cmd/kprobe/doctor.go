package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

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
	var format string
	c := &cobra.Command{
		Use:   "doctor [-p PID]",
		Short: "tell what works here and what to change",
		Long: `Tell what works on this machine and what to change: the kernel and its settings, the
processor, the caller's rights and limits; with -p also a process. Nothing is changed; a
process is stopped for a moment, in which one of its threads asks the kernel what others
can not ask for it.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case format != "text" && format != "json":
				return usagef("format %q: text or json", format)
			case c.Flags().Changed("pid") && pid <= 0:
				return usagef("process %d: a pid is positive", pid)
			}
			fs := examineHost()
			if pid != 0 {
				fs = append(fs, examineProcess(pid)...)
			}
			return tell(os.Stdout, format, fs)
		},
	}
	c.Flags().IntVarP(&pid, "pid", "p", 0, "look at a process too")
	c.Flags().StringVar(&format, "format", "text", "text or json")
	return c
}

// tell writes the findings; one that fails is an error.
func tell(w io.Writer, format string, fs []finding) error {
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
		_, err = fmt.Fprintf(w, "%22s %s\n", "", f.Do)
	}
	return err
}
