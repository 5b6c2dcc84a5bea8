package holder

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// Errors of a client.
var (
	// ErrNone: the process does not serve others: it is no kprobe, an older one, or in another network namespace.
	ErrNone = errors.New("it serves nobody else")
	// ErrEnding: the holder is about to end, and the target free soon.
	ErrEnding = errors.New("the holder ends")
)

// Client is a request that a holder serves.
type Client struct {
	conn *net.UnixConn
	// own: Start has started the holder.
	own bool
	// PID is the holder's process id.
	PID int
}

// address is the name of a holder's socket.
func address(pid int, start uint64) *net.UnixAddr {
	return &net.UnixAddr{Name: fmt.Sprintf("@kprobe/%d/%d", pid, start), Net: "unix"}
}

// Dial connects to the holder of a target. A client gives a holder its terminal and its directory, and so asks only one of its own user, or
// root's. Errors: ErrNone.
func Dial(h *procfs.Holder) (*Client, error) {
	if h.PID == 0 {
		return nil, ErrNone
	}
	conn, err := net.DialUnix("unix", nil, address(h.PID, h.Start))
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, err
	}
	who, err := peer(conn)
	switch {
	case err != nil:
	case int(who.Pid) != h.PID:
		err = ErrNone // somebody else has its name
	case who.Uid != 0 && int(who.Uid) != os.Geteuid():
		err = fmt.Errorf("process %d (kprobe) holds it for user %d, and you are user %d: run kprobe as that user, or end that process", h.PID, who.Uid, os.Geteuid())
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Client{conn: conn, PID: h.PID}, nil
}

// peer asks the kernel who has the other end of a connection.
func peer(conn *net.UnixConn) (who *unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	bad := raw.Control(func(fd uintptr) { who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return who, errors.Join(err, bad)
}

// connFD is the descriptor at which a holder that Start has started finds the connection to its first client.
const connFD = 3

// Start starts a holder: this program's file, with a command line that has it call Serve. It has no terminal and outlives
// its first client.
func Start(exe string, args ...string) (*Client, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "holder"), os.NewFile(uintptr(fds[1]), "client")
	defer ours.Close()
	defer theirs.Close()
	c, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe, args...)
	cmd.Args[0] = "kprobe"
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	go func() { _ = cmd.Wait() }() // what it did is told by the connection
	return &Client{conn: c.(*net.UnixConn), own: true, PID: cmd.Process.Pid}, nil
}

// Notes are what a client is told while its command line runs. A nil one is not told.
type Notes struct {
	Begun func() // the program that was started for it runs
	Out   func() // nothing of the command's is in the target any more
}

// Run has the holder run a command line. end asks for the end of the command. Errors: ErrEnding; what the holder refuses.
func (c *Client) Run(r *Request, end <-chan struct{}, n Notes) (status int, err error) {
	defer c.conn.Close()
	taken := c.own
	sent := r.send(c.conn) // one that is refused unread is not sent whole: the reply is there all the same
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-end:
			_ = json.NewEncoder(c.conn).Encode(ask{End: true}) // who does not read it has ended
		case <-done:
		}
	}()
	for dec := json.NewDecoder(c.conn); ; {
		var m reply
		switch err := dec.Decode(&m); {
		case err != nil:
			return 0, c.lost(cmp.Or(sent, err), taken)
		case m.Ending:
			return 0, ErrEnding
		case m.Refuse != "":
			return 0, fmt.Errorf("process %d (kprobe), which holds it, refuses: %s", c.PID, m.Refuse)
		case m.Status != nil:
			return *m.Status, nil
		case m.Taken:
			taken = true
		case m.Begun && n.Begun != nil:
			n.Begun()
		case m.Out && n.Out != nil:
			n.Out()
		}
	}
}

// Close gives a connection up that no request was sent on.
func (c *Client) Close() error { return c.conn.Close() }

// lost tells of a holder that has ended without a word, whether it has taken the request or not.
func (c *Client) lost(err error, taken bool) error {
	switch {
	case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET):
		return err
	case !taken: // it was about to end
		return ErrEnding
	}
	return fmt.Errorf("process %d (kprobe), which held it, was killed or has crashed: kprobe detach takes out what it has left", c.PID)
}

// Wait waits until a process has ended.
func Wait(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
