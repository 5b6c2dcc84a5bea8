package debughttp

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/trace"
)

// files are those that are always there, by path.
var files = map[string]*file{
	"":               {read: index},
	"kprobe_events":  {read: buffered((*trace.Instance).WriteDefinitions), write: define},
	"kprobe_profile": {read: buffered((*trace.Instance).WriteProfile)},
	"trace":          {read: snapshot, write: truncated((*trace.Instance).Clear)},
	"trace_pipe":     {read: pipe},
	"tracing_on":     {read: tracingOn, write: setTracing},
	"error_log":      {read: errorLog, write: truncated((*trace.Instance).ClearErrorLog)},
	"list":           {read: list},
	"blacklist":      {read: blacklist},
	"enabled":        {read: enabled, write: setEnabled},
	"optimization":   {read: optimization, write: setOptimization},
	"events":         {read: groups},
	"events/enable":  {read: eventEnabled("", ""), write: enable("", "")},
}

// lookup finds the file of a path, which is relative to Prefix.
func lookup(path string) (*file, error) {
	if f := files[strings.TrimSuffix(path, "/")]; f != nil {
		return f, nil
	}
	if rest, ok := strings.CutPrefix(path, "events/"); ok {
		if f := eventFile(strings.TrimSuffix(rest, "/")); f != nil {
			return f, nil
		}
	}
	return nil, refuse(http.StatusNotFound, "no file is called %q: GET %s tells which there are", path, Prefix)
}

// eventFile finds a file below events: GRP, GRP/enable, GRP/EVENT, GRP/EVENT/FILE.
func eventFile(path string) *file {
	part := strings.Split(path, "/")
	group := part[0]
	switch {
	case group == "":
	case len(part) == 1:
		return &file{read: names(group)}
	case len(part) == 2 && part[1] == "enable":
		return &file{read: eventEnabled(group, ""), write: enable(group, "")}
	case len(part) == 2 && part[1] != "":
		return &file{read: eventFiles(group, part[1])}
	case len(part) == 3 && part[1] != "":
		switch part[2] {
		case "enable":
			return &file{read: eventEnabled(group, part[1]), write: enable(group, part[1])}
		case "id":
			return &file{read: eventID(group, part[1])}
		case "format":
			return &file{read: format(group, part[1])}
		}
	}
	return nil
}

// buffered reads a file that is written while a lock is held: not by a slow client.
func buffered(f func(*trace.Instance, io.Writer) error) func(*call) error {
	return func(c *call) error {
		var b bytes.Buffer
		if err := f(c.in, &b); err != nil {
			return err
		}
		return c.text(b.String())
	}
}

// truncated is a file that is emptied by truncation, and takes no text (trace, error_log).
func truncated(f func(*trace.Instance)) func(*call) error {
	return func(c *call) error {
		if c.truncate {
			f(c.in)
		}
		return nil
	}
}

func define(c *call) error {
	if c.truncate {
		return c.in.Replace(c.body)
	}
	return c.in.Write(c.body)
}

func snapshot(c *call) error {
	_ = c.in.WriteTrace(c.w) // the client may be gone
	return nil
}

// pipe streams until the client goes.
func pipe(c *call) error {
	rc := http.NewResponseController(c.w)
	_ = rc.SetWriteDeadline(time.Time{}) // a server without deadlines needs none lifted
	if err := rc.Flush(); err != nil {
		return fmt.Errorf("the server can not stream: %w", err)
	}
	_ = c.in.WritePipe(c.r.Context(), c.w, rc.Flush) // ends when the client goes
	return nil
}

func errorLog(c *call) error { return c.text(c.in.ErrorLog()) }

func tracingOn(c *call) error { return c.text(digit(c.in.Tracing())) }

func setTracing(c *call) error {
	on, err := c.flag()
	if err == nil {
		c.in.SetTracing(on)
	}
	return err
}

func groups(c *call) error { return c.text(lines(append(c.in.Groups(), "enable"))) }

func names(group string) func(*call) error {
	return func(c *call) error {
		names, err := c.in.Names(group)
		if err != nil {
			return err
		}
		return c.text(lines(append(names, "enable")))
	}
}

func eventFiles(group, name string) func(*call) error {
	return func(c *call) error {
		if _, err := c.in.ID(group, name); err != nil {
			return err
		}
		return c.text(lines([]string{"enable", "format", "id"}))
	}
}

func eventEnabled(group, name string) func(*call) error {
	return func(c *call) error {
		s, err := c.in.Enabled(group, name)
		if err != nil {
			return err
		}
		return c.text(s + "\n")
	}
}

func enable(group, name string) func(*call) error {
	return func(c *call) error {
		on, err := c.flag()
		if err != nil {
			return err
		}
		return c.in.Enable(group, name, on)
	}
}

func eventID(group, name string) func(*call) error {
	return func(c *call) error {
		id, err := c.in.ID(group, name)
		if err != nil {
			return err
		}
		return c.text(fmt.Sprintln(id))
	}
}

func format(group, name string) func(*call) error {
	return func(c *call) error {
		s, err := c.in.Format(group, name)
		if err != nil {
			return err
		}
		return c.text(s)
	}
}

// flag reads what is written to a switch: 0 or 1.
func (c *call) flag() (bool, error) {
	switch strings.TrimSpace(c.body) {
	case "0":
		return false, nil
	case "1":
		return true, nil
	}
	return false, errno.Errorf(unix.EINVAL, "%.40q: 0 or 1 is taken", c.body)
}

func digit(on bool) string {
	if on {
		return "1\n"
	}
	return "0\n"
}

func lines(s []string) string { return strings.Join(s, "\n") + "\n" }
