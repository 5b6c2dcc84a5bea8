package main

import (
	"testing"

	"kprobes.dev/kprobes/internal/hit"
)

// TestHitQueueLoses has nobody print for longer than the queue has room: what it can not keep is counted, by event, and all else is printed. Once the trace is
// to end nothing is lost.
func TestHitQueueLoses(t *testing.T) {
	evs := [2]hit.Event{{Name: "a"}, {Name: "b"}}
	printed, goOn := map[*hit.Event]uint64{}, make(chan struct{})
	q := newHitQueue(func(h *hit.Hit) {
		<-goOn
		printed[h.Event]++
	}, func() {})
	added := map[*hit.Event]uint64{}
	add := func(n int) {
		for i := range n {
			e := &evs[i%len(evs)]
			added[e]++
			q.add(&hit.Hit{Event: e})
			q.flush()
		}
	}
	add(maxBatches + 100)
	lost := q.losses()
	q.takeAll()
	add(100)
	close(goOn)
	q.close()
	for i := range evs {
		e := &evs[i]
		if lost[e] < 49 || q.losses()[e] != lost[e] || printed[e]+lost[e] != added[e] {
			t.Errorf("%s: %d added, %d printed, %d lost, %d of them once the trace was to end", e.Name, added[e], printed[e], q.losses()[e], q.losses()[e]-lost[e])
		}
	}
}
