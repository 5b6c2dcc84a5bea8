package tracefile

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/trace"
)

// Tree is the files of one instance. It may be used by several goroutines.
type Tree struct {
	in    *trace.Instance
	files map[string]*File
}

// File is a file or a directory. What it has no function for can not be done: see Handle.
type File struct {
	Mode fs.FileMode
	// entries lists a directory.
	entries func() ([]Entry, error)
	// read gives the whole text.
	read func() (string, error)
	// write takes what one write(2) gives it.
	write func(text string) error
	// truncate is what opening with O_TRUNC does; nil: nothing.
	truncate func() error
	// pipe: reading takes records out of the buffer.
	pipe bool
	// gone says of a file that has been opened whether the event that it is about has gone; nil: it stays.
	gone func() bool
}

// Entry is what a directory lists.
type Entry struct {
	Name string
	Dir  bool
}

// Modes.
const (
	readOnly  fs.FileMode = 0o440
	readWrite fs.FileMode = 0o640
	writeOnly fs.FileMode = 0o220
	topDir                = fs.ModeDir | 0o700
	eventDir              = fs.ModeDir | 0o755
)

// New makes the tree of an instance, which the caller closes.
func New(in *trace.Instance) *Tree {
	t := &Tree{in: in}
	t.files = t.fixed()
	return t
}

// fixed are the files that are always there.
func (t *Tree) fixed() map[string]*File {
	in := t.in
	return map[string]*File{
		"README":                     {Mode: readOnly, read: func() (string, error) { return readme, nil }},
		"available_events":           {Mode: readOnly, read: func() (string, error) { return lines(in.Events(false)), nil }},
		"available_filter_functions": {Mode: readOnly, read: text(in.WriteFunctions)},
		"available_tracers":          {Mode: readOnly, read: always("nop\n")},
		"current_tracer":             {Mode: readWrite, read: always("nop\n"), write: oneOf("nop")},
		"dynamic_events":             {Mode: readWrite, read: text(in.WriteDefinitions), write: asKernel(in.Write), truncate: func() error { return in.Replace("") }},
		"error_log":                  {Mode: readWrite, read: func() (string, error) { return in.ErrorLog(), nil }, write: ignored, truncate: nothing(in.ClearErrorLog)},
		"kprobe_events":              {Mode: readWrite, read: text(in.WriteDefinitions), write: asKernel(in.Write), truncate: func() error { return in.Replace("") }},
		"kprobe_profile":             {Mode: readOnly, read: text(in.WriteProfile)},
		"set_event":                  {Mode: readWrite, read: func() (string, error) { return lines(in.Events(true)), nil }, write: in.SetEvents, truncate: func() error { return in.Enable("", "", false) }},
		"trace":                      {Mode: readWrite, read: text(in.WriteTrace), write: ignored, truncate: nothing(in.Clear)},
		"trace_clock":                {Mode: readWrite, read: always("[mono]\n"), write: oneOf("mono")},
		"trace_pipe":                 {Mode: readOnly, pipe: true},
		"tracing_on":                 {Mode: readWrite, read: func() (string, error) { return digit(in.Tracing()), nil }, write: t.setTracing},
		"events/enable":              t.enable("", ""),
		"kprobes/list":               {Mode: 0o400, read: text(in.List)},
		"kprobes/enabled":            {Mode: 0o600, read: func() (string, error) { return digit(in.Core().Enabled()), nil }, write: t.setEnabled},
		"kprobes/blacklist":          {Mode: 0o400, read: text(in.Core().Blacklist)},
		// The sysctl debug.kprobes-optimization.
		"sys/debug/kprobes-optimization": {Mode: 0o644, read: func() (string, error) { return digit(in.Core().Optimization()), nil }, write: t.setOptimization},
	}
}

// Find finds the file of a path without a slash at its ends; "" is the top. ENOENT: there is none.
func (t *Tree) Find(name string) (*File, error) {
	if f := t.files[name]; f != nil {
		return f, nil
	}
	if rest, ok := strings.CutPrefix(name, "events/"); ok {
		return t.event(strings.Split(rest, "/"))
	}
	mode := topDir
	switch name {
	case "", "kprobes", "sys", "sys/debug":
	case "events":
		mode = eventDir
	default:
		return nil, noFile(name)
	}
	return &File{Mode: mode, entries: func() ([]Entry, error) { return t.list(name), nil }}, nil
}

func noFile(name string) error { return errno.Errorf(unix.ENOENT, "no file is called %q", name) }

// list lists a directory of the fixed files, by name.
func (t *Tree) list(dir string) (out []Entry) {
	add := func(e Entry) {
		if !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	for name := range t.files {
		if rest, ok := strings.CutPrefix(name, dir+"/"); ok || dir == "" {
			if dir == "" {
				rest = name
			}
			first, _, deeper := strings.Cut(rest, "/")
			add(Entry{Name: first, Dir: deeper})
		}
	}
	if dir == "events" {
		for _, g := range t.in.Groups() {
			add(Entry{Name: g, Dir: true})
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Walk calls f with the path of each file, directories first, until it gives an error.
func (t *Tree) Walk(dir string, f func(name string, file *File) error) error {
	d, err := t.Find(dir)
	if err != nil || d.entries == nil {
		return err
	}
	es, err := d.entries()
	if err != nil {
		return err
	}
	for _, e := range es {
		name := path.Join(dir, e.Name)
		file, err := t.Find(name)
		if err != nil {
			continue // it has just gone
		}
		if err := f(name, file); err != nil {
			return err
		}
		if err := t.Walk(name, f); err != nil {
			return err
		}
	}
	return nil
}

// text reads a file that is written into memory, not to a slow client, while a lock is held.
func text(f func(io.Writer) error) func() (string, error) {
	return func() (string, error) {
		var b bytes.Buffer
		err := f(&b)
		return b.String(), err
	}
}

func always(s string) func() (string, error) { return func() (string, error) { return s, nil } }

// ignored takes what is written, and does nothing with it.
func ignored(string) error { return nil }

// asKernel has refusals of definitions and filters answer to the error number that the kernel's file gives, and to no other.
func asKernel(write func(string) error) func(string) error {
	return func(text string) error {
		err := write(text)
		var r interface {
			error
			Errno() syscall.Errno
		}
		if errors.As(err, &r) {
			return &refusal{err: err, no: r.Errno()}
		}
		return err
	}
}

// refusal is an error with one error number, whatever caused it.
type refusal struct {
	err error
	no  syscall.Errno
}

func (r *refusal) Error() string { return r.err.Error() }

// Is says whether target is the error number.
func (r *refusal) Is(target error) bool { return target == r.no }

// As finds the error as the language has it.
func (r *refusal) As(target any) bool { return errors.As(r.err, target) }

// oneOf takes nothing but one of some words.
func oneOf(words ...string) func(string) error {
	return func(s string) error {
		if s = strings.TrimSpace(s); slices.Contains(words, s) {
			return nil
		}
		return errno.Errorf(unix.EINVAL, "%.40q: there is %s here", s, strings.Join(words, ", "))
	}
}

func nothing(f func()) func() error { return func() error { f(); return nil } }

func lines(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return strings.Join(s, "\n") + "\n"
}
