package tracefile

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// event finds what lies below events: GRP, GRP/FILE, GRP/EVENT, GRP/EVENT/FILE.
func (t *Tree) event(part []string) (*File, error) {
	group := part[0]
	names, err := t.in.Names(group)
	if err != nil || slices.Contains(part, "") {
		return nil, noFile("events/" + strings.Join(part, "/"))
	}
	if len(part) == 1 {
		return &File{Mode: eventDir, entries: func() ([]Entry, error) {
			out := []Entry{{Name: "enable"}, {Name: "filter"}}
			for _, n := range names {
				out = append(out, Entry{Name: n, Dir: true})
			}
			return out, nil
		}}, nil
	}
	name := part[1]
	if len(part) == 2 {
		if _, err := t.in.ID(group, name); err == nil {
			return &File{Mode: eventDir, entries: func() ([]Entry, error) { return t.eventFiles(), nil }}, nil
		}
		switch name {
		case "enable":
			return t.enableGroup(group), nil
		case "filter":
			f := t.filter(group, "")
			f.gone = func() bool { return t.noGroup(group) }
			return f, nil
		}
	}
	if id, err := t.in.ID(group, name); err == nil && len(part) == 3 {
		if f := t.eventFile(group, name, part[2]); f != nil {
			f.gone = func() bool { // also where another event has its name now
				now, err := t.in.ID(group, name)
				return err != nil || now != id
			}
			return f, nil
		}
	}
	return nil, noFile("events/" + strings.Join(part, "/"))
}

// eventFile is a file of an event; nil: it has none of this name.
func (t *Tree) eventFile(group, name, file string) *File {
	switch file {
	case "enable":
		return t.enable(group, name)
	case "filter":
		return t.filter(group, name)
	case "format":
		return &File{Mode: readOnly, read: func() (string, error) { return t.in.Format(group, name) }}
	case "hist":
		return &File{Mode: readOnly, read: text(func(w io.Writer) error { return t.in.WriteHist(w, group, name) })}
	case "trigger":
		return &File{
			Mode:     readWrite,
			read:     func() (string, error) { return t.in.Triggers(group, name) },
			write:    asKernel(func(text string) error { return t.in.WriteTrigger(group, name, text) }),
			truncate: func() error { return t.in.ClearTriggers(group, name) },
		}
	case "id":
		return &File{Mode: readOnly, read: func() (string, error) {
			id, err := t.in.ID(group, name)
			return fmt.Sprintln(id), err
		}}
	}
	return nil
}

// eventFiles are the files of an event.
func (*Tree) eventFiles() []Entry {
	return []Entry{{Name: "enable"}, {Name: "filter"}, {Name: "format"}, {Name: "hist"}, {Name: "id"}, {Name: "trigger"}}
}

// enable is the switch of an event, of a group or, without names, of all events.
func (t *Tree) enable(group, name string) *File {
	return &File{
		Mode: readWrite,
		read: func() (string, error) {
			s, err := t.in.Enabled(group, name)
			return s + "\n", err
		},
		write: func(text string) error {
			on, err := flag(text)
			if err != nil {
				return err
			}
			return t.in.Enable(group, name, on)
		},
	}
}

// enableGroup is the switch of a group. Who has it open may find the group gone: it has no events to enable then, and ? is read
// (system_enable_read, Linux 6.18).
func (t *Tree) enableGroup(group string) *File {
	f := t.enable(group, "")
	read, write := f.read, f.write
	f.read = func() (string, error) {
		s, err := read()
		if err != nil && t.noGroup(group) {
			return "?\n", nil
		}
		return s, err
	}
	f.write = func(text string) error {
		err := write(text)
		if err != nil && t.noGroup(group) {
			return errno.Errorf(unix.EINVAL, "all events of group %s have been deleted", group)
		}
		return err
	}
	return f
}

// noGroup says whether a group has no events any more.
func (t *Tree) noGroup(group string) bool {
	_, err := t.in.Names(group)
	return err != nil
}

func (t *Tree) filter(group, name string) *File {
	return &File{
		Mode:  readWrite,
		read:  func() (string, error) { return t.in.Filter(group, name) },
		write: asKernel(func(text string) error { return t.in.SetFilter(group, name, text) }),
	}
}

// flag reads what is written to a switch: a number that is 0 or 1.
func flag(text string) (bool, error) {
	n, err := number(text)
	if err != nil || n > 1 {
		return false, errno.Errorf(unix.EINVAL, "%.40q: 0 or 1 is taken", text)
	}
	return n == 1, nil
}

func digit(on bool) string {
	if on {
		return "1\n"
	}
	return "0\n"
}
