package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
)

// checked is an output that remembers its first error: who prints a table line by line need
// not ask after each.
type checked struct {
	name string
	w    io.Writer
	mu   sync.Mutex
	err  error
}

// stdout is what the verbs print to. Its error is that of the command.
var stdout = &checked{name: "stdout", w: os.Stdout}

func (c *checked) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.w.Write(b)
	if err != nil {
		c.err = writeError(c.name, err)
	}
	return n, c.err
}

// Err gives the first error.
func (c *checked) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// writeError names an output that could not be written.
func writeError(name string, err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return fmt.Errorf("%s: %w", name, err)
}
