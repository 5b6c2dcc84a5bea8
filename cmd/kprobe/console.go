package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/holder"
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
