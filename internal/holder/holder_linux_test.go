package holder

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// Words that have this program be another process of these tests.
const (
	beHolder = "be-holder" // a holder of the process with the id behind it
	beClient = "be-client" // a client of the holder and the target with the ids behind it
	beOther  = "be-other"  // a process that listens as a holder does, until its stdin ends
)

func TestMain(m *testing.M) {
	if len(os.Args) < 3 || os.Args[1] != beHolder && os.Args[1] != beClient && os.Args[1] != beOther {
		os.Exit(m.Run())
	}
	var err error
	if os.Args[1] == beOther {
		_, err = listen()
		fmt.Println("listening")
		_, _ = os.Stdin.Read(make([]byte, 1))
	} else if os.Args[1] == beHolder {
		err = Serve(&fakeHost{mem: fmt.Sprintf("/proc/%s/mem", os.Args[2]), done: make(chan struct{})})
	} else {
		err = askAs(os.Args[2], os.Args[3])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// askAs asks a holder for a greeting.
func askAs(holder, target string) error {
	pid, err := strconv.Atoi(holder)
	if err != nil {
		return err
	}
	c, err := Dial(procfs.NewHolder(pid))
	if err != nil {
		return err
	}
	r, err := requestFor(target, "hello")
	if err != nil {
		return err
	}
	_, err = c.Run(r, nil, Notes{})
	return err
}

// fakeHost greets on stdout, waits for the end where it is asked to, and ends when it is asked to.
type fakeHost struct {
	mem  string
	done chan struct{}
}

func (h *fakeHost) Target() (string, bool) { return h.mem, true }
func (h *fakeHost) Done() <-chan struct{}  { return h.done }

func (h *fakeHost) Serve(s *Session) (int, bool) {
	switch s.Args[0] {
	case "hello":
		fmt.Fprintf(s.Files.Out, "hello from %d to %d\n", os.Getpid(), s.PID)
		return 7, true
	case "wait":
		fmt.Fprintln(s.Files.Out, "waiting")
		<-s.Ended
		s.Out()
		return 0, true
	case "busy":
		return 0, false
	case "listen":
		return serveOne(s), true
	case "die":
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	}
	close(h.done)
	return 3, true
}

// serveOne answers one connection to the listener of a request with what the request says of it.
func serveOne(s *Session) (status int) {
	l, err := net.FileListener(s.Files.Listener)
	if err != nil {
		return 1
	}
	defer l.Close()
	c, err := l.Accept()
	if err != nil {
		return 1
	}
	defer c.Close()
	fmt.Fprintf(c, "%d %s %v", os.Getpid(), s.HTTP.Token, s.HTTP.Hosts)
	return 0
}

// requestFor makes a request whose output goes to stdout, with a proof for a target.
func requestFor(target string, args ...string) (*Request, error) {
	r := &Request{Args: args, Files: Files{Out: os.Stdout, Err: os.Stderr}}
	var err [3]error
	r.Files.Dir, err[0] = os.OpenFile(".", unix.O_PATH, 0)
	r.Files.Root, err[1] = os.OpenFile("/", unix.O_PATH, 0)
	r.Files.Proof, err[2] = os.OpenFile("/proc/"+target+"/mem", os.O_RDWR, 0)
	if errors.Is(err[2], os.ErrPermission) { // the holder is to refuse it
		r.Files.Proof, err[2] = os.Open("/dev/null")
	}
	return r, errors.Join(err[:]...)
}

// asks has a client run a request, and gives what it printed.
func asks(t *testing.T, c *Client, end <-chan struct{}, args ...string) (printed string, status int, out bool, err error) {
	t.Helper()
	r, bad := requestFor(strconv.Itoa(os.Getpid()), args...)
	file, bad2 := os.CreateTemp(t.TempDir(), "out")
	if bad := errors.Join(bad, bad2); bad != nil {
		t.Fatal(bad)
	}
	defer file.Close()
	r.Files.Out = file
	status, err = c.Run(r, end, Notes{Out: func() { out = true }})
	b, bad := os.ReadFile(file.Name())
	if bad != nil {
		t.Fatal(bad)
	}
	return string(b), status, out, err
}

// start starts a holder of this process, whose first client waits until the function that it gives is called.
func start(t *testing.T) (h *procfs.Holder, end func()) {
	t.Helper()
	c, err := Start("/proc/self/exe", beHolder, strconv.Itoa(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	r, err := requestFor(strconv.Itoa(os.Getpid()), "wait")
	if err != nil {
		t.Fatal(err)
	}
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Files.Out = out
	ended, done := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := c.Run(r, ended, Notes{})
		done <- err
	}()
	if _, err := in.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	h = procfs.NewHolder(c.PID)
	return h, func() {
		close(ended)
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = errors.Join(in.Close(), out.Close())
		_ = unix.Kill(c.PID, unix.SIGKILL)
	}
}

func dial(t *testing.T, h *procfs.Holder) *Client {
	t.Helper()
	c, err := Dial(h)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRun has clients of a holder run command lines: beside each other, to their ends, with their own output.
func TestRun(t *testing.T) {
	h, end := start(t)
	defer end()
	printed, status, _, err := asks(t, dial(t, h), nil, "hello")
	if want := fmt.Sprintf("hello from %d to %d\n", h.PID, os.Getpid()); err != nil || status != 7 || printed != want {
		t.Errorf("%q, status %d, %v; want %q", printed, status, err, want)
	}
	ended := make(chan struct{})
	close(ended)
	if printed, status, out, err := asks(t, dial(t, h), ended, "wait"); err != nil || status != 0 || !out || printed != "waiting\n" {
		t.Errorf("%q, status %d, out %t, %v", printed, status, out, err)
	}
	if _, _, _, err := asks(t, dial(t, h), nil, "busy"); !errors.Is(err, ErrEnding) {
		t.Errorf("%v, want %v", err, ErrEnding)
	}
}

// TestListener has the holder answer at a listener that its client has opened.
func TestListener(t *testing.T) {
	h, end := start(t)
	defer end()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r, err := requestFor(strconv.Itoa(os.Getpid()), "listen")
	if err == nil {
		r.HTTP = &HTTP{Token: "secret", Hosts: []string{"box"}}
		r.Files.Listener, err = l.File()
	}
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		status, err := dial(t, h).Run(r, nil, Notes{})
		if status != 0 {
			err = errors.Join(err, fmt.Errorf("status %d", status))
		}
		done <- err
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if want := fmt.Sprintf("%d secret [box]", h.PID); err != nil || string(b) != want {
		t.Errorf("%q, %v; want %q", b, err, want)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	r, err = requestFor(strconv.Itoa(os.Getpid()), "hello")
	if err != nil {
		t.Fatal(err)
	}
	r.HTTP = &HTTP{Token: "secret"}
	if _, err := dial(t, h).Run(r, nil, Notes{}); err == nil {
		t.Error("a request without the listener that it speaks of is taken")
	}
}

// TestEnds has a holder end, well and by a signal.
func TestEnds(t *testing.T) {
	c, err := Start("/proc/self/exe", beHolder, strconv.Itoa(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	if _, status, _, err := asks(t, c, nil, "end"); err != nil || status != 3 {
		t.Errorf("status %d, %v", status, err)
	}
	if err := Wait(c.PID); err != nil {
		t.Error(err)
	}
	if _, err := Dial(&procfs.Holder{PID: c.PID, Start: 1}); !errors.Is(err, ErrNone) {
		t.Errorf("%v, want %v", err, ErrNone)
	}
	if c, err = Start("/proc/self/exe", beHolder, strconv.Itoa(os.Getpid())); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := asks(t, c, nil, "die"); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("%v", err)
	}
}

// TestAdmitted asks as another user, without a proof, with that of another process, and of a socket that somebody else has given the holder's name.
func TestAdmitted(t *testing.T) {
	h, end := start(t)
	defer end()
	exe := t.TempDir() + "/client"
	b, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(exe, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	for dir := exe; dir != "/tmp" && dir != "/"; dir = dir[:strings.LastIndex(dir, "/")] {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	as := func(uid uint32, target int) string {
		cmd := exec.Command(exe, beClient, strconv.Itoa(h.PID), strconv.Itoa(target))
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		return fmt.Sprintf("%s%v", out, err)
	}
	if os.Getuid() != 0 {
		t.Fatal("run it as root: it starts a client of another user")
	}
	if got := as(0, os.Getpid()); !strings.Contains(got, "hello") || !strings.Contains(got, "<nil>") {
		t.Errorf("as root: %s", got)
	}
	if got := as(65534, os.Getpid()); !strings.Contains(got, "it serves user 0, and you are user 65534") {
		t.Errorf("as nobody: %s", got)
	}
	if got := as(0, h.PID); !strings.Contains(got, "you have not shown that you may trace it") {
		t.Errorf("with another proof: %s", got)
	}
	me := procfs.NewHolder(os.Getpid())
	l, err := net.ListenUnix("unix", address(h.PID, h.Start+1))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Dial(&procfs.Holder{PID: h.PID, Start: h.Start + 1}); !errors.Is(err, ErrNone) {
		t.Errorf("process %d has the name of process %d: %v, want %v", me.PID, h.PID, err, ErrNone)
	}
	other := exec.Command(exe, beOther, "-")
	other.Dir = "/"
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	in, bad := other.StdinPipe()
	out, bad2 := other.StdoutPipe()
	if err := errors.Join(bad, bad2, other.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(procfs.NewHolder(other.Process.Pid)); err == nil || !strings.Contains(err.Error(), "for user 65534, and you are user 0") {
		t.Errorf("root and a holder of user 65534: %v", err)
	}
	if err := errors.Join(in.Close(), other.Wait()); err != nil {
		t.Error(err)
	}
}
