package kprobes

import (
	"iter"
	"time"

	"kprobes.dev/kprobes/internal/engine/records"
)

// The pause between two looks at the ring grows from hitsPauseMin to hitsPauseMax while nothing comes. It is never left out: in the own
// process what reads records may itself be probed.
const (
	hitsPauseMin = 100 * time.Microsecond
	hitsPauseMax = 16 * time.Millisecond
)

// Hits gives the records of the events, in the order of their times, as they come:
//
//	for h := range core.Hits(ctx) {
//		fmt.Println(h.Event.Name, h.Value("n"))
//	}
//
// The loop ends when ctx is done, or when the target has ended: then it gives what was recorded until that moment, which takes some
// milliseconds more. With a ctx that is done already it does only that. ctx is a context.Context, of which Hits needs no more than Done.
//
// A Hit, and all that it holds, stays valid and belongs to the body of the loop, which may call any function of this package, and may
// take its time: records wait in the target's ring meanwhile, and are lost, and counted (Counts.Lost), only when that is full. A loop
// that is left by break or return leaves no gap: the next loop, Poll or Close goes on where it was. Of several loops at a time each
// gets a part of the hits. Hits does not call Sync: where AddOptions.Late needs that, another goroutine does.
//
// In the own process a loop whose body calls what it probes never runs out of hits.
func (c *Core) Hits(ctx interface{ Done() <-chan struct{} }) iter.Seq[*Hit] {
	return func(yield func(*Hit) bool) {
		idle := time.NewTimer(0)
		defer idle.Stop()
		for pause := hitsPauseMin; ; {
			n := c.e.Keep()
			if !c.e.EachKept(yield) {
				return
			}
			if pause = min(2*pause, hitsPauseMax); n > 0 {
				pause = hitsPauseMin
			}
			idle.Reset(pause)
			select {
			case <-ctx.Done():
				c.lastHits(yield)
				return
			case <-idle.C:
			}
			if n == 0 && c.e.Ended() {
				c.lastHits(yield)
				return
			}
		}
	}
}

// lastHits gives what has been recorded by now.
func (c *Core) lastHits(yield func(*Hit) bool) {
	c.e.Keep() // what lies in the ring of a target with a clock of its own waits from when it was seen
	if !c.e.EachKept(yield) {
		return
	}
	time.Sleep(records.SettleTime)
	c.e.Keep()
	c.e.EachKept(yield)
}
