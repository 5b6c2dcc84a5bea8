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
	root.SetOut(stdout)
	err := checkVerb(root, args)
	if err == nil {
		err = root.Execute()
	}
	if lost := stdout.Err(); !errors.Is(err, lost) {
		err = errors.Join(err, lost)
	}
	return status(err)
}

// status reports an error and gives the exit status for it. A child's is ours only if nothing
// of our own failed.
func status(err error) int {
	if err == nil {
		return 0
	}
	var st statusError
	if own := withoutStatus(err); own != nil {
		report(own)
		err = own
	} else if errors.As(err, &st) {
		return int(st)
	}
	if isUsage(err) {
		return exitUsage
	}
	return exitFailed
}

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

// report writes an error for people: a definition's with its column marked, each of
// several by itself.
func report(err error) {
	if u, ok := err.(usageError); ok {
		err = u.err
	}
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
		Version:       version(),
		Args:          noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_ = c.Help()
			return usagef("a verb is missing: see kprobe --help")
		},
	}
	root.SetFlagErrorFunc(flagError)
	root.SetVersionTemplate("kprobe {{.Version}}\n")
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
