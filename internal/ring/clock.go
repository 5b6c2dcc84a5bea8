package ring

import (
	"fmt"
	"sort"
	"time"

	"golang.org/x/sys/unix"
)

// Source is the clock that writers put into records.
type Source int

// The sources, best first.
const (
	SourceTSC       Source = iota // the CPU's counter, by rdtsc
	SourceMonotonic               // CLOCK_MONOTONIC, nanoseconds
)

// String names the source.
func (s Source) String() string {
	if s == SourceTSC {
		return "tsc"
	}
	return "monotonic"
}

const (
	syncInterval = 100 * time.Millisecond // between two anchors, once the clock is settled
	firstSync    = 2 * time.Millisecond   // between the first two
	slopeSpan    = uint64(time.Second)    // what the rate beyond the last anchor is taken over
	maxAnchors   = 4096
)

// Clock turns ticks of a source into nanoseconds of CLOCK_MONOTONIC. It is measured
// against the kernel's clock again and again (Sync), so it follows what NTP does to it,
// and it never goes back nor gives one tick two times, as long as the tick is not older
// than its memory (some minutes): later ticks have later or equal times whenever they
// are asked for.
//
//	ns │                   ● anchor (measured)
//	   │            ●┄┄┄┄┄┄     between anchors: the straight line
//	   │      ●┄┄┄┄┄            beyond the last: the rate of the last second
//	   └──────────────────── ticks
//
// A Clock is for one goroutine at a time.
type Clock struct {
	source  Source
	sample  func() (anchor, error)
	now     func() uint64
	anchors []anchor
	high    anchor // the latest tick beyond the last anchor that was converted
	limit   uint64 // a tick known to have passed
}

// anchor is a moment in ticks and in nanoseconds, and the rate after it.
type anchor struct {
	tick, ns uint64
	rate     float64 // nanoseconds per tick, up to the next anchor
}

// NewClock measures a source for two milliseconds. Which source records carry is the
// choice of whoever generates the code; DetectSource says which to take.
func NewClock(s Source) (*Clock, error) {
	c := &Clock{source: s, sample: samplePair, now: Now}
	if s == SourceMonotonic {
		c.sample, c.now = sampleMonotonic, monotonic
	}
	if err := c.start(func() { time.Sleep(firstSync) }); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Clock) start(wait func()) error {
	first, err := c.sample()
	if err != nil {
		return err
	}
	wait()
	second, err := c.sample()
	if err != nil {
		return err
	}
	if second.tick <= first.tick || second.ns <= first.ns {
		return fmt.Errorf("ring: %s clock stands still or goes back: %d to %d ticks in %d ns: take the monotonic source: %w",
			c.source, first.tick, second.tick, second.ns-first.ns, unix.ENOTSUP)
	}
	first.rate = rate(first, second)
	c.anchors = []anchor{first, second}
	c.limit = second.tick
	c.setRate()
	return nil
}

// Source says what the ticks are.
func (c *Clock) Source() Source { return c.source }

// Now is the present in ticks.
func (c *Clock) Now() uint64 { return c.now() }

// Ticks is a duration in ticks, at the present rate.
func (c *Clock) Ticks(d time.Duration) uint64 {
	if d <= 0 {
		return 0
	}
	return uint64(float64(d) / c.last().rate)
}

// Rate is the length of a tick in nanoseconds, at present.
func (c *Clock) Rate() float64 { return c.last().rate }

// Sync measures again if the last time is long enough ago (100 ms, less in the
// beginning). Call it about as often as Poll.
func (c *Clock) Sync() error {
	last := c.last()
	age := float64(c.now()-last.tick) * last.rate
	if settled := last.ns - c.anchors[0].ns; age < float64(min(uint64(syncInterval), settled)) {
		return nil
	}
	a, err := c.sample()
	if err != nil {
		return err
	}
	c.add(a)
	return nil
}

// add makes a the last anchor. What was given out already stays true: the line up to
// high is kept, and a is not before it.
func (c *Clock) add(a anchor) {
	if c.high.tick > c.last().tick {
		c.anchors = append(c.anchors, c.high)
	}
	last := c.last()
	if a.tick <= last.tick {
		return
	}
	a.ns = max(a.ns, last.ns)
	c.anchors[len(c.anchors)-1].rate = rate(last, a)
	c.anchors = append(c.anchors, a)
	c.limit = max(c.limit, a.tick)
	if len(c.anchors) > maxAnchors {
		c.anchors = append(c.anchors[:0], c.anchors[maxAnchors/4:]...)
	}
	c.setRate()
}

func (c *Clock) last() anchor { return c.anchors[len(c.anchors)-1] }

// setRate takes the rate from the last second, or all there is.
func (c *Clock) setRate() {
	last := c.last()
	i := len(c.anchors) - 2
	for i > 0 && last.ns-c.anchors[i].ns < slopeSpan {
		i--
	}
	c.anchors[len(c.anchors)-1].rate = rate(c.anchors[i], last)
}

func rate(a, b anchor) float64 { return float64(b.ns-a.ns) / float64(b.tick-a.tick) }

// Nanos is CLOCK_MONOTONIC at a tick, in nanoseconds. Any value is taken; one that no
// writer can have written gives some time, and does no harm to the others.
func (c *Clock) Nanos(tick uint64) uint64 {
	last := c.last()
	switch {
	case tick >= last.tick:
		return c.beyond(last, tick)
	case tick < c.anchors[0].tick:
		first := c.anchors[0]
		return first.ns - min(first.ns, scale(first.tick-tick, first.rate))
	}
	i := len(c.anchors) - 2
	if tick < c.anchors[i].tick {
		i = sort.Search(i, func(i int) bool { return c.anchors[i].tick > tick }) - 1
	}
	a, b := c.anchors[i], c.anchors[i+1]
	return min(b.ns, a.ns+scale(tick-a.tick, a.rate))
}

func (c *Clock) beyond(last anchor, tick uint64) uint64 {
	ns := last.ns + scale(tick-last.tick, last.rate)
	if tick <= c.high.tick {
		return ns
	}
	if tick > c.limit {
		c.limit = c.now()
	}
	if tick <= c.limit {
		c.high = anchor{tick: tick, ns: ns, rate: last.rate}
	}
	return ns
}

// scale is ticks * rate, for differences of up to a month; larger ones stay there.
func scale(ticks uint64, rate float64) uint64 { return uint64(float64(min(ticks, 1<<53)) * rate) }

// samplePair reads both clocks as close together as it can: the kernel's between two
// readings of the counter, the best of several tries, so that an interruption spoils
// only one. The error is at most half the distance of the two readings, about 100 ns.
func samplePair() (anchor, error) {
	best, width := anchor{}, ^uint64(0)
	var ts unix.Timespec
	for range 16 {
		before := Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			return best, fmt.Errorf("ring: CLOCK_MONOTONIC: %w", err)
		}
		if w := Now() - before; w < width {
			best, width = anchor{tick: before + w/2, ns: uint64(ts.Nano())}, w
		}
	}
	return best, nil
}

func sampleMonotonic() (anchor, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return anchor{}, fmt.Errorf("ring: CLOCK_MONOTONIC: %w", err)
	}
	return anchor{tick: uint64(ts.Nano()), ns: uint64(ts.Nano())}, nil
}

func monotonic() uint64 {
	a, err := sampleMonotonic()
	if err != nil {
		panic(err) // every kernel has this clock and every sandbox must allow it
	}
	return a.tick
}
