package hit

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCeilLog2(t *testing.T) {
	for v, want := range map[uint64]int{
		0: 0, 1: 0, 2: 1, 3: 2, 4: 2, 5: 3, 8: 3, 9: 4, 1023: 10, 1024: 10, 1025: 11,
		1 << 63: 63, 1<<63 + 1: 64, math.MaxUint64: 64,
	} {
		if got := ceilLog2(v); got != want {
			t.Errorf("ceilLog2(%d) = %d, want %d", v, got, want)
		}
	}
}

func TestHistText(t *testing.T) {
	var h Hist
	for range 80 {
		h.Add(200)
	}
	for range 20 {
		h.Add(257)
	}
	h.Add(1)
	h.Add(math.MaxUint64)
	h.Drop()
	const want = `# event histogram
#
# keys=ns.log2 vals=hitcount sort=ns.log2
#

{ ns: ~ 2^0  } hitcount:          1  #
{ ns: ~ 2^8  } hitcount:         80  ########################################
{ ns: ~ 2^9  } hitcount:         20  ##########
{ ns: ~ 2^64 } hitcount:          1  #

Totals:
    Hits: 102
    Entries: 4
    Dropped: 1
`
	if d := cmp.Diff(want, string(h.AppendText(nil, "ns"))); d != "" {
		t.Error(d)
	}
}

func TestEmptyHist(t *testing.T) {
	var h Hist
	text := string(h.AppendText([]byte("before\n"), "ns"))
	if !strings.HasPrefix(text, "before\n# event histogram\n") || !strings.Contains(text, "Hits: 0\n    Entries: 0\n    Dropped: 0\n") {
		t.Errorf("an empty histogram is %q", text)
	}
}

// Goroutines that recurse and move between threads, and a thread without goroutine.
func TestLatency(t *testing.T) {
	var l Latency
	enter := func(goid uint64, tid int, at uint64) { l.Enter(&Hit{GoID: goid, TID: tid, Nanos: at}) }
	leave := func(goid uint64, tid int, at uint64) { l.Leave(&Hit{GoID: goid, TID: tid, Nanos: at}) }
	leave(1, 10, 50) // entered before the probe was there
	enter(1, 10, 100)
	enter(2, 11, 110)
	enter(0, 11, 120)
	enter(1, 12, 130) // recursion, on another thread
	if l.Open() != 4 {
		t.Errorf("%d calls are open, want 4", l.Open())
	}
	leave(1, 13, 131) // 1 ns
	leave(0, 11, 136) // 16 ns
	leave(1, 10, 356) // 256 ns
	leave(2, 10, 109) // a clock that goes back: 0
	if l.Open() != 0 || len(l.open) != 0 {
		t.Errorf("%d calls are open in %d flows, want none", l.Open(), len(l.open))
	}
	var want Hist
	for _, v := range []uint64{1, 16, 256, 0} {
		want.Add(v)
	}
	want.Drop()
	if l.Hist != want {
		t.Errorf("latencies\n%swant\n%s", l.AppendText(nil, "ns"), want.AppendText(nil, "ns"))
	}
	if l.Hits() != 4 || l.Dropped() != 1 {
		t.Errorf("hits %d, dropped %d", l.Hits(), l.Dropped())
	}
}

// Entries that never return do not fill the memory.
func TestLatencyBound(t *testing.T) {
	var l Latency
	for i := range maxOpen + 10 {
		l.Enter(&Hit{GoID: uint64(i%8 + 1), Nanos: uint64(i)})
	}
	if l.Open() != maxOpen || l.Dropped() != 10 {
		t.Errorf("%d entries are kept and %d dropped, want %d and 10", l.Open(), l.Dropped(), maxOpen)
	}
	l.Leave(&Hit{GoID: 1, Nanos: maxOpen})
	if l.Open() != maxOpen-1 || l.Hits() != 1 {
		t.Errorf("after a return %d are kept, %d measured", l.Open(), l.Hits())
	}
}
