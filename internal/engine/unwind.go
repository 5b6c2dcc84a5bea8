package engine

import (
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
	images map[*symbol.Image]native.UnwindObject // by link-time addresses; no Size: it has no code that calls
	list   uint64                                // where the list is; 0: there is none
	room   int                                   // objects that it has room for
	in     []native.UnwindObject                 // those that are in it
}

// update brings in the tables of what is mapped and has none yet, the stubs of trampolines too; no range: there are none. An
// error says that the walk ends in what has none.
func (u *unwindTables) update(space *symbol.Space, stubs interval.Range) error {
	var want []native.UnwindObject
	for _, m := range space.Modules() {
		o, err := u.image(m.Image)
		if err != nil {
			return err
		}
		if o.Size > 0 {
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
	if len(u.in)+len(fresh) > u.room || u.list == 0 {
		return u.anew(want)
	}
	return u.enter(fresh)
}

// image gives an image's tables, and brings them in first where they are not there.
func (u *unwindTables) image(im *symbol.Image) (native.UnwindObject, error) {
	if o, ok := u.images[im]; ok {
		return o, nil
	}
	var o native.UnwindObject
	var frames []symbol.Frame
	lo, hi := im.Frames(func(f symbol.Frame) { frames = append(frames, f) })
	if hi > lo {
		t := native.NewUnwindTable(hi-lo, func(add func(uint64, objfile.FrameRule)) {
			for _, f := range frames {
				add(f.Start-lo, f.Rule)
			}
		})
		at, err := u.t.MapTable(t.Bytes)
		if err != nil {
			return o, err
		}
		o = native.UnwindObject{Start: lo, Size: hi - lo, Index: at, Rules: at + uint64(t.Rules)}
	}
	u.images[im] = o
	return o, nil
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
		if err := u.t.WriteTable(u.list+native.UnwindEntryAt(len(u.in)), o.Append(nil)); err != nil {
			return err
		}
		u.in = append(u.in, o)
		if err := u.t.WriteTable(u.list, native.UnwindCount(len(u.in))); err != nil {
			return err
		}
	}
	return nil
}

// leastRoom is the number of objects that the first list has room for, at least.
const leastRoom = 64

// anew makes a list with room for twice as many objects as there are, without those that are gone. The one before stays: a thread
// may be reading it.
func (u *unwindTables) anew(want []native.UnwindObject) error {
	room := max(leastRoom, 2*len(want))
	at, err := u.t.NewTable(native.UnwindList(room))
	if err != nil {
		return err
	}
	u.list, u.room, u.in = at, room, nil
	if err := u.enter(want); err != nil {
		return err
	}
	return u.t.SetUnwind(at)
}
