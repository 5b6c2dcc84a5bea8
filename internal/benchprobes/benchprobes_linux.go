// Package benchprobes counts all functions of a program at once, and tells how long that took: for
// `kprobe bench` and for benchmarks.
package benchprobes

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/target/process"
)

// Arming is what arming all functions has taken.
type Arming struct {
	Armed, Refused     int
	Attach, Add, Close time.Duration
	CPU                time.Duration // of Add, on all processors
}

// Better keeps the best of each time: other work of the machine only adds to them.
func (a *Arming) Better(o Arming) {
	if a.Armed == 0 {
		*a = o
		return
	}
	a.Add, a.Attach, a.Close, a.CPU = min(a.Add, o.Add), min(a.Attach, o.Attach), min(a.Close, o.Close), min(a.CPU, o.CPU)
}

// PerSecond is the number of probes that were armed in a second of Add.
func (a *Arming) PerSecond() float64 { return float64(a.Armed) / a.Add.Seconds() }

// Busy says whether an error may come of a busy machine, which keeps threads from stopping in
// time: EBUSY of the own process, ETIMEDOUT of another one.
func Busy(err error) bool { return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ETIMEDOUT) }

// removeTries is how often Self takes out what such an error has kept in.
const removeTries = 10

// Process arms a counter at the entry of all functions of a process's own file that match a
// pattern, calls armed, and takes everything out again.
func Process(pid int, pattern string, armed func() error) (a Arming, err error) {
	start := time.Now()
	p, err := process.OpenUnwaited(pid)
	if err != nil {
		return a, err
	}
	defer p.Close()
	t, err := process.Attach(p, &process.TargetOptions{Events: ring.MaxEvents})
	if err != nil {
		return a, err
	}
	c, err := kprobes.Open(t, nil)
	if err != nil {
		return a, err
	}
	if err := errors.Join(t.Space().Modules()[0].Image.Load(), t.Prepare()); err != nil {
		return a, errors.Join(err, c.Close(nil))
	}
	a.Attach = time.Since(start)
	_, err = a.add(c, pattern)
	if err == nil {
		err = armed()
	}
	start = time.Now()
	err = errors.Join(err, c.Close(nil))
	a.Close = time.Since(start)
	return a, err
}

// Self does so in the own process; Close ends when no thread is in the code that was taken out. What a
// busy machine keeps it from taking out it tries again, so that the next round does not find it armed.
func Self(pattern string, armed func() error) (a Arming, err error) {
	start := time.Now()
	c, err := kprobes.Self()
	if err != nil {
		return a, err
	}
	a.Attach = time.Since(start)
	evs, err := a.add(c, pattern)
	if err != nil {
		return a, err
	}
	err = armed()
	start = time.Now()
	var left error
	for range removeTries {
		if left = c.Remove(evs); !Busy(left) {
			break
		}
	}
	idle := c.Target().Capabilities().Idle
	for range removeTries { // else the next round would give the room of this one's code back
		if idle() {
			break
		}
	}
	a.Close = time.Since(start)
	return a, errors.Join(err, left)
}

func (a *Arming) add(c *kprobes.Core, pattern string) ([]*kprobes.Event, error) {
	d, err := event.Parse("p " + pattern)
	if err != nil {
		return nil, err
	}
	before, err := cpuTime()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	evs, err := c.Add([]*event.Def{d}, &kprobes.AddOptions{Count: true, Skip: func(string, error) { a.Refused++ }})
	if err != nil {
		return nil, err
	}
	a.Add, a.Armed = time.Since(start), len(evs)
	after, err := cpuTime()
	a.CPU = after - before
	return evs, err
}

// cpuTime is what the process has used of all processors.
func cpuTime() (time.Duration, error) {
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		return 0, fmt.Errorf("own CPU time: %w", err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano()), nil
}
