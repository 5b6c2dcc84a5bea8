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

// Tree is the files of one instance, and below instances those of its others. It may be used by several goroutines.
type Tree struct {
	in    *trace.Instance
	first bool // of the instance that has the others
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
	// mark takes what one write(2) of a thread gives it, or the first n bytes of that.
	mark func(tid int, text string) (n int, err error)
	// truncate is what opening with O_TRUNC does; nil: nothing.
	truncate func() error
	// closed is what happens when the file is closed; nil: nothing.
	closed func()
	// pipe: reading takes records out of the buffer.
	pipe func() *trace.Pipe
	// pages: pipe gives them in binary form, and never ends.
	pages bool
	// in is kept while the file is open.
	in *trace.Instance
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
	readOnly   fs.FileMode = 0o440
	readWrite  fs.FileMode = 0o640
	writeOnly  fs.FileMode = 0o220
	topDir                 = fs.ModeDir | 0o700
	eventDir               = fs.ModeDir | 0o755
	privateDir             = fs.ModeDir | 0o750
)

// New makes the tree of an instance, which the caller closes.
func New(in *trace.Instance) *Tree { return newTree(in, true) }

func newTree(in *trace.Instance, first bool) *Tree {
	t := &Tree{in: in, first: first}
	t.files = t.fixed()
	for name, f := range t.perCPU() {
		t.files[name] = f
	}
	if first {
		for name, f := range t.shared() {
			t.files[name] = f
		}
	}
	return t
}

// Find finds the file of a path without a slash at its ends; "" is the top. ENOENT: there is none.
func (t *Tree) Find(name string) (*File, error) {
	f, err := t.find(name)
	if err == nil && f.in == nil {
		f.in = t.in
	}
	return f, err
}

func (t *Tree) find(name string) (*File, error) {
	if f := t.files[name]; f != nil {
		file := *f
		return &file, nil
	}
	first, rest, deeper := strings.Cut(name, "/")
	switch {
	case first == "events" && deeper:
		if dir := t.dir(name); dir != nil {
			return dir, nil
		}
		return t.event(strings.Split(rest, "/"))
	case first == "instances" && t.first && deeper:
		return t.ofInstance(rest)
	case first == "options" && deeper:
		return t.option(rest)
	}
	if dir := t.dir(name); dir != nil {
		return dir, nil
	}
	return nil, noFile(name)
}

// dir is a directory of the fixed files; nil: it is none.
func (t *Tree) dir(name string) *File {
	mode := topDir
	switch name {
	case "", "kprobes", "sys", "sys/debug":
	case "events", "events/ftrace", "events/ftrace/print":
		mode = eventDir
	case "options", "per_cpu":
		mode = privateDir
	case "instances":
		if !t.first {
			return nil
		}
		mode = privateDir
	default:
		if !strings.HasPrefix(name, "per_cpu/") {
			return nil
		}
		mode = privateDir
	}
	if name != "events" && name != "instances" && len(t.list(name)) == 0 { // those two are there, and ask for what changes
		return nil
	}
	return &File{Mode: mode, entries: func() ([]Entry, error) { return t.list(name), nil }}
}

// ofInstance finds a file below instances: NAME or NAME/FILE.
func (t *Tree) ofInstance(name string) (*File, error) {
	first, rest, _ := strings.Cut(name, "/")
	in := t.in.Instance(first)
	if in == nil {
		return nil, noFile("instances/" + name)
	}
	f, err := newTree(in, false).Find(rest)
	if err == nil && rest == "" {
		f.Mode = privateDir
	}
	return f, err
}

// Mkdir makes an instance: a directory of instances. EPERM: no directory can be made anywhere else.
func (t *Tree) Mkdir(name string) error {
	dir, inst := path.Split(name)
	if dir != "instances/" || !t.first {
		return errno.Errorf(unix.EPERM, "%q: directories are made below instances", name)
	}
	_, err := t.in.NewInstance(inst)
	return err
}

// Rmdir removes an instance. EPERM: no other directory can be removed.
func (t *Tree) Rmdir(name string) error {
	dir, inst := path.Split(name)
	if dir != "instances/" || !t.first {
		return errno.Errorf(unix.EPERM, "%q: directories of instances are removed", name)
	}
	return t.in.RemoveInstance(inst)
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
	switch dir {
	case "":
		add(Entry{Name: "options", Dir: true})
		if t.first {
			add(Entry{Name: "instances", Dir: true})
		}
	case "events":
		for _, g := range t.in.Groups() {
			add(Entry{Name: g, Dir: true})
		}
	case "instances":
		for _, name := range t.in.Instances() {
			add(Entry{Name: name, Dir: true})
		}
	case "options":
		for _, o := range t.in.Options() {
			if t.in.HasOptionFile(o) {
				add(Entry{Name: string(o)})
			}
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
