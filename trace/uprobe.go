package trace

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
)

var uprobeLines = language{Parser: event.Parser{Uprobes: true}, has: func(p *probe) bool { return p.def.Uprobe }}

// WriteUprobe is Write for uprobe_events: definitions p|r[:[GRP/]EVENT] PATH:OFFSET[(COUNTER)] [FETCHARGS], where PATH is that of a file
// in the target's file system. Errors are those of Write; EOPNOTSUPP: the target is a kernel.
func (in *Instance) WriteUprobe(commands string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.write(commands, uprobeLines)
}

// ClearUprobe is what opening uprobe_events with O_TRUNC does: all events that it lists are deleted. EBUSY: one is enabled, and none is
// deleted.
func (in *Instance) ClearUprobe() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.deleteAll(uprobeLines)
}

// WriteUprobes writes uprobe_events: the definitions in the order of their making.
func (in *Instance) WriteUprobes(w io.Writer) error { return in.writeListed(w, uprobeLines) }

// WriteUprobeProfile writes uprobe_profile: the hits of each probe since it was defined.
func (in *Instance) WriteUprobeProfile(w io.Writer) error {
	in.drain()
	in.mu.Lock()
	defer in.mu.Unlock()
	var b strings.Builder
	for _, p := range in.listed(uprobeLines) {
		fmt.Fprintf(&b, "  %s %-44s %15d\n", p.def.Place.Path, p.name, in.counts(p).Hits)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// aim gives a definition of uprobe_events the path under which its file is mapped; others stay as they are.
func (in *Instance) aim(d *event.Def) (*event.Def, error) {
	if !d.Uprobe {
		return d, nil
	}
	file, err := in.core.Target().Capabilities().Finder.File(d.Place.Path)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return nil, d.Refuse(event.NoProgram, d.Place.Pos, "", nil)
	case errors.Is(err, unix.EINVAL):
		return nil, d.Refuse(event.NoRegularFile, d.Place.Pos, "", err)
	case err != nil:
		return nil, d.Refuse(event.FileNotFound, d.Place.Pos, "", err)
	}
	aimed := *d
	aimed.Place.Path = file
	return &aimed, nil
}

// noCounters refuses probes whose counters would have to be counted up.
func noCounters(ps []*probe) error {
	for _, p := range ps {
		if p.def.Counter != 0 {
			return errno.Errorf(unix.EOPNOTSUPP, "event %s/%s: the counter at 0x%x of %s is not counted up here: leave it out where the code at the place runs without",
				p.group, p.name, p.def.Counter, p.def.Place.Path)
		}
	}
	return nil
}
