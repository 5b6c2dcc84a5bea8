package symbol

import (
	"slices"
	"strings"
	"syscall"

	"kprobes.dev/kprobes/internal/errno"
)

// Called says why it is not known that a function is entered as by a call, with its return
// address on top of the stack; nil: its frame description says so.
func (im *Image) Called(fn *Func) error {
	d, ok := im.table().fdeAt(fn.Addr)
	switch {
	case !ok || d.start != fn.Addr:
		return errno.Errorf(syscall.EOPNOTSUPP, "no entry of .eh_frame begins at the function, which would tell that its return address is on top of the stack")
	case d.inner || d.odd:
		return errno.Errorf(syscall.EOPNOTSUPP, "by its entry of .eh_frame its return address is not on top of the stack")
	}
	return nil
}

// Unwinder is code that walks over stacks by unwind tables.
type Unwinder struct {
	// FindFDE is libgcc's _Unwind_Find_FDE, which it asks about every frame; nil: the file
	// has none.
	FindFDE *Func
	// Other names a function of another unwinder; "": none is seen.
	Other string
	// Hidden: the file may have an unwinder without a name.
	Hidden bool
}

// otherUnwinders are functions that step from a frame to its caller in LLVM's and in GNU's
// libunwind.
var otherUnwinders = []string{"unw_step", "__unw_step"}

// Unwinder tells which one the file has in it. A file without the names of its own functions
// that catches exceptions, or cleans up after them, and takes nothing for it from elsewhere has
// one that can not be seen; glibc loads libgcc's when it needs one.
func (im *Image) Unwinder() Unwinder {
	var u Unwinder
	t := im.table()
	named, takes := false, false
	for _, fn := range t.funcs {
		for _, raw := range append([]string{fn.Name}, fn.Aliases...) {
			name, _, _ := strings.Cut(raw, "@")
			switch {
			case fn.PLT:
				takes = takes || strings.HasPrefix(name, "_Unwind_") || strings.HasPrefix(name, "__gxx_personality_")
			case name == "_Unwind_Find_FDE":
				u.FindFDE = fn
			case slices.Contains(otherUnwinders, name), slices.Contains(im.elf.machine.Unwinders, name):
				u.Other = name
			}
		}
		named = named || fn.Local && fn.Name != "" && !fn.PLT
	}
	if u.FindFDE != nil || named || im.soname == "libc.so.6" {
		return u
	}
	catches := slices.ContainsFunc(t.fdes, func(d fde) bool { return d.lsda != 0 })
	u.Hidden = im.Static() || catches && !takes && len(im.Slots("_Unwind_Resume")) == 0
	return u
}
