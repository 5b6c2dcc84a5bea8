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

func run(args []string) int { return ownConsole(args).run() }

// run runs the command line and gives its exit status.
func (c *console) run() int {
	root := newRoot(c)
	root.SetArgs(c.args)
	root.SetOut(c.table)
	err := checkVerb(root, c.args)
	if err == nil {
		err = root.Execute()
	}
	if lost := c.table.Err(); !errors.Is(err, lost) {
		err = errors.Join(err, lost)
	}
	if c.again {
		return 0 // it will be run elsewhere
	}
	return status(c.stderr, err)
}

func newRoot(con *console) *cobra.Command {
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
	root.AddCommand(newTrace(con), newHist(con), newMount(con), newStat(con), newRecord(con), newReport(), newSpans(con), newAgent(con), newFuncs(), newList(), newDetach(), newHold(), newEnable(con, true), newEnable(con, false), newOptimization(con), newBlacklist(), newInsmod(con), newRmmod(con), newLsmod(con), newModinfo(con), newDmesg(con), newCC(), newDemo(), newDemoApp(), newDemoHit(), newBench(), newWorkload(), newOwn(), newAttachTimer(), newDoctor(), newGuest())
	return root
}
