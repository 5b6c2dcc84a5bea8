// Command kprobe probes running programs: see docs/ for a page on each verb.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/guestkit/agent"
)

// Exit statuses.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a wrong use of the command: exit status 2.
type usageError struct{ err error }

func (u usageError) Error() string { return u.err.Error() }
func (u usageError) Unwrap() error { return u.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// statusError makes the command end with a status of its own: the child's.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func main() {
	if os.Getpid() == 1 && os.Args[0] == "/init" {
		agent.Init() // in a guest that demo --guest has booted
		return
	}
	status := run(os.Args[1:])
	runtime.KeepAlive(ballast)
	os.Exit(status)
}

// ballast is memory that is never touched. The collector counts it as alive, so that it
// does not run for every few megabytes while thousands of probes are made: they stay.
var ballast = make([]byte, 24<<20)

func run(args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return 0
	}
	var st statusError
	if errors.As(err, &st) {
		return int(st)
	}
	report(err)
	var u usageError
	if errors.As(err, &u) {
		return exitUsage
	}
	return exitFailed
}

// report writes an error for people: a definition's with its column marked, each of
// several by itself.
func report(err error) {
	if many, ok := joined(err); ok {
		for _, e := range many {
			report(e)
		}
		return
	}
	fmt.Fprintf(os.Stderr, "kprobe: %v\n", err)
	var e *event.Error
	if errors.As(err, &e) {
		_, marked, _ := strings.Cut(e.Detail(), "\n")
		fmt.Fprint(os.Stderr, marked)
	}
}

// joined takes apart what errors.Join has put together: its text is nothing but theirs.
func joined(err error) ([]error, bool) {
	var u usageError
	if errors.As(err, &u) {
		err = u.err
	}
	many, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil, false
	}
	var texts []string
	for _, e := range many.Unwrap() {
		texts = append(texts, e.Error())
	}
	return many.Unwrap(), err.Error() == strings.Join(texts, "\n")
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "kprobe VERB",
		Short:         "break into almost any instruction of a running program, and let it go on",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("verb %q is not known: see kprobe --help", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			_ = c.Help()
			return usagef("a verb is missing")
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newTrace(), newFuncs(), newList(), newDetach(), newDemo(), newDemoApp(), newDemoHit(), newBench(), newWorkload(), newOwn(), newAttachTimer(), newDoctor(), newGuest())
	return root
}

// noArgs refuses positional arguments.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("argument %q is one too many", args[0])
	}
	return nil
}
