package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/holder"
	"kprobes.dev/kprobes/internal/modules"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// console is where a command line comes from and what it prints to: this process's own, or those of a process for which a
// holder runs it.
type console struct {
	args   []string
	stdout *os.File
	stderr *os.File
	table  *checked // stdout
	// What relative and absolute paths begin at; "": this process's own directory and root.
	dir, root string
	// host has the target, which other command lines use too; nil: this one opens its own.
	host *host
	of   *holder.Session // that asked for the command line; nil: this process was given it
	left chan struct{}   // closed when the command line is not in the target any more
	web  *web            // where it answers requests; nil: it does not
	// again: the target was given up before the command line came into it.
	again bool
}

// ownConsole is this process's.
func ownConsole(args []string) *console {
	return &console{args: args, stdout: os.Stdout, stderr: os.Stderr, table: stdout}
}

// path is how a path of the command line is opened here.
func (c *console) path(p string) string {
	switch {
	case c.of == nil || p == "":
		return p
	case filepath.IsAbs(p):
		return c.root + p
	}
	return filepath.Join(c.dir, p)
}

// guestSpec reads what --guest was given. What it says stays true when the command line's own files have been closed.
func (c *console) guestSpec(text string) (qemu.Spec, error) {
	dir := ""
	if c.of != nil {
		at, err := os.Readlink(c.dir)
		if err != nil {
			return qemu.Spec{}, err
		}
		dir = at
	}
	spec, err := qemu.ParseSpecAt(dir, text)
	if err != nil {
		return qemu.Spec{}, specError(err)
	}
	return spec, nil
}

// pathError has an error name a path as the command line does.
func (c *console) pathError(err error, path string) error {
	var at *fs.PathError
	if c.of != nil && errors.As(err, &at) && at.Path == c.path(path) {
		at.Path = path
	}
	return err
}

// mountPoint is a directory to mount at, as this process names it. What it mounts is seen in its own mount name space only.
func (c *console) mountPoint(dir string) (string, error) {
	if c.of == nil {
		return dir, nil
	}
	var ours, theirs unix.Stat_t
	err := errors.Join(unix.Stat("/proc/self/ns/mnt", &ours), unix.Stat(fmt.Sprintf("/proc/%d/ns/mnt", c.of.PID), &theirs))
	if err != nil {
		return "", err
	}
	if root, err := os.Readlink(c.root); err != nil || root != "/" || ours.Ino != theirs.Ino {
		return "", errors.Join(fmt.Errorf("process %d, which holds the target, is in another mount name space or root directory: end what uses the target, or mount from there", os.Getpid()), err)
	}
	if filepath.IsAbs(dir) {
		return dir, nil
	}
	at, err := os.Readlink(c.dir)
	return filepath.Join(at, dir), err
}

// host has the engine of one target, and those who use it: each command line is a user, with events of its own. The first one opens the
// target, and with the last one's end the host gives it up, and ends.
type host struct {
	done   chan struct{}
	stop   chan struct{} // closed when a signal asks for the end of all command lines
	opened chan struct{} // closed once base is there, or never will be

	mu       sync.Mutex // held while users come and go
	base     mountable
	mem      string // the file that a client must show open
	buffer   int
	text     string
	ending   bool // nobody can come any more
	sessions int
	users    int
	last     uint32 // the number that was given out last

	modulesMu sync.Mutex     // held while modules come and go; taken before the others
	modules   *loaded        // nil: there are none
	table     *modules.Table // of all that there were: what stands in the process for them writes to its log

	syncMu sync.Mutex // held while somebody follows what changes in the target
	pollMu sync.Mutex // held while records are read; taken after the others
	takers map[uint32]*user
}

// asked is what a command line asks of the target as a whole.
type asked struct {
	con    *console
	of     *subject
	buffer int    // bytes of the ring for each CPU; 0: the default
	text   string // a word of --text; "": the default
}

// user is a command line's part of a target that others use too.
type user struct {
	probed
	h    *host
	con  *console
	id   uint32
	take func(*hit.Hit)
	asks func(*hit.Hit)  // takes hits in place of take, while records are read for it; nil: it does not; of host.pollMu
	n    atomic.Int64    // hits that it was given
	lost map[loss]uint64 // records that Losses has not told of; of host.pollMu
	last bool            // nobody else was left when it ended
	// How its events were armed when they were taken out.
	tactics map[*kprobes.Event]string

	mu    sync.Mutex
	errs  []error // of changes in the target, not told yet
	ended bool
}

// loss is of what records were lost: on which CPU.
type loss struct {
	of  *event.Def
	cpu int
}

// loaded are the modules of a host's process. They are a user of it, until the last one is removed.
type loaded struct {
	*modules.Table
	u    *user
	stop chan struct{}
	done chan struct{} // closed when nobody follows the process for them any more
}

// web is where a command line answers requests, and whose.
type web struct {
	listener *net.TCPListener
	token    func() (string, error)
	hosts    []string
}
