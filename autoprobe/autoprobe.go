package autoprobe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/trace"
)

// Var is the variable of the environment that holds the definitions.
const Var = "KPROBE_EVENT"

func init() { start(os.Getenv(Var), auxv, trace.Self, os.Stderr) }

// auxv reads what the kernel told the program when it started.
func auxv() ([]byte, error) { return os.ReadFile("/proc/self/auxv") }

// start defines and enables events, unless the program runs with rights of its own.
func start(text string, auxv func() ([]byte, error), open func() (*trace.Instance, error), words io.Writer) {
	if text == "" {
		return
	}
	if b, err := auxv(); err != nil || privileged(b) {
		fmt.Fprintf(words, "kprobes: %s is ignored: this program has rights that who started it has not, or does not know whether\n", Var)
		return
	}
	in, err := open()
	if err != nil {
		fmt.Fprintf(words, "kprobes: %s is ignored: %v\n", Var, err)
		return
	}
	for _, cmd := range commands(text) {
		if err := in.Write(cmd); err != nil {
			failed(words, cmd, err)
		}
	}
	for _, group := range in.Groups() {
		names, err := in.Names(group)
		if err != nil {
			continue // deleted just now
		}
		for _, name := range names {
			if err := in.Enable(group, name, true); err != nil {
				failed(words, group+"/"+name, err)
			}
		}
	}
}

// commands cuts the variable into definitions.
func commands(text string) []string {
	var out []string
	for cmd := range strings.SplitSeq(text, ";") {
		if cmd = strings.TrimSpace(strings.NewReplacer(",", " ", "\n", " ").Replace(cmd)); cmd != "" {
			out = append(out, cmd)
		}
	}
	return out
}

// failed tells of a definition in the kernel's words (setup_boot_kprobe_events, Linux 6.18),
// and below them why.
func failed(w io.Writer, cmd string, err error) {
	no := syscall.EINVAL
	errors.As(err, &no)
	var e *event.Error
	if errors.As(err, &e) {
		no = e.Code.Errno()
	}
	fmt.Fprintf(w, "Failed to add event(%d): %s\n%v\n", -int(no), cmd, err)
}

// atSecure is the entry of the auxiliary vector that says whether the program was given
// rights (getauxval(3), linux/auxvec.h).
const atSecure = 23

// privileged says whether it was: also where the vector does not tell.
func privileged(auxv []byte) bool {
	for ; len(auxv) >= 16; auxv = auxv[16:] {
		if binary.NativeEndian.Uint64(auxv) == atSecure {
			return binary.NativeEndian.Uint64(auxv[8:]) != 0
		}
	}
	return true
}
