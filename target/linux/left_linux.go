package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Left is what a holder has in the kernel, or had left there.
type Left struct {
	Holder Holder
	Gone   bool // the holder has ended
	Mine   bool // it belongs to a process of the caller's pid namespace
	Probes int

	groups   []string // GROUP/NAME of each event, once
	instance bool
}

// Lefts finds all that tracers of this package have in the kernel, dead and alive.
func Lefts() ([]*Left, error) {
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	me, err := self()
	if err != nil {
		return nil, err
	}
	found := lefts{me: me}
	instances, err := os.ReadDir(filepath.Join(dir, "instances"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, in := range instances {
		if l := found.find(in.Name()); l != nil {
			l.instance = true
		}
	}
	text, err := read(dir, "kprobe_events")
	if err != nil {
		return nil, err
	}
	for _, e := range parseEvents(text) {
		if l := found.find(e.group); l != nil {
			l.Probes++
			if name := e.group + "/" + e.name; !slices.Contains(l.groups, name) {
				l.groups = append(l.groups, name)
			}
		}
	}
	return found.all, nil
}

// lefts collects what holders have.
type lefts struct {
	me  Holder
	all []*Left
}

// find gives what the holder has whose name begins an instance's or a group's; nil if the
// name is no holder's.
func (f *lefts) find(name string) *Left {
	h, ok := parseHolder(name)
	if !ok {
		return nil
	}
	for _, l := range f.all {
		if l.Holder == h {
			return l
		}
	}
	l := &Left{Holder: h, Gone: h.gone(f.me), Mine: h.NS == f.me.NS}
	f.all = append(f.all, l)
	return l
}

// Remove takes a holder's probes and its instance out of the kernel. What is in use by
// somebody else stays, and is told.
func (l *Left) Remove() error {
	dir, err := Dir()
	if err != nil {
		return err
	}
	var errs []error
	if l.instance {
		if err := unix.Rmdir(filepath.Join(dir, "instances", l.Holder.String())); err != nil {
			errs = append(errs, fmt.Errorf("instance %s stays: %w", l.Holder, err))
		}
	}
	for _, name := range l.groups {
		if err := write("-:"+name, dir, "kprobe_events"); err != nil {
			errs = append(errs, fmt.Errorf("event %s stays: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// List gives the lines of debugfs's kprobes/list that belong to probes of the engine's, of
// all tracers. A probe that is defined and not enabled has no line there.
func List() ([]string, error) {
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	file, err := debugfs("list")
	if err != nil {
		return nil, err
	}
	list, err1 := read(file)
	text, err2 := read(dir, "kprobe_events")
	syms, err3 := loadSymbols()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	var out []string
	standing, events := parseList(list), parseEvents(text)
	at := placesOf(events, syms)
	for _, e := range events {
		if _, ours := parseHolder(e.group); !ours {
			continue
		}
		if i := slices.IndexFunc(standing, func(p placed) bool { return p.stands(&e, at) }); i >= 0 {
			out = append(out, standing[i].line)
			standing = slices.Delete(standing, i, i+1)
		}
	}
	return out, nil
}
