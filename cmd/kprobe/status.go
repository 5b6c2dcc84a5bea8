package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"kprobes.dev/kprobes/event"
)

// Exit statuses.
const (
	exitFailed = 1
	exitUsage  = 2
)

// statusError makes the command end with a status of its own: the child's.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// withoutStatus gives what is to be reported of an error: all but the status of a child.
func withoutStatus(err error) error {
	if _, ok := err.(statusError); ok {
		return nil
	}
	many, ok := joined(err)
	if !ok {
		return err
	}
	var out []error
	for _, e := range many {
		out = append(out, withoutStatus(e))
	}
	return errors.Join(out...)
}

// status reports an error and gives the exit status for it. A child's is ours only if nothing
// of our own failed.
func status(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	var st statusError
	if own := withoutStatus(err); own != nil {
		report(w, own)
		err = own
	} else if errors.As(err, &st) {
		return int(st)
	}
	if isUsage(err) {
		return exitUsage
	}
	return exitFailed
}

// report writes an error for people: a definition's with its column marked, each of
// several by itself.
func report(w io.Writer, err error) {
	if u, ok := err.(usageError); ok {
		err = u.err
	}
	if many, ok := joined(err); ok {
		for _, e := range many {
			report(w, e)
		}
		return
	}
	fmt.Fprintf(w, "kprobe: %v\n", err)
	var e *event.Error
	if errors.As(err, &e) {
		_, marked, _ := strings.Cut(e.Detail(), "\n")
		fmt.Fprint(w, marked)
	}
}
