package engine

import (
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/codescan"
	"kprobes.dev/kprobes/internal/engine/instances"
	"kprobes.dev/kprobes/internal/engine/records"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// Open makes a registry for a target. The target is not touched before the first Add.
func Open(t target.Target, o *Options) (*Core, error) {
	can := t.Capabilities()
	c := &Core{editor: editor{t: t, can: can}, scan: codescan.New(t), fns: map[uint64]*function{}, records: records.New(t)}
	c.numbers = instances.NewNumbers(t, c.recycle)
	c.reclaimer = instances.NewReclaimer(t, c.numbers, c.returnProbes)
	if o != nil {
		c.most, c.shown, c.records.Comm = o.MaxEvents, o.Show, o.Comm
	}
	if c.most < 0 {
		return nil, errno.Errorf(unix.EINVAL, "MaxEvents %d: a number of events is not negative", c.most)
	}
	c.knobs.mu, c.lock = &c.mu, locker{c}
	c.editor.knobs, c.reg, c.again = &c.knobs, c, c.keepOptimizing
	c.reap = c.reapOnce
	c.space.Store(t.Space())
	return c, nil
}
