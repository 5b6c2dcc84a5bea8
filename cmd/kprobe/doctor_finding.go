package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
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

func (f finding) write(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%-5s %-16s %s\n", f.Status, f.Check, clean(f.Found))
	if err == nil && f.Do != "" {
		_, err = fmt.Fprintf(w, "%22s %s\n", "", strings.ReplaceAll(strings.TrimSuffix(f.Do, "\n"), "\n", "\n"+strings.Repeat(" ", 23)))
	}
	return err
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

// errDoctor makes the exit status 1: what is wrong has been told by then.
const errDoctor = statusError(exitFailed)
