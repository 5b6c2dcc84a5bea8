package ring

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fakeClock is a Clock over a made-up counter: tick and ns are what both clocks show.
type fakeClock struct {
	*Clock
	at anchor
}

func newFakeClock(t *testing.T) *fakeClock {
	t.Helper()
	f := &fakeClock{Clock: &Clock{}, at: anchor{tick: 10e9, ns: 5e9}}
	f.sample = func() (anchor, error) { return f.at, nil }
	f.now = func() uint64 { return f.at.tick }
	if err := f.start(func() { f.run(2e6, 2) }); err != nil {
		t.Fatal(err)
	}
	return f
}

// run lets ns nanoseconds pass at so many ticks each.
func (f *fakeClock) run(ns uint64, rate float64) {
	f.at.ns += ns
	f.at.tick += uint64(float64(ns) * rate)
}

func (f *fakeClock) sync(t *testing.T) {
	t.Helper()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

func near(a, b, within uint64) bool { return max(a, b)-min(a, b) <= within }

func TestClockRate(t *testing.T) {
	f := newFakeClock(t)
	for _, ns := range []uint64{4e9, 5e9, 5e9 + 1e6, 5e9 + 2e6, 6e9, 3600e9} {
		tick := ns * 2
		if got := f.Nanos(tick); !near(got, ns, 1) {
			t.Errorf("tick %d: %d ns, want %d", tick, got, ns)
		}
	}
	if got := f.Ticks(time.Millisecond); !near(got, 2e6, 1) {
		t.Errorf("a millisecond is %d ticks, want 2e6", got)
	}
	if got := f.Ticks(-time.Second); got != 0 {
		t.Errorf("less than nothing is %d ticks", got)
	}
}

// TestClockFollowsDrift changes the rate as NTP does, by 200 ppm up and down.
func TestClockFollowsDrift(t *testing.T) {
	f := newFakeClock(t)
	for i := range 600 {
		f.run(101e6, 2*(1+200e-6*float64(i/100%3-1)))
		f.sync(t)
		if got := f.Nanos(f.at.tick); got != f.at.ns {
			t.Fatalf("step %d: %d ns, want %d", i, got, f.at.ns)
		}
		// Until the next measurement the error is what the rate changed in between.
		ahead := f.at
		ahead.ns += 50e6
		ahead.tick += uint64(50e6 * 2 * (1 + 200e-6*float64(i/100%3-1)))
		if got := f.Nanos(ahead.tick - 1); !near(got, ahead.ns, 50e6*400/1e6+1) {
			t.Fatalf("step %d: %d ns 50 ms ahead, want %d", i, got, ahead.ns)
		}
	}
}

// TestClockNeverGoesBack converts ticks, some again and again, while the measurements
// jitter, the rate changes and hostile values are asked for.
func TestClockNeverGoesBack(t *testing.T) {
	f := newFakeClock(t)
	given := map[uint64]uint64{}
	x := uint64(7)
	for range 20_000 {
		x = x*6364136223846793005 + 1442695040888963407
		f.run(x>>40, 2+float64(x>>50&7)/1000)
		real := f.at
		f.at.ns += x >> 45 & 0xffff // a bad measurement
		if x>>60 < 6 {
			f.sync(t)
		}
		f.at = real
		f.Nanos(^uint64(0) - x>>3)
		for tick := f.at.tick - min(x>>44, f.at.tick-11e9); tick <= f.at.tick; tick += 1 + (x>>44)/2 {
			given[tick] = f.Nanos(tick)
		}
	}
	if len(f.anchors) < 1000 {
		t.Fatalf("only %d anchors", len(f.anchors))
	}
	checkMonotone(t, f.Clock, given)
}

func checkMonotone(t *testing.T, c *Clock, given map[uint64]uint64) {
	t.Helper()
	ticks := make([]uint64, 0, len(given))
	for tick := range given {
		if tick >= c.anchors[0].tick {
			ticks = append(ticks, tick)
		}
	}
	slices.Sort(ticks)
	if len(ticks) < 1000 {
		t.Fatalf("only %d ticks", len(ticks))
	}
	last := uint64(0)
	for _, tick := range ticks {
		if now := c.Nanos(tick); now != given[tick] || now < last {
			t.Fatalf("tick %d was %d ns, is %d, before it %d", tick, given[tick], now, last)
		}
		last = given[tick]
	}
}

// TestClockMemory holds the list of anchors to its limit.
func TestClockMemory(t *testing.T) {
	f := newFakeClock(t)
	for range 3 * maxAnchors {
		f.run(101e6, 2)
		f.Nanos(f.at.tick - 100)
		f.sync(t)
	}
	if n := len(f.anchors); n > maxAnchors || n < maxAnchors/2 {
		t.Errorf("%d anchors, limit %d", n, maxAnchors)
	}
	if got := f.Nanos(f.at.tick); got != f.at.ns {
		t.Errorf("%d ns, want %d", got, f.at.ns)
	}
}

func TestClockStandsStill(t *testing.T) {
	c := &Clock{sample: func() (anchor, error) { return anchor{tick: 1, ns: 1}, nil }}
	if err := c.start(func() {}); !errors.Is(err, unix.ENOTSUP) {
		t.Errorf("%v, want ENOTSUP", err)
	}
	c.sample = func() (anchor, error) { return anchor{}, unix.EPERM }
	if err := c.start(func() {}); !errors.Is(err, unix.EPERM) {
		t.Errorf("%v, want EPERM", err)
	}
}

// TestClockReal reads the kernel's clock before and after ours. Ours must lie between
// them, give or take what a measurement can be wrong by.
func TestClockReal(t *testing.T) {
	for _, s := range []Source{SourceTSC, SourceMonotonic} {
		t.Run(s.String(), func(t *testing.T) {
			c, err := NewClock(s)
			if err != nil {
				t.Fatal(err)
			}
			if c.Source() != s {
				t.Errorf("source %v", c.Source())
			}
			for range 50 {
				if err := c.Sync(); err != nil {
					t.Fatal(err)
				}
				before := monotonic()
				got := c.Nanos(c.Now())
				after := monotonic()
				if slack := uint64(time.Millisecond); got+slack < before || got > after+slack {
					t.Fatalf("%d ns is not within %d and %d", got, before, after)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
}

func TestJudgeTSC(t *testing.T) {
	const both = "processor\t: 0\nflags\t\t: fpu tsc constant_tsc nonstop_tsc\n\nprocessor\t: 1\nflags\t\t: none\n"
	for _, c := range []struct {
		name, current, available, cpuinfo string
		want                              Source
		why                               string
	}{
		{"kernel runs on it", "tsc", "tsc hpet acpi_pm", "", SourceTSC, ""},
		{"paravirtual clock", "kvm-clock", "kvm-clock tsc acpi_pm", both, SourceTSC, ""},
		{"no list", "kvm-clock", "", both, SourceTSC, ""},
		{"found unstable", "hpet", "hpet acpi_pm", both, SourceMonotonic, "does not trust"},
		{"stops in idle", "hpet", "tsc hpet", "flags : tsc constant_tsc", SourceMonotonic, "nonstop_tsc"},
		{"changes its rate", "hpet", "tsc hpet", "flags : tsc nonstop_tsc", SourceMonotonic, "constant_tsc"},
		{"nothing known", "", "", "", SourceMonotonic, "not invariant"},
	} {
		s, why := judgeTSC(c.current, c.available, c.cpuinfo)
		if s != c.want || !strings.Contains(why, c.why) || (why == "") != (s == SourceTSC) {
			t.Errorf("%s: %v, %q; want %v, %q", c.name, s, why, c.want, c.why)
		}
	}
}

func TestDetectSource(t *testing.T) {
	if s, why := DetectSource(); (s == SourceTSC) != (why == "") {
		t.Errorf("%v with reason %q", s, why)
	}
}
