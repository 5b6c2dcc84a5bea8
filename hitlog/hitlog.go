// Package hitlog writes hits of events to a log/slog Logger:
//
//	core, err := kprobes.Self()
//	events, err := core.Add(defs, nil)
//	err = hitlog.Log(ctx, core, slog.Default(), nil)
//
// A hit becomes a record whose message is the event's name, and whose time is that of the hit:
//
//	time=2026-11-24T17:00:01.000Z level=INFO msg=look args.key=cake args.n=3 at=main.lookup+0x0/0x4d tid=4711 goid=18 cpu=1
//
// It is a package of its own so that a program that probes itself need not have log/slog.
package hitlog

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/fetch"
)

// Options are the choices of Log; nil means the defaults.
type Options struct {
	Level slog.Leveler // of the records; nil: slog.LevelInfo
}

// Log writes each hit of the Core's events to a logger, until ctx is done or the target has ended, as kprobes.Core.Hits does: the loop
// over the hits is Log's own. It returns nil then. An error is that of the logger's handler, which ends it too; the hits that it has not
// written are left for the next loop.
//
// In the own process no function that the handler calls may have an event: its hits would bring forth others without end.
func Log(ctx context.Context, core *kprobes.Core, to *slog.Logger, o *Options) error {
	level := slog.LevelInfo
	if o != nil && o.Level != nil {
		level = o.Level.Level()
	}
	can := core.Target().Capabilities()
	write := context.WithoutCancel(ctx) // what was hit before the end is written behind it
	for h := range core.Hits(ctx) {
		if !to.Enabled(write, level) {
			continue
		}
		at, pc := time.Now(), uintptr(0)
		if can.Clocked == nil { // else the time is that of another machine
			at = wall(at, h.Nanos)
		}
		if can.Own {
			pc = uintptr(h.Addr()) + 1 // slog takes it to be a return address
		}
		r := slog.NewRecord(at, level, h.Event.Name, pc)
		r.AddAttrs(Value(core, h).Group()...)
		if err := to.Handler().Handle(write, r); err != nil {
			return err
		}
	}
	return nil
}

// wall is the time at which the monotonic clock stood at so many nanoseconds.
func wall(now time.Time, nanos uint64) time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return now
	}
	return now.Add(time.Duration(int64(nanos) - ts.Nano()))
}

// Value is a hit as a group of attributes, for records of the caller's own:
//
//	args    a group: the arguments by their names, as Hit.Values gives them
//	error   in place of args: why the record could not be read
//	at      the place, as kprobe trace shows it; of a return the function
//	caller  of a return: where the function returns to
//	tid     the thread's id
//	goid    the goroutine's, if there is one
//	cpu     the CPU's number
func Value(core *kprobes.Core, h *kprobes.Hit) slog.Value {
	var args []slog.Attr
	for name, v := range h.Values() {
		args = append(args, slog.Any(name, v))
	}
	as := make([]slog.Attr, 0, 7)
	switch _, err := damage(h); {
	case err != nil:
		as = append(as, slog.Any("error", err))
	case len(args) > 0:
		as = append(as, slog.Attr{Key: "args", Value: slog.GroupValue(args...)})
	}
	as = append(as, slog.String("at", string(fetch.AppendSym(nil, h.Addr(), core.Symbol))))
	if h.Event.Return {
		as = append(as, slog.String("caller", string(fetch.AppendSym(nil, h.Caller, core.Symbol))))
	}
	as = append(as, slog.Int("tid", h.TID))
	if h.GoID != 0 {
		as = append(as, slog.Uint64("goid", h.GoID))
	}
	return slog.GroupValue(append(as, slog.Int("cpu", h.CPU))...)
}

// damage is the error of a record that is damaged.
func damage(h *kprobes.Hit) (text []byte, err error) {
	if h.Event.Prog == nil {
		return nil, nil
	}
	return h.AppendArgs(nil, nil)
}
