package guest

import (
	"time"

	"kprobes.dev/kprobes/target/guest/kernel"
)

// guestClock tells the guest's time: its kernel's local trace clock.
type guestClock struct {
	k       *kernel.Kernel
	convert func(tick uint64, cpu int) uint64
	learned time.Time

	// The latest tick that a record had, and when it was met. The present is estimated from
	// there.
	last uint64
	met  time.Time
	rate float64 // ticks a second, 0: not known
}

// learnEvery is how often what the kernel's clock is made of is looked at anew.
const learnEvery = time.Second

// nanos converts a tick.
func (c *guestClock) nanos(tick uint64, cpu int) uint64 {
	if tick > c.last {
		c.last, c.met = tick, time.Now()
	}
	if c.convert == nil || time.Since(c.learned) > learnEvery {
		c.learn()
	}
	if c.convert == nil {
		return tick
	}
	return c.convert(tick, cpu)
}

func (c *guestClock) learn() {
	c.learned = time.Now()
	if f, err := c.k.Clock(); err == nil {
		c.convert = f
		if ns := f(1<<40+1<<30, 0) - f(1<<40, 0); ns > 0 {
			c.rate = float64(1<<30) / float64(ns) * 1e9
		}
	}
}

// ticks estimates the present, rather late than early: a record is not held back for longer
// than it must.
func (c *guestClock) ticks() uint64 {
	if c.last == 0 || c.rate == 0 {
		return ^uint64(0) >> 1
	}
	return c.last + uint64(time.Since(c.met).Seconds()*c.rate)
}

// coarse is the guest's time to a tick of its timer, in nanoseconds since it was started: for
// what happens while its counter can not be read. 0: not known.
func (c *guestClock) coarse() uint64 {
	var j [8]byte
	at, ok := c.k.Addr("jiffies_64")
	if !ok || c.k.Read(at, j[:]) != nil {
		return 0
	}
	ns := c.jiffy()
	if ns == 0 {
		return 0
	}
	start := uint64(uint32(-300 * int64(1e9/ns))) // INITIAL_JIFFIES (include/linux/jiffies.h)
	return (le.Uint64(j[:]) - start) * ns
}

// jiffy is the length of a tick of the timer, in nanoseconds: what the clock source that
// counts them is set to (kernel/time/jiffies.c).
func (c *guestClock) jiffy() uint64 {
	at, ok := c.k.Addr("clocksource_jiffies")
	mult, _, err := c.k.Offset("clocksource", "mult")
	shift, _, err2 := c.k.Offset("clocksource", "shift")
	if !ok || err != nil || err2 != nil {
		return 0
	}
	var m, s [4]byte
	if c.k.Read(at+uint64(mult), m[:]) != nil || c.k.Read(at+uint64(shift), s[:]) != nil {
		return 0
	}
	return uint64(le.Uint32(m[:])) >> min(le.Uint32(s[:]), 31)
}
