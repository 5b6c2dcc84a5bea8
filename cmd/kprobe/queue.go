package main

import (
	"bufio"
	"io"
	"sync"

	"kprobes.dev/kprobes/trace"
)

// queue takes hits from the ring at once and hands them on to a goroutine that may be
// slower, so that printing does not hold up the reader. What it holds is bounded: when
// the printer is too far behind, the reader waits, and the ring counts what it loses.
type queue struct {
	cur  *batch
	ch   chan *batch
	free sync.Pool
	done chan struct{}
	once sync.Once
}

// batch is a run of hits with the bytes of their records.
type batch struct {
	hits []trace.Hit
	recs []byte
}

const (
	batchBytes = 256 << 10
	maxBatches = 1024
)

// newQueue starts the goroutine: f gets each hit, idle is called when none is left.
func newQueue(f func(*trace.Hit), idle func()) *queue {
	q := &queue{ch: make(chan *batch, maxBatches), done: make(chan struct{})}
	q.free.New = func() any { return &batch{recs: make([]byte, 0, batchBytes+64<<10)} }
	q.cur = q.free.Get().(*batch)
	go func() {
		defer close(q.done)
		for b := range q.ch {
			for i := range b.hits {
				f(&b.hits[i])
			}
			b.hits, b.recs = b.hits[:0], b.recs[:0]
			q.free.Put(b)
			if len(q.ch) == 0 {
				idle()
			}
		}
	}()
	return q
}

// add takes a hit.
func (q *queue) add(h *trace.Hit) {
	b := q.cur
	n := len(b.recs)
	if n+len(h.Rec) > cap(b.recs) {
		q.flush()
		b, n = q.cur, 0
	}
	b.recs = append(b.recs, h.Rec...)
	b.hits = append(b.hits, *h)
	b.hits[len(b.hits)-1].Rec = b.recs[n:len(b.recs):len(b.recs)]
	if len(b.recs) >= batchBytes {
		q.flush()
	}
}

// flush hands on what has been taken.
func (q *queue) flush() {
	if len(q.cur.hits) > 0 {
		q.ch <- q.cur
		q.cur = q.free.Get().(*batch)
	}
}

// close hands on the rest and waits until all has been used.
func (q *queue) close() error {
	q.once.Do(func() {
		q.flush()
		close(q.ch)
	})
	<-q.done
	return nil
}

// lines prints hits.
type lines struct {
	f     *traceFlags
	out   *bufio.Writer
	print trace.Printer
	buf   []byte
	n     uint64
	err   error
	full  chan struct{} // closed once enough was printed, or printing failed
}

func newLines(f *traceFlags, w io.Writer, n trace.Namer) *lines {
	return &lines{f: f, out: bufio.NewWriterSize(w, 256<<10), print: trace.Printer{Names: n}, full: make(chan struct{})}
}

// flush lets a reader of the output see what there is.
func (l *lines) flush() {
	if l.err == nil {
		l.err = l.out.Flush()
	}
}

// hit writes one hit.
func (l *lines) hit(h *trace.Hit) {
	if l.f.count > 0 && l.n >= l.f.count || l.err != nil {
		return
	}
	l.n++
	if !l.f.stat {
		if l.f.format == "json" {
			l.buf = l.print.JSON(l.buf[:0], h)
		} else {
			l.buf = l.print.Text(l.buf[:0], h)
		}
		_, l.err = l.out.Write(l.buf)
	}
	if l.err != nil || l.n == l.f.count {
		close(l.full)
	}
}

// finish writes out what is buffered.
func (l *lines) finish() error {
	l.flush()
	return l.err
}
