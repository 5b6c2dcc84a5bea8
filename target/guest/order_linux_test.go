package guest_test

import (
	"encoding/binary"
	"runtime"
	"testing"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes/internal/testguest"
)

// TestOrder: two vCPUs write records all the time, each into its own shard, and several turns of theirs are there when
// they are read. What comes is in the order of the guest's counter, over the calls of Poll too, and no time is before the
// one before it.
func TestOrder(t *testing.T) {
	p := attach(t, testguest.Shared(t), nil)
	ev := p.add(nil, "p:order __x64_sys_getppid")[0]
	for _, cpu := range []string{"0", "1"} {
		end := p.g.Background("/bin/hit", "getppid", "100000000", cpu)
		defer end()
	}
	const rounds, each = 5, 20_000
	var n [2]int
	var last hit.Hit
	var tick uint64
	turns, back := 0, 0
	take := func(h *hit.Hit) {
		at := binary.LittleEndian.Uint64(h.Rec[8:])
		if at < tick || h.Nanos < last.Nanos {
			back++
		}
		if h.CPU != last.CPU {
			turns++
		}
		n[h.CPU%2]++
		tick, last = at, *h
		last.Rec = nil
	}
	for i := uint64(1); i <= rounds || turns < 2*rounds || min(n[0], n[1]) < each; i++ {
		for c := p.core.Counts(ev); c.Hits < i*each; c = p.core.Counts(ev) {
			runtime.Gosched()
		}
		for p.core.Poll(take) > 0 {
		}
	}
	if back > 0 {
		t.Errorf("of %d records %d come before the one before them", n, back)
	}
}
