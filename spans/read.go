package spans

import (
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/engine/records"
	"kprobes.dev/kprobes/internal/mailbox"
)

// The pause between two looks at the ring grows from pauseMin to pauseMax while nothing comes. It is never left out: in the own process what
// reads records may itself be probed.
const (
	pauseMin = 100 * time.Microsecond
	pauseMax = 16 * time.Millisecond
)

// run reads hits until it is told to stop, or the target has ended. It tells its own number first.
func (s *Spans) run(reader chan<- uint64) {
	defer close(s.done)
	reader <- mailbox.GoID()
	if !<-s.began {
		return
	}
	idle := time.NewTimer(0)
	defer idle.Stop()
	for pause := pauseMin; ; {
		n := s.read(false)
		if pause = min(2*pause, pauseMax); n > 0 {
			pause = pauseMin
		}
		idle.Reset(pause)
		select {
		case <-s.stop:
			s.last()
			return
		case <-idle.C:
		}
		if n == 0 && engine.Of(s.core).Ended() {
			s.last()
			return
		}
	}
}

// last takes what has been recorded by now, and hands over what is held.
func (s *Spans) last() {
	s.read(false)
	time.Sleep(records.SettleTime)
	s.read(true)
}

// read takes the hits that are there, and hands over the spans. last: none will follow.
func (s *Spans) read(last bool) (n int) {
	s.mu.Lock()
	n = s.core.Poll(s.take)
	engine.Of(s.core).Losses(last, func(_ *event.Def, _ int, records uint64) {
		s.lost += records
		s.maker.Lost()
	})
	if last {
		s.maker.Finish()
	} else if n == 0 {
		s.maker.Idle()
	}
	made := s.made
	s.made = nil
	s.mu.Unlock()
	if len(made) > 0 {
		s.o.Export(made)
	}
	return n
}

// take takes a hit. Precondition: s.mu is held.
func (s *Spans) take(h *kprobes.Hit) {
	switch {
	case s.defs[h.Event.Def]:
		s.maker.Hit(h)
	case s.o.Hit != nil:
		s.o.Hit(h)
	default:
		s.others++
	}
}

// emit takes a span. Precondition: s.mu is held.
func (s *Spans) emit(span *Span) {
	if s.exporter != nil {
		s.exporter.Export(span)
	}
	if s.o.Export != nil {
		s.made = append(s.made, span)
	}
}
