package otlp

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// Options of an Exporter. Zero fields stand for the defaults.
type Options struct {
	Resource []Attr // what the spans are of: service.name and the like
	Scope    Scope
	// Queue is how many spans wait at most: 65,536. Who comes when it is full is dropped.
	Queue int
	// Batch is how many spans are sent at once at most: 512.
	Batch int
	// Every is how long a span waits at most until the next batch begins: 1 s.
	Every time.Duration
	// Timeout is how long one attempt to send a batch may take: 10 s.
	Timeout time.Duration
	// Patience is how long a batch is tried again, from its first failure on: 1 minute.
	Patience time.Duration
	// Last is how long Close goes on sending: 10 s.
	Last time.Duration
	// Block has Export wait for room in the queue: for a file, to which the way is short.
	Block bool
	// Started is called by the goroutine that sends, before it does; nil: nothing is.
	Started func()
	// Lost takes that so many spans could not be sent, or were rejected, and why; nil: Stats tells alone. It must not call the exporter.
	Lost func(spans uint64, why error)
}

func (o *Options) fill() {
	def := func(n *int, to int) {
		if *n <= 0 {
			*n = to
		}
	}
	wait := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	def(&o.Queue, 1<<16)
	def(&o.Batch, 512)
	wait(&o.Every, time.Second)
	wait(&o.Timeout, 10*time.Second)
	wait(&o.Patience, time.Minute)
	wait(&o.Last, 10*time.Second)
}

// Stats says what has become of the spans that an Exporter was given.
type Stats struct {
	Sent     uint64 // taken by the collector, or written
	Rejected uint64 // not taken by the collector, which took the rest of their batch
	Failed   uint64 // could not be sent
	Dropped  uint64 // found the queue full
	Retries  uint64 // attempts to send a batch once more
	// Err is why spans failed or were rejected the last time; nil: none did.
	Err error
}

// Exporter sends spans from a goroutine of its own. Export and Stats may be called by any goroutine.
type Exporter struct {
	o      Options
	to     Sender
	pause  func(context.Context, time.Duration) error // waits
	ended  chan struct{}
	ctx    context.Context // over when no attempt is made any more
	cancel context.CancelFunc

	mu      sync.Mutex
	changed chan struct{} // has something when the queue is to be looked at
	room    *sync.Cond    // the queue has become shorter
	queue   []*Span
	closed  bool
	trouble error // why an attempt failed the last time that was tried again
	stats   Stats
}

// NewExporter starts an exporter; Close ends it, and the sender.
func NewExporter(to Sender, o *Options) *Exporter {
	e := newExporter(to, o)
	go e.run()
	return e
}

func newExporter(to Sender, o *Options) *Exporter {
	e := &Exporter{to: to, pause: pause, ended: make(chan struct{}), changed: make(chan struct{}, 1)}
	if o != nil {
		e.o = *o
	}
	e.o.fill()
	e.room = sync.NewCond(&e.mu)
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e
}

// Export takes a span, which belongs to the exporter from then on. If the queue is full the span is counted as dropped, or with
// Options.Block Export waits.
func (e *Exporter) Export(s *Span) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.o.Block && !e.closed && len(e.queue) >= e.o.Queue {
		e.room.Wait()
	}
	if e.closed || len(e.queue) >= e.o.Queue {
		e.stats.Dropped++
		return
	}
	e.queue = append(e.queue, s)
	if len(e.queue) >= e.o.Batch {
		e.look()
	}
}

// look wakes the sending goroutine.
func (e *Exporter) look() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// Stats tells what has become of the spans until now.
func (e *Exporter) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

// Close sends what waits, for the time that Options.Last says, closes the sender, and tells what has become of all spans. The error is the
// sender's.
func (e *Exporter) Close() (Stats, error) {
	e.mu.Lock()
	e.closed = true
	e.room.Broadcast()
	e.mu.Unlock()
	e.look()
	late := time.AfterFunc(e.o.Last, e.cancel)
	<-e.ended
	late.Stop()
	e.cancel()
	return e.Stats(), e.to.Close()
}

// run sends until the exporter is closed and nothing waits.
func (e *Exporter) run() {
	defer close(e.ended)
	if e.o.Started != nil {
		e.o.Started()
	}
	tick := time.NewTicker(e.o.Every)
	defer tick.Stop()
	for {
		select {
		case <-e.changed:
		case <-tick.C:
		}
		for {
			b, last := e.next()
			if len(b) > 0 {
				e.send(b)
			}
			if last {
				return
			}
			if len(b) == 0 {
				break
			}
		}
	}
}

// next takes a batch from the queue. last: none will come behind it.
func (e *Exporter) next() (b []*Span, last bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n, size := 0, 0
	for n < min(len(e.queue), e.o.Batch) && (n == 0 || size+e.queue[n].size() <= maxBatch) {
		size += e.queue[n].size()
		n++
	}
	b = e.queue[:n:n]
	if e.queue = e.queue[n:]; len(e.queue) == 0 {
		e.queue = nil // else what was sent would stay reachable
	}
	e.room.Broadcast()
	return b, e.closed && len(e.queue) == 0
}

// maxBatch bounds the bytes of a batch: servers of gRPC take messages of 4 MiB, if nothing else is configured.
const maxBatch = 2 << 20

// send sends a batch, again and again while it may help, and counts its spans.
func (e *Exporter) send(spans []*Span) {
	b := &Batch{Resource: e.o.Resource, Scope: e.o.Scope, Spans: spans}
	var first time.Time
	for try := 0; ; try++ {
		ctx, cancel := context.WithTimeout(e.ctx, e.o.Timeout)
		answer, err := e.to.Send(ctx, b)
		cancel()
		var again *RetryError
		if err == nil || !errors.As(err, &again) {
			e.count(len(spans), answer, err)
			return
		}
		if first.IsZero() {
			first = time.Now()
		}
		wait := max(again.After, backoff(try))
		if time.Since(first)+wait > e.o.Patience || e.pause(e.ctx, wait) != nil {
			e.count(len(spans), answer, err)
			return
		}
		e.again(err)
	}
}

// again counts an attempt that failed, and notes why: if no time is left for the next one that is the reason.
func (e *Exporter) again(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stats.Retries++
	e.trouble = err
}

// count counts the spans of a batch.
func (e *Exporter) count(n int, a Answer, err error) {
	lost, why := e.countLocked(uint64(n), a, err)
	if lost > 0 && e.o.Lost != nil {
		e.o.Lost(lost, why)
	}
}

func (e *Exporter) countLocked(n uint64, a Answer, err error) (lost uint64, why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.stats.Failed += n
		e.note(err)
		return n, e.stats.Err
	}
	rejected := min(uint64(max(a.Rejected, 0)), n)
	e.stats.Rejected += rejected
	e.stats.Sent += n - rejected
	if rejected > 0 {
		e.stats.Err = errors.New("the collector rejects spans: " + orNoReason(oneLine(a.Message)))
	}
	return rejected, e.stats.Err
}

// note keeps an error, unless it says only that no time was left and a better reason is known. Precondition: mu is held.
func (e *Exporter) note(err error) {
	switch {
	case !errors.Is(err, context.Canceled):
		e.stats.Err = err
	case e.stats.Err == nil && e.trouble != nil:
		e.stats.Err = e.trouble
	case e.stats.Err == nil:
		e.stats.Err = err
	}
}

func orNoReason(s string) string {
	if s == "" {
		return "it gives no reason"
	}
	return s
}

// Bounds of the pause before a batch is tried again.
const (
	backoffMin = 250 * time.Millisecond
	backoffMax = 10 * time.Second
)

// backoff is the pause behind the attempt of a number, from 0: each may be twice as long as the one before, and a part of it is random, so
// that many who failed together do not come again together.
func backoff(try int) time.Duration {
	d := backoffMax
	if try < 6 {
		d = min(backoffMin<<try, backoffMax)
	}
	return d/2 + rand.N(d/2)
}

// pause waits, unless the context ends before.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
