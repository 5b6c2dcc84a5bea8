package main

import (
	"os"
	"path/filepath"

	"kprobes.dev/kprobes/internal/holder"
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
