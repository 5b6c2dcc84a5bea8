package modules

import (
	"iter"
	"time"

	"kprobes.dev/kprobes/internal/engine/records"
	"kprobes.dev/kprobes/internal/kmod"
)

// Line is a line of the log.
type Line struct {
	Nanos uint64 // CLOCK_MONOTONIC
	Level int    // 0 (KERN_EMERG) to 7 (KERN_DEBUG); 4 where the module gives none
	Text  string // without its end
}

// The pause between two looks at the log grows from linesPauseMin to linesPauseMax while nothing comes.
const (
	linesPauseMin = 100 * time.Microsecond
	linesPauseMax = 16 * time.Millisecond
)

// Lines gives what modules write with printk, and the lines about them, in the order of their times, as they come. The loop ends when ctx is done, or when the
// target has ended: then it gives what has been written until that moment, which takes some milliseconds more. With a ctx that is done already it does only that. ctx is a context.Context, of which Lines
// needs no more than Done.
//
// Of several loops each line is given to one, and a loop that is left leaves no gap: the next one goes on there. What is written waits in the target's ring until
// somebody reads: this loop, or one over Core.Hits. What finds that full is lost. Hits of the Core's events that Lines comes upon wait for a loop over
// Core.Hits. The log keeps the last megabyte of lines that nobody has been given.
func (t *Table) Lines(ctx interface{ Done() <-chan struct{} }) iter.Seq[Line] {
	return func(yield func(Line) bool) {
		idle := time.NewTimer(0)
		defer idle.Stop()
		for pause := linesPauseMin; ; {
			n, more := t.give(yield)
			if !more {
				return
			}
			if pause = min(2*pause, linesPauseMax); n > 0 {
				pause = linesPauseMin
			}
			idle.Reset(pause)
			ends := false
			select {
			case <-ctx.Done():
				ends = true
			case <-idle.C:
				ends = n == 0 && t.e.Ended()
			}
			if ends {
				time.Sleep(records.SettleTime)
				t.give(yield)
				return
			}
		}
	}
}

// give gives out what is new, and says how many lines, and whether the loop goes on.
func (t *Table) give(yield func(Line) bool) (n int, more bool) {
	t.e.Keep()
	for {
		line, ok := t.next()
		if !ok {
			return n, true
		}
		n++
		if !yield(line) {
			return n, false
		}
	}
}

// next takes a line of the log.
func (t *Table) next() (Line, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l, end, ok := t.t.Log().Next(t.given)
	if !ok {
		return Line{}, false
	}
	t.given = end
	return Line{l.Nanos, level(l.Level), l.Text}, true
}

// level gives the level of a line as a number of the kernel's.
func level(l kmod.Level) int {
	if l < 0 || l > 7 {
		return 4
	}
	return int(l)
}
