package linux

import (
	"fmt"
	"slices"
	"strings"

	"kprobes.dev/kprobes/event"
)

// foreign refuses what the kernel's language has not.
func foreign(d *event.Def) error {
	word := placeWord(d)
	switch {
	case d.Kind == event.Delete:
		return d.Refuse(event.BadCommand, 0, "a definition that deletes defines no probe", nil)
	case d.Function, d.Kind == event.Watch:
		return d.Refuse(event.BadCommand, 0, "kprobe_events, the kernel's file, takes p and r; f and w are for processes and guests", nil)
	case d.Place.Kind == event.PlaceFile || d.Place.Kind == event.PlaceLine:
		return d.Refuse(event.BadProbeAddr, d.Place.Pos, "a place in a file belongs to a program (-p): the kernel takes FUNCTION, FUNCTION+OFFSET and an address", nil)
	case strings.ContainsAny(word, `"'`):
		return d.Refuse(event.BadProbeAddr, d.Place.Pos, "the kernel's names need no quotes, and it takes none", nil)
	}
	for i := range d.Args {
		a := &d.Args[i]
		if a.Type.Kind == event.GoString {
			return d.Refuse(event.BadType, a.Type.Pos, "gostring is an extension for programs (-p): the kernel has no such type, it reads C strings, +0(ARG):string", nil)
		}
	}
	return nil
}

// placeWord is the place as it is written.
func placeWord(d *event.Def) string {
	w, _, _ := strings.Cut(d.Text[min(d.Place.Pos, len(d.Text)):], " ")
	return w
}

// commArg is the argument that each definition gets: the name of the thread that hit, for
// TASK. Nobody else knows it when the record is read and the thread has ended, or executes
// another program.
const commArg = "__comm"

// command is the definition as the kernel gets it: under our group, with a name, and with
// commArg if there is room. All behind the first word stays as it is, for the kernel to
// judge.
func command(d *event.Def, group, name string) string {
	_, rest, _ := strings.Cut(d.Text, " ")
	kind := d.Text[:1]
	if kind == "r" && d.MaxActive > 0 {
		kind += fmt.Sprint(d.MaxActive)
	}
	cmd := fmt.Sprintf("%s:%s/%s %s", kind, group, name, rest)
	taken := slices.ContainsFunc(d.Args, func(a event.Arg) bool { return a.Name == commArg })
	if len(d.Args) < event.MaxArgs && !taken {
		cmd += " " + commArg + "=$comm"
	}
	return cmd
}

// column finds the byte of the definition that is meant by one of the command.
func column(d *event.Def, cmd string, pos int) int {
	ours, _, _ := strings.Cut(cmd, " ")
	theirs, _, _ := strings.Cut(d.Text, " ")
	if pos >= len(ours) {
		return min(pos-len(ours)+len(theirs), len(d.Text)+1)
	}
	if colon := strings.IndexByte(theirs, ':'); colon >= 0 && pos > strings.IndexByte(ours, ':') {
		return colon + 1
	}
	return min(pos, len(theirs)-1)
}

// expand makes a definition for each function that a pattern matches.
func expand(d *event.Def, funcs []Func) ([]*event.Def, error) {
	word := placeWord(d)
	end := d.Place.Pos + len(word)
	var out []*event.Def
	for _, f := range funcs {
		if d.Place.Module != f.Module {
			continue
		}
		if ok, err := match(d.Place.Symbol, f.Name); err != nil {
			return nil, d.Refuse(event.BadProbeAddr, d.Place.Pos, "", err)
		} else if !ok {
			continue
		}
		one := *d
		one.Name, one.Place.Glob, one.Place.Symbol = "", false, f.Name
		place := f.Name
		if f.Module != "" {
			place = f.Module + ":" + place
		}
		if d.Place.Return {
			place += "%return"
		}
		one.Text = d.Text[:d.Place.Pos] + place + d.Text[end:]
		out = append(out, &one)
	}
	if len(out) == 0 {
		return nil, d.Refuse(event.BadProbeAddr, d.Place.Pos, fmt.Sprintf("no function that can be probed matches %q", d.Place.Symbol), nil)
	}
	return out, nil
}
