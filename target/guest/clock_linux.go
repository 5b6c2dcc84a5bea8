package guest

import "kprobes.dev/kprobes/internal/guest/kernel"

// guestClock tells the guest's time: its kernel's local trace clock.
type guestClock struct {
	k       *kernel.Kernel
	convert func(tick uint64, cpu int) uint64
}

// nanos converts a tick; a kernel that does not tell how gives the tick itself.
func (c *guestClock) nanos(tick uint64, cpu int) uint64 {
	if c.convert == nil {
		f, err := c.k.TraceClock()
		if err != nil {
			return tick
		}
		c.convert = f
	}
	return c.convert(tick, cpu)
}

// tick is the length of a tick, with 32 bits behind the point.
func (c *guestClock) tick() (uint64, error) {
	f, err := c.k.Clock()
	if err != nil {
		return 0, err
	}
	return f(1<<32, 0) - f(0, 0), nil
}

// moment is a tick, the guest's time then in nanoseconds, and the length of a tick, with 32 bits behind the point: what code in the guest can tell the time by.
func (c *guestClock) moment() (tick, nanos, length uint64, err error) {
	f, err := c.k.Clock()
	if err != nil {
		return 0, 0, 0, err
	}
	return 0, f(0, 0), f(1<<32, 0) - f(0, 0), nil
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
