package testguest

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

// mournScript ends a guest, process $1 with the files behind it, unless it is told bye.
const mournScript = `read word; [ "$word" = bye ] && exit; kill -9 "$1"; shift; rm -rf "$@"`

// mourner is a shell that ends the guest when the test's process dies: killed by a timeout,
// for one.
type mourner struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

func mourn(spec qemu.Spec) (*mourner, error) {
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
	m := &mourner{cmd: exec.Command("/bin/sh", append([]string{"-c", mournScript, "sh", strconv.Itoa(r.PID), spec.Dir}, r.Files...)...)}
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return m, m.cmd.Start()
}

// dismiss sends the shell away: the guest has been ended.
func (m *mourner) dismiss() error {
	_, err := io.WriteString(m.in, "bye\n")
	return errors.Join(err, m.in.Close(), m.cmd.Wait())
}
