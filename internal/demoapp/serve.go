package demoapp

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// maxCalls bounds what one command may ask for.
const maxCalls = 1 << 24

// threadName is what the program's threads are called (at most 15 bytes, prctl(2)).
const threadName = "kvserver"

// app is the program at work.
type app struct {
	gate   sync.RWMutex // held for reading while a request is under way
	paused bool
	wrong  atomic.Uint64
	failed atomic.Pointer[error]
}

// Serve is the program: it runs the server and its clients, reads commands from in until
// that ends, and answers on out.
func Serve(in io.Reader, out io.Writer) error {
	nameThreads()
	a := &app{}
	a.gate.Lock()
	a.paused = true
	for id := range Clients {
		if err := a.connect(id); err != nil {
			return fmt.Errorf("demo workload: %w", err)
		}
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		answer, err := a.command(lines.Text())
		if err != nil {
			return fmt.Errorf("demo workload: %q: %w", lines.Text(), err)
		}
		if err := json.NewEncoder(out).Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

// nameThreads gives the process and its threads their name; threads that come later
// inherit it. Where that is not possible they keep that of the command.
func nameThreads() {
	tasks, _ := filepath.Glob("/proc/self/task/*/comm")
	for _, t := range tasks {
		_ = os.WriteFile(t, []byte(threadName), 0)
	}
}

// connect starts a client and the thread that serves it, joined by a pair of sockets.
func (a *app) connect(id int) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	server, err1 := conn(fds[0])
	client, err2 := conn(fds[1])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	go a.serve(id, server)
	go a.client(id, client)
	return nil
}

func conn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	return net.FileConn(f)
}

// serve answers the requests of one client, on a thread of its own.
func (a *app) serve(id int, c net.Conn) {
	runtime.LockOSThread()
	requests := bufio.NewScanner(c)
	for requests.Scan() {
		if _, err := io.WriteString(c, handle(id, requests.Text())+"\n"); err != nil {
			a.fail(err)
			return
		}
	}
	a.fail(fmt.Errorf("client %d is gone: %w", id, requests.Err()))
}

// fail keeps the first error for the next command to tell.
func (a *app) fail(err error) { a.failed.CompareAndSwap(nil, &err) }

// command does one command.
func (a *app) command(line string) (any, error) {
	if err := a.failed.Load(); err != nil {
		return nil, *err
	}
	word, arg, _ := strings.Cut(line, " ")
	switch {
	case word == "pause" && !a.paused:
		a.gate.Lock()
		a.paused = true
		return a.counts(), nil
	case word == "resume" && a.paused:
		c := a.counts()
		a.paused = false
		a.gate.Unlock()
		return c, nil
	case word == "call":
		n, err := strconv.ParseUint(arg, 10, 64)
		if err != nil || n == 0 || n > maxCalls {
			return nil, fmt.Errorf("calls: give 1 to %d", maxCalls)
		}
		return call(n), nil
	}
	return nil, errors.New("not one of: pause, resume, call N; or not now")
}

func (a *app) counts() Counts {
	return Counts{Handle: handled.Load(), Get: looked.Load(), Wrong: a.wrong.Load()}
}

// stepped keeps what step returns, so that no call is left out.
var stepped uint64

// call measures n calls.
func call(n uint64) Cost {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	x := stepped
	start := time.Now()
	for i := range n {
		x = step(x, i, 3, 4)
	}
	ns := time.Since(start)
	stepped = x
	return Cost{Calls: n, Nanos: uint64(ns)}
}
