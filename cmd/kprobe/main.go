// Command kprobe probes running programs: see docs/ for a page on each verb.
package main

import (
	"errors"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/internal/guestkit/agent"
)

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
	root.AddCommand(newTrace(), newHist(), newMount(), newStat(), newRecord(), newReport(), newFuncs(), newList(), newDetach(), newDemo(), newDemoApp(), newDemoHit(), newBench(), newWorkload(), newOwn(), newAttachTimer(), newDoctor(), newGuest())
	return root
}
