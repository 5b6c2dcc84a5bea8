// Package agent does in a guest what a program on the host asks for: it opens a serial
// port, says that it is ready, and answers one request after another.
package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/guestkit/serial"
)

// Port is the serial port that the host listens at.
const Port = "/dev/ttyS1"

// Serve answers requests until it can not.
func Serve(port string) error {
	f, err := openRaw(port)
	if err != nil {
		return err
	}
	c := serial.New(f, true)
	if err := c.Send(serial.Answer{Ready: true}, nil); err != nil {
		return err
	}
	a := &agent{running: make(map[int]*exec.Cmd)}
	for {
		var req serial.Request
		body, err := c.Receive(&req)
		if err != nil {
			return err
		}
		ans, out := a.answer(&req, body)
		if err := c.Send(ans, out); err != nil {
			return err
		}
	}
}

// openRaw opens a terminal that passes on every byte as it is.
func openRaw(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cflag = unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// agent keeps the commands that run in the background.
type agent struct {
	running map[int]*exec.Cmd
	last    int
}

func (a *agent) answer(req *serial.Request, body []byte) (ans serial.Answer, out []byte) {
	var err error
	switch req.Op {
	case "write":
		err = write(req, body)
	case "read":
		out, err = os.ReadFile(req.Path)
	case "list":
		ans.Names, err = list(req.Path)
	case "run":
		out, err = run(req.Args, body, &ans)
	case "spawn":
		ans.ID, err = a.spawn(req.Args)
	case "end":
		err = a.end(req.ID)
	case "reboot":
		unix.Sync()
		err = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	default:
		err = fmt.Errorf("request %q is not known: %w", req.Op, unix.EINVAL)
	}
	if err != nil {
		ans.Error, ans.Errno = err.Error(), errnoOf(err)
	}
	return ans, out
}

func errnoOf(err error) int {
	var e syscall.Errno
	if errors.As(err, &e) {
		return int(e)
	}
	return int(unix.EIO)
}

// write writes body by one write(2), as the files of tracefs want it.
func write(req *serial.Request, body []byte) error {
	fd, err := unix.Open(req.Path, req.Flags|unix.O_CLOEXEC, req.Mode)
	if err != nil {
		return fmt.Errorf("open %s: %w", req.Path, err)
	}
	n, err := unix.Write(fd, body)
	if err == nil && n < len(body) {
		err = io.ErrShortWrite
	}
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", req.Path, err)
	}
	return nil
}

func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func run(args []string, in []byte, ans *serial.Answer) ([]byte, error) {
	if len(args) == 0 {
		return nil, unix.EINVAL
	}
	var out, errs bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &errs
	err := cmd.Run()
	ans.Stderr = errs.Bytes()
	if cmd.ProcessState == nil {
		return nil, err
	}
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	ans.Status = ws.ExitStatus()
	if ws.Signaled() {
		ans.Status = 128 + int(ws.Signal())
	}
	return out.Bytes(), nil
}

// spawn starts a command in the background, in a process group of its own.
func (a *agent) spawn(args []string) (int, error) {
	if len(args) == 0 {
		return 0, unix.EINVAL
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	a.last++
	a.running[a.last] = cmd
	return a.last, nil
}

// end kills a background command and its children.
func (a *agent) end(id int) error {
	cmd := a.running[id]
	if cmd == nil {
		return unix.ESRCH
	}
	delete(a.running, id)
	if err := unix.Kill(-cmd.Process.Pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	_ = cmd.Wait() // its status is SIGKILL, or its own
	return nil
}
