//go:build kprobes_fault

package process

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A program built with the tag kprobes_fault, as the end-to-end tests build the command, is
// struck at a step of its work: a request of ptrace or a write into a process, whatever it is
// for. These variables of the environment say when and with what.
const (
	envStep   = "KPROBES_FAULT_STEP"   // the step, from 1; 0: none
	envSignal = "KPROBES_FAULT_SIGNAL" // what the program sends itself before it; default SIGKILL
	envTarget = "KPROBES_FAULT_TARGET" // a process that gets the signal instead
	envLog    = "KPROBES_FAULT_LOG"    // a file for the steps' names, one a line
)

// signalTime is how long a signal that does not kill gets to be noticed.
const signalTime = 10 * time.Millisecond

func init() {
	log, err := os.OpenFile(os.Getenv(envLog), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return
	}
	at := variable(envStep, 0)
	sig := unix.Signal(variable(envSignal, int(unix.SIGKILL)))
	pid := variable(envTarget, os.Getpid())
	n := 0
	stepHook = func(what string) {
		if n++; n == at {
			_ = unix.Kill(pid, sig)
			time.Sleep(signalTime)
		}
		fmt.Fprintln(log, what)
	}
}

// variable reads a number from the environment.
func variable(name string, other int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return other
}
