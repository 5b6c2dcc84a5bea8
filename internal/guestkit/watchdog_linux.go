package guestkit

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"kprobes.dev/kprobes/target/guest/qemu"
)

// watchScript ends a guest, process $1 with the files behind it, unless it is told bye.
const watchScript = `read word; [ "$word" = bye ] && exit; kill -9 "$1"; shift; rm -rf "$@"`

// Watchdog is a shell that ends a guest when this process dies without having done so: killed
// by a timeout, for one.
type Watchdog struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

// StartWatchdog starts one for a guest that qemu.Start has started.
func StartWatchdog(spec qemu.Spec) (*Watchdog, error) {
	b, err := os.ReadFile(filepath.Join(spec.Dir, "guest.json"))
	if err != nil {
		return nil, err
	}
	var r struct {
		PID   int
		Files []string
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, err
	}
	args := append([]string{"-c", watchScript, "sh", strconv.Itoa(r.PID)}, r.Files...)
	m := &Watchdog{cmd: exec.Command("/bin/sh", append(args, spec.Dir)...)} // what tells of the rest is the last
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return m, m.cmd.Start()
}

// Dismiss sends the shell away: the guest has been ended.
func (m *Watchdog) Dismiss() error {
	_, err := io.WriteString(m.in, "bye\n")
	return errors.Join(err, m.in.Close(), m.cmd.Wait())
}
