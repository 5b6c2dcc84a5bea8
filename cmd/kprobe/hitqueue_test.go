package main

import (
	"bytes"
	"testing"

	"kprobes.dev/kprobes/internal/hit"
)

// TestHitQueueLoses has nobody print for longer than the queue has room: what it can not keep is counted, by event, and all else is printed. Once the trace is
// to end nothing is lost.
func TestHitQueueLoses(t *testing.T) {
	evs := [2]hit.Event{{Name: "a"}, {Name: "b"}}
	printed, goOn := map[*hit.Event]uint64{}, make(chan struct{})
	told := map[int]uint64{}
	q := newHitQueue(func(h *hit.Hit) {
		<-goOn
		printed[h.Event]++
	}, func(l hit.Loss) { told[l.CPU] += l.Hits }, func() {})
	q.max = 4
	added, rec := map[*hit.Event]uint64{}, make([]byte, batchBytes)
	add := func(n int) {
		for i := range n {
			e := &evs[i%len(evs)]
			added[e]++
			q.add(&hit.Hit{Event: e, CPU: i % len(evs), Rec: rec})
		}
	}
	add(q.max + 50)
	q.lose(nil, 1, 1000) // in the program's ring
	add(50)
	lost := q.losses()
	q.takeAll()
	add(100)
	close(goOn)
	q.close()
	if told[0] != lost[&evs[0]] || told[1] != lost[&evs[1]]+1000 {
		t.Errorf("told as lost by CPU: %v, where %d of a, %d of b and 1000 were", told, lost[&evs[0]], lost[&evs[1]])
	}
	for i := range evs {
		e := &evs[i]
		if lost[e] < 49 || q.losses()[e] != lost[e] || printed[e]+lost[e] != added[e] {
			t.Errorf("%s: %d added, %d printed, %d lost, %d of them once the trace was to end", e.Name, added[e], printed[e], q.losses()[e], q.losses()[e]-lost[e])
		}
	}
}

// TestHitQueueThen has calls among hits: each is made when those before it have been used, also if these found no room.
func TestHitQueueThen(t *testing.T) {
	goOn, used, e, rec := make(chan struct{}), 0, &hit.Event{}, make([]byte, batchBytes)
	q := newHitQueue(func(*hit.Hit) {
		<-goOn
		used++
	}, func(hit.Loss) {}, func() {})
	q.max = 4
	type call struct{ added, used int }
	var calls []*call
	for i := range 20 {
		q.add(&hit.Hit{Event: e, Rec: rec[:batchBytes/2]})
		c := &call{added: i + 1}
		calls = append(calls, c)
		q.then(func() { c.used = used })
	}
	lost := int(q.losses()[e])
	close(goOn)
	q.close()
	if lost == 0 || used+lost != 20 {
		t.Errorf("%d used, %d lost, of 20", used, lost)
	}
	for i, c := range calls {
		if c.used == 0 || c.used > c.added || c.used < c.added-lost || i > 0 && c.used < calls[i-1].used {
			t.Errorf("behind %d hits, of which %d were lost in all: %d were used", c.added, lost, c.used)
		}
	}
}

// TestHitQueueBehind has hits come one by one while nobody prints: they use up the room by their bytes, not by how often they came.
func TestHitQueueBehind(t *testing.T) {
	const hits = 1000
	goOn := make(chan struct{})
	var printed []byte
	q := newHitQueue(func(h *hit.Hit) {
		<-goOn
		printed = append(printed, h.Rec...)
	}, func(hit.Loss) {}, func() {})
	q.max = 4
	e, want := &hit.Event{}, []byte(nil)
	for i := range hits {
		q.add(&hit.Hit{Event: e, Rec: []byte{byte(i)}})
		q.flush()
		want = append(want, byte(i))
	}
	close(goOn)
	q.close()
	if n := q.losses()[e]; n != 0 || !bytes.Equal(printed, want) {
		t.Errorf("%d of %d hits lost, %d printed", n, hits, len(printed))
	}
}
