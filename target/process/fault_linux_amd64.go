//go:build kprobes_fault

package process

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// A program built with the tag kprobes_fault, as the end-to-end tests build the command,
// kills itself before the step that this variable numbers (from 1): what it leaves behind is
// what a tracer leaves that is killed there. Steps are requests of ptrace and writes into the
// process, whatever they are for. Each one's name goes to the file that FaultLog names.
const (
	FaultStep = "KPROBES_FAULT_STEP"
	FaultLog  = "KPROBES_FAULT_LOG"
)

func init() {
	at, _ := strconv.Atoi(os.Getenv(FaultStep))
	log, err := os.OpenFile(os.Getenv(FaultLog), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return
	}
	n := 0
	stepHook = func(what string) {
		n++
		fmt.Fprintln(log, what)
		if n == at {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}
}
