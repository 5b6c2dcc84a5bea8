package ring

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLayoutPinned holds the offsets that generated code in running targets relies on. A
// change here needs a new Version.
func TestLayoutPinned(t *testing.T) {
	l, err := NewLayout(Config{CPUs: 4, Events: 4096, DataSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		got, want uint64
	}{
		{"version", Version, 3},
		{"version with flags", VersionFlags, 4},
		{"flags", HdrFlags, 48},
		{"guard", ShGuard, 1024},
		{"header", headerSize, 56},
		{"head", ShHead, 0},
		{"tail", ShTail, 64},
		{"read", ShRead, 128},
		{"stride", l.Stride, 2 << 20},
		{"size", l.Size(), 4096 + 8*(2<<20)},
		{"shards", uint64(l.Shards()), 8},
		{"first shard", l.ShardOff(0), 4096},
		{"locked shard of cpu 1", uint64(l.Locked(1)), 5},
		{"its place", l.ShardOff(l.Locked(1)), 4096 + 5*(2<<20)},
		{"counters of event 0", l.CounterOff(0), 4096},
		{"lost of event 3", l.CounterOff(3) + CtrLost, 4096 + 3*32 + 8},
		{"data", l.DataOff(), 4096 + 4096*32},
		{"units", l.Units(), 131072},
		{"locked units", l.LockedUnits(), 131072},
		{"record header", RecHeader, 16},
		{"largest record", MaxRecord, 32760},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", c.name, c.got, c.want)
		}
	}
}

// TestLayoutFits checks for many sizes that a shard's parts lie inside of it and that the
// count of reservations stays within its 16 bits.
func TestLayoutFits(t *testing.T) {
	for data := MinData; data <= MaxData; data *= 2 {
		for _, events := range []int{1, 127, 128, 129, 5000, MaxEvents} {
			l, err := NewLayout(Config{CPUs: 3, Events: events, DataSize: data})
			if err != nil {
				t.Fatal(err)
			}
			end := l.DataOff() + l.Data + Slack
			if l.CounterOff(events) > l.DataOff() || end > l.Stride || l.Stride&(l.Stride-1) != 0 || l.Stride/2 >= end {
				t.Errorf("%+v: data at %#x, end %#x", l, l.DataOff(), end)
			}
			if l.LockedUnits() > l.Units() || l.LockedUnits()*unit/RecHeader > 1<<16 {
				t.Errorf("%+v: %d locked units", l, l.LockedUnits())
			}
		}
	}
}

func TestLayoutRefusals(t *testing.T) {
	for _, c := range []Config{
		{},
		{CPUs: -1},
		{CPUs: MaxCPUs + 1},
		{CPUs: 1, Events: -1},
		{CPUs: 1, Events: MaxEvents + 1},
		{CPUs: 1, DataSize: MinData / 2},
		{CPUs: 1, DataSize: MinData + 8},
		{CPUs: 1, DataSize: MaxData * 2},
	} {
		if _, err := NewLayout(c); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%+v: %v, want EINVAL", c, err)
		}
	}
}

// A record's first word holds the largest size and the largest event, each by itself.
func TestWord0(t *testing.T) {
	for _, c := range []struct{ units, event int }{{2, 0}, {MaxRecord / unit, 0}, {2, MaxEvents - 1}, {MaxRecord / unit, MaxEvents - 1}, {4095, 1}, {17, 4096}} {
		w0 := uint64(Word0(c.units, c.event)) | 4711<<32
		if n, e := UnitsOf(w0), EventOf(w0); n != uint64(c.units) || e != c.event {
			t.Errorf("%d units of event %d: read as %d of %d", c.units, c.event, n, e)
		}
	}
}
