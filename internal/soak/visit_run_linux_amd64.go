package soak

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// running is a Program that runs.
type running struct {
	p    *Program
	c    *Command
	pid  int           // of the program; of kprobe, if that has started it
	over chan struct{} // closed when it has ended
	out  *outcomeOf
	err  error
}

// outcomeOf is what a run of a Program has given.
type outcomeOf struct {
	stdout string // of a server, what its clients say
	file   string // Command.Out
	status string
	stderr string // not compared
}

// differs says how an outcome is not the one that a run without probes has given.
func (o *outcomeOf) differs(want *outcomeOf) error {
	switch {
	case o.status != want.status:
		return fmt.Errorf("it ended with %s, without probes with %s; standard error:\n%s", o.status, want.status, last(o.stderr, 3000))
	case o.stdout != want.stdout:
		return fmt.Errorf("its output is wrong: %s", firstDifference(o.stdout, want.stdout))
	case o.file != want.file:
		return fmt.Errorf("the file that it writes is wrong: %s", firstDifference(o.file, want.file))
	}
	if died := deaths.FindString(o.stderr); died != "" {
		return fmt.Errorf("a process of it died: %s", died)
	}
	return nil
}

// deaths are what PostgreSQL and nginx say of a process of theirs that a signal has ended.
var deaths = regexp.MustCompile(`(?m)^.*(was terminated by signal|exited on signal).*$`)

func last(s string, n int) string { return s[max(0, len(s)-n):] }

// start runs a program, behind a prefix such as kprobe's own arguments; kprobe runs as the
// program's user then.
func (p *Program) start(c *Command, prefix ...string) (*running, error) {
	args := append(prefix, c.Args...)
	r := &running{p: p, c: c, over: make(chan struct{}), out: &outcomeOf{}}
	cmd := c.command(args...)
	files := [2]*os.File{}
	for i, name := range []string{"stdout", "stderr"} {
		f, err := os.Create(filepath.Join(c.Dir, name))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		files[i] = f
	}
	cmd.Stdout, cmd.Stderr = files[0], files[1]
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r.pid = cmd.Process.Pid
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its status is told
		close(ended)
	}()
	go func() {
		defer close(r.over)
		if p.Serve != nil {
			r.out.stdout, r.err = p.Serve(c)
			if err := p.Stop(c, r.server()); err != nil && !errors.Is(err, syscall.ESRCH) {
				r.err = errors.Join(r.err, err)
			}
		}
		<-ended
		if !late.Stop() {
			r.err = errors.Join(r.err, fmt.Errorf("it did not end within %v", patience))
		}
		r.out.status = cmd.ProcessState.String()
		r.read()
	}()
	return r, nil
}

// read takes up what the program has written.
func (r *running) read() {
	for name, to := range map[string]*string{"stdout": &r.out.stdout, "stderr": &r.out.stderr, r.c.Out: &r.out.file} {
		if name == "" || name == "stdout" && r.p.Serve != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(r.c.Dir, name))
		r.err = errors.Join(r.err, err)
		*to = string(b)
	}
}

// wait waits for the end.
func (r *running) wait() (*outcomeOf, error) {
	<-r.over
	return r.out, r.err
}

func (r *running) ended() bool {
	select {
	case <-r.over:
		return true
	default:
		return false
	}
}

// server is the process of the program itself, also where kprobe is its parent.
func (r *running) server() int {
	for _, pid := range family(r.pid) {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && exe == r.c.Args[0] {
			return pid
		}
	}
	return r.pid
}

// processes are the program and those that it has started, the program first.
func (r *running) processes() []int { return family(r.pid) }

// family is a process and its descendants.
func family(pid int) []int {
	out := []int{pid}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, t := range tasks {
		b, _ := os.ReadFile(t) // it may have ended
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, family(n)...)
			}
		}
	}
	return out
}
