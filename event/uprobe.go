package event

import (
	"fmt"
	"strings"
)

// UprobeGroup is the group of Def.Uprobe.
const UprobeGroup = "uprobes"

// IsUprobe says whether a line of dynamic_events is a definition in the language of uprobe_events: p or r at PATH:OFFSET.
func IsUprobe(line string) bool {
	_, words := split(line)
	if len(words) < 2 || words[0].s[0] != 'p' && words[0].s[0] != 'r' {
		return false
	}
	file, at := fileAndOffset(words[1])
	return file.s != "" && !isSource(file.unquoted()) && at.s != ""
}

// fileAndOffset parts PATH:OFFSET at the last colon; both are empty where there is none with a path before it and a digit behind.
func fileAndOffset(w text) (file, at text) {
	i := w.lastIndex(":")
	if i < 0 || i+1 == len(w.s) || !isDigit(w.s[i+1]) || !strings.Contains(w.s, "/") {
		return file, at
	}
	return w.until(i), w.from(i + 1)
}

// uprobeForms says what uprobe_events takes.
const uprobeForms = "here stand p[:[GRP/]EVENT] PATH:OFFSET, r[:[GRP/]EVENT] PATH:OFFSET and -:[GRP/]EVENT"

// parseUprobe reads a definition of uprobe_events. It finds errors in the kernel's order: kind, file, counter, suffix, offset, name,
// arguments (__trace_uprobe_create, Linux 6.18).
func (d *Def) parseUprobe(words []text) error {
	d.Uprobe = true
	if c := words[0].s[0]; c != 'p' && c != 'r' && c != '-' {
		return d.Refuse(BadCommand, 0, uprobeForms, nil)
	}
	if words[0].s[0] == '-' {
		name, err := d.parseKind(words[0])
		if err != nil {
			return err
		}
		return d.parseDelete(name, words[1:])
	}
	if words[0].s[0] == 'r' {
		d.Kind = Return
	}
	if len(words) < 2 {
		return d.Refuse(NoPlace, len(d.Text)+1, "give the path of a file, and an offset in it: PATH:OFFSET", nil)
	}
	file, _ := fileAndOffset(words[1])
	if file.s == "" {
		return d.Refuse(BadCommand, 0, uprobeForms, nil)
	}
	if err := d.uprobePlace(words[1]); err != nil {
		return err
	}
	if err := d.uprobeName(words[0]); err != nil {
		return err
	}
	return d.parseArgs(words[2:])
}

// uprobeName reads what stands behind p or r. An event without a name is called after its place, as the kernel calls it: its name is that
// of another one at the same place.
func (d *Def) uprobeName(w text) error {
	if len(w.s) > 1 {
		if w.s[1] != ':' {
			return d.Refuse(BadCommand, 1, "the name of the event follows a colon: "+w.s[:1]+":EVENT", nil)
		}
		if err := d.parseName(w.from(2)); err != nil {
			return err
		}
	}
	if d.Group == "" {
		d.Group = UprobeGroup
	}
	if d.Name == "" {
		d.Name = cut(d.BaseName(d.Place), MaxName)
	}
	return nil
}

// uprobePlace reads PATH:OFFSET[%return][(COUNTER)].
func (d *Def) uprobePlace(w text) error {
	file, at := fileAndOffset(w)
	d.Place = Place{Kind: PlaceFile, Path: file.unquoted(), Pos: w.pos}
	if i := at.index("("); i >= 0 {
		counter := at.from(i + 1)
		end := counter.index(")")
		if end < 0 {
			return d.Refuse(RefcntOpenBrace, at.end(), "", nil)
		}
		if end+1 < len(counter.s) {
			return d.Refuse(BadRefcntSuffix, counter.pos+end+1, "", nil)
		}
		n, ok := parseUint(counter.s[:end])
		if !ok {
			return d.Refuse(BadRefcnt, counter.pos, "in the parentheses stands the offset of the counter in the file", nil)
		}
		d.Counter, at = n, at.until(i)
	}
	if i := at.index("%"); i >= 0 {
		if at.s[i:] != returnSuffix {
			return d.Refuse(BadAddrSuffix, at.pos+i, "the only suffix is %return", nil)
		}
		d.Place.Return, d.Kind, at = true, Return, at.until(i)
	}
	n, ok := parseUint(at.s)
	if !ok {
		return d.Refuse(BadUprobeOffs, at.pos, "behind PATH: stands a number, the offset in the file", nil)
	}
	d.Place.Addr = n
	return nil
}

// uprobeText is the place as uprobe_events lists it.
func (d *Def) uprobeText() string {
	s := left(d.Place.Path) + fmt.Sprintf("0x%016x", d.Place.Addr)
	if d.Counter != 0 {
		s += fmt.Sprintf("(0x%x)", d.Counter)
	}
	return s
}

// uprobeAt says whether a deletion's word names the place.
func (d *Def) uprobeAt(w text) bool {
	o := Def{}
	file, _ := fileAndOffset(w)
	return file.s != "" && o.uprobePlace(w) == nil && o.Place.same(d.Place) && o.Counter == d.Counter
}
