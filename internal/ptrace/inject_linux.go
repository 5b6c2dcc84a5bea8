//go:build kprobes_fault

package ptrace

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A program built with the tag kprobes_fault, as the end-to-end tests build the command, is
// struck at a step of its work: a request of ptrace or a write into a process. The text of a step
// is the request's name and the functions that led to it: "setregs < internal/ptrace.setRegs < ...".
// These variables of the environment say when the program is struck and with what.
const (
	envStep   = "KPROBES_FAULT_STEP"   // "2 TEXT": the second step of this text
	envSignal = "KPROBES_FAULT_SIGNAL" // what the program sends itself before it; default SIGKILL
	envTarget = "KPROBES_FAULT_TARGET" // a process that gets the signal instead
	envLog    = "KPROBES_FAULT_LOG"    // a file for the steps' texts, one a line
)

// signalTime is how long a signal that does not kill gets to be noticed.
const signalTime = 10 * time.Millisecond

func init() {
	log, err := os.OpenFile(os.Getenv(envLog), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return
	}
	nth, at, _ := strings.Cut(os.Getenv(envStep), " ")
	sig := unix.Signal(variable(envSignal, int(unix.SIGKILL)))
	pid := variable(envTarget, os.Getpid())
	n := 0
	OnStep = func(what string) {
		what += callers()
		if what == at {
			n++
			if strconv.Itoa(n) == nth {
				_ = unix.Kill(pid, sig)
				time.Sleep(signalTime)
			}
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

// callers are the functions of this module that lead to a step, innermost first.
func callers() string {
	var pcs [64]uintptr
	var b strings.Builder
	frames := runtime.CallersFrames(pcs[:runtime.Callers(4, pcs[:])])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if fn, ok := strings.CutPrefix(f.Function, "kprobes.dev/kprobes"); ok {
			b.WriteString(" < " + strings.TrimPrefix(fn, "/"))
		}
	}
	return b.String()
}
