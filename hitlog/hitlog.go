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
	"math"
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
	var clock wallClock
	for h := range core.Hits(ctx) {
		if !to.Enabled(write, level) {
			continue
		}
		var at time.Time
		if can.Clocked != nil { // the hit's time is that of another machine
			at = time.Now()
		} else {
			at = clock.at(h.Nanos)
		}
		var pc uintptr
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

// wallClock tells the time at which the monotonic clock stood at a number of nanoseconds.
type wallClock struct {
	offset   int64 // of the wall clock, in nanoseconds
	measured int64 // when, by the monotonic clock; 0: never
}

// The wall clock is set and slewed, so its offset is measured again now and then. Something else may run between two readings:
// they are repeated until they are near each other, and the nearest count.
const (
	offsetAge   = int64(time.Second)
	offsetNear  = int64(5 * time.Microsecond)
	offsetTries = 16
)

func (c *wallClock) at(nanos uint64) time.Time {
	if c.measured == 0 || int64(nanos)-c.measured > offsetAge {
		c.measure()
	}
	return time.Unix(0, int64(nanos)+c.offset)
}

func (c *wallClock) measure() {
	apart := int64(math.MaxInt64)
	for i := 0; i < offsetTries && apart > offsetNear; i++ {
		before := monotonic()
		now := time.Now().UnixNano()
		if d := monotonic() - before; d < apart {
			apart, c.measured, c.offset = d, before, now-before-d/2
		}
	}
}

// monotonic is the time of CLOCK_MONOTONIC in nanoseconds.
func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // it can not fail
	return ts.Nano()
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
