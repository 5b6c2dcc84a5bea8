package engine

import (
	"errors"
	"fmt"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/arch/objfile"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// unwindTables are the tables by which generated code walks over a target's stacks. Entries of the list are never changed once they
// are in it: a thread may be reading them. An object that is gone keeps its entry, and newer ones come first.
type unwindTables struct {
	t      target.Unwinder
	images map[*symbol.Image]native.UnwindObject // by link-time addresses; no Size: it has none
	list   uint64                                // where the list is that the target's word leads to; 0: there is none
	room   int                                   // objects that it has room for
	in     []native.UnwindObject                 // those that are in it
	owed   bool                                  // the last update did not bring all in
}

// maxUnwind is the most code of an object, from the first byte to the last, that gets a table: offsets in it have 32 bits.
const maxUnwind = 2 << 30

// maxRules is the most rules of an object.
const maxRules = 1 << 24

// update brings in the tables of what is mapped and has none yet, all of them in one stop, and those of trampolines' stubs; no
// range: there are none. An error tells of objects in which the walk will end.
func (u *unwindTables) update(space *symbol.Space, stubs interval.Range) error {
	mods := space.Modules()
	err := u.mapTables(mods)
	var want []native.UnwindObject
	for _, m := range mods {
		if o := u.images[m.Image]; o.Size > 0 {
			o.Start = m.Runtime(o.Start)
			want = append(want, o)
		}
	}
	if stubs.Size() > 0 {
		want = append(want, native.UnwindObject{Start: stubs.Start, Size: stubs.Size()})
	}
	var fresh []native.UnwindObject
	for _, o := range want {
		if !u.has(o) {
			fresh = append(fresh, o)
		}
	}
	// A thread may be reading the count: it must never look like another one, so only its lowest byte changes.
	if n := len(u.in); u.list == 0 || n+len(fresh) > u.room || n>>8 != (n+len(fresh))>>8 {
		return errors.Join(err, u.anew(want))
	}
	return errors.Join(err, u.enter(fresh))
}

// mapTables makes the tables of images that have none, and maps them behind one another. An image whose table can not be made is not
// tried again.
func (u *unwindTables) mapTables(mods []*symbol.Module) error {
	type made struct {
		im    *symbol.Image
		o     native.UnwindObject
		at    int // in b
		rules int
	}
	var b []byte
	var fresh []made
	var errs []error
	for _, m := range mods {
		if _, ok := u.images[m.Image]; ok {
			continue
		}
		u.images[m.Image] = native.UnwindObject{}
		var frames []symbol.Frame
		lo, hi := m.Image.Frames(func(f symbol.Frame) {
			if len(frames) <= maxRules {
				frames = append(frames, f)
			}
		})
		if hi-lo > maxUnwind || len(frames) > maxRules {
			errs = append(errs, fmt.Errorf("%s: code of %d bytes with %d rules or more: more than a table is made for", m.Name, hi-lo, len(frames)))
			continue
		}
		if hi == lo {
			continue
		}
		t := native.NewUnwindTable(hi-lo, func(add func(uint64, objfile.FrameRule)) {
			for _, f := range frames {
				add(f.Start-lo, f.Rule)
			}
		})
		fresh = append(fresh, made{m.Image, native.UnwindObject{Start: lo, Size: hi - lo}, len(b), t.Rules})
		b = append(b, t.Bytes...)
	}
	if len(fresh) == 0 {
		return errors.Join(errs...)
	}
	at, err := u.t.MapTable(b)
	for _, m := range fresh {
		if err != nil {
			delete(u.images, m.im) // the next time there may be room
			continue
		}
		m.o.Index = at + uint64(m.at)
		m.o.Rules = m.o.Index + uint64(m.rules)
		u.images[m.im] = m.o
	}
	return errors.Join(append(errs, err)...)
}

// has says whether the walk finds an object where it is: nothing newer lies over it.
func (u *unwindTables) has(o native.UnwindObject) bool {
	for i := len(u.in) - 1; i >= 0; i-- {
		if e := u.in[i]; e.Start < o.Start+o.Size && o.Start < e.Start+e.Size {
			return e == o
		}
	}
	return false
}

// enter adds entries.
func (u *unwindTables) enter(fresh []native.UnwindObject) error {
	for _, o := range fresh {
		if err := u.write(u.list, len(u.in), o); err != nil {
			return err
		}
		u.in = append(u.in, o)
	}
	return nil
}

// write puts the nth object into a list.
func (u *unwindTables) write(list uint64, n int, o native.UnwindObject) error {
	err := u.t.WriteTable(list+native.UnwindEntryAt(n), o.Append(nil))
	if err == nil {
		err = u.t.WriteTable(list, native.UnwindCount(n+1))
	}
	return err
}

// leastRoom is the number of objects that the first list has room for, at least.
const leastRoom = 64

// anew makes a list with room for twice as many objects as there are, without those that are gone. The one before stays: a thread
// may be reading it.
func (u *unwindTables) anew(want []native.UnwindObject) error {
	room := max(leastRoom, 2*len(want))
	list, err := u.t.NewTable(native.UnwindList(room))
	if err != nil {
		return err
	}
	for i, o := range want {
		if err := u.write(list, i, o); err != nil {
			return err
		}
	}
	if err := u.t.SetUnwind(list); err != nil {
		return err
	}
	u.list, u.room, u.in = list, room, want
	return nil
}
