package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/demoapp"
	"kprobes.dev/kprobes/internal/hit"
)

// steps tells what is done, step by step.
type steps struct {
	out io.Writer
	n   int
}

// step begins a step with the line that explains it.
func (s *steps) step(format string, args ...any) {
	s.n++
	if s.n > 1 {
		fmt.Fprintln(s.out)
	}
	fmt.Fprintf(s.out, "== %d. %s\n", s.n, fmt.Sprintf(format, args...))
}

// demo is one run of the verb.
type demo struct {
	steps
	ctx context.Context
	app *demoapp.App
	s   *session
	evs []*kprobes.Event // armed until cost takes them out
}

// leave takes everything out of the workload. To do so again does nothing.
func (d *demo) leave() error {
	if d.s == nil {
		return nil
	}
	s := d.s
	d.s = nil
	return errors.Join(s.core.Close(nil), s.proc.Close())
}

// add arms probes. count makes them count only.
func (d *demo) add(count bool, texts ...string) ([]*kprobes.Event, error) {
	var defs []*event.Def
	for _, t := range texts {
		def, err := event.Parse(t)
		if err != nil {
			return nil, err
		}
		defs = append(defs, def)
	}
	return d.s.core.Add(defs, &kprobes.AddOptions{Count: count})
}

// arm adds probes that record and stay until cost, and shows their definitions.
func (d *demo) arm(texts ...string) ([]*kprobes.Event, error) {
	evs, err := d.add(false, texts...)
	if err != nil {
		return nil, err
	}
	d.evs = append(d.evs, evs...)
	for _, t := range texts {
		fmt.Fprintf(d.out, "     %s\n", t)
	}
	return evs, nil
}

// read gives records to f until done says that it is enough.
func (d *demo) read(f func(*hit.Hit), done func() bool) error {
	for !done() {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		select {
		case <-d.s.proc.Exited():
			return fmt.Errorf("demo workload: process %d has ended", d.app.PID())
		default:
		}
		if d.s.core.Poll(f) == 0 {
			time.Sleep(pollPause)
		}
	}
	return nil
}

// readRest reads all records that a paused workload has written.
func (d *demo) readRest(f func(*hit.Hit)) error {
	since := time.Now()
	return d.read(f, func() bool { return time.Since(since) > settleTime && d.s.core.Poll(f) == 0 })
}

// pollPause is the pause between two looks at a ring that had nothing new.
const pollPause = 2 * time.Millisecond

// settleTime is more than the reader keeps a record back, to give all out in order
// (ring.ReaderConfig.Margin), even where the time stamp counter is slow.
const settleTime = 25 * time.Millisecond

const (
	demoLimit = 15 * time.Second // for all the steps; what follows takes a moment
	demoRing  = 4 << 20          // bytes of a shard of the ring
)
