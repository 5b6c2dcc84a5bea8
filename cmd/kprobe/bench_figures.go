package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes/internal/asyncwriter"
)

// Numbers of events that are sent through the ring to a file.
const (
	fullEvents  = 20_000_000
	quickEvents = 200_000
)

// events measures how many events a second come from one CPU through the ring into a file.
// The program runs again and again, as far as the ring has room for what is to come, while
// the records are read and written.
func (b *bench) events(dir string) error {
	f := figure{What: "events into the ring and a raw file", Where: whereProcess, Unit: "events/s", Bar: barEvents}
	want := uint64(fullEvents)
	if b.quick {
		want = quickEvents
	}
	rate, bytes, err := b.eventRate(dir, want)
	if err != nil {
		f.Failed = escapedError(err)
	} else {
		f.set(rate)
		f.Of = fmt.Sprintf("%d of %d bytes, none lost", want, bytes/int64(want))
	}
	return b.add(f)
}

func (b *bench) eventRate(dir string, want uint64) (rate float64, size int64, err error) {
	p := &ownProber{b: b, row: findRow(rowRecord)}
	defer func() { err = errors.Join(err, p.disarm()) }()
	if err := p.arm(classes[0]); err != nil {
		return 0, 0, err
	}
	path := filepath.Join(dir, "events")
	file, err := os.Create(path)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, file.Close(), os.Remove(path)) }()
	start := time.Now()
	w := asyncwriter.NewWriter(file, fileBuffer, fileBuffers)
	if err := b.pump(p, w, want); err != nil {
		return 0, 0, err
	}
	rate = float64(want) / time.Since(start).Seconds()
	st, err := file.Stat()
	if err != nil {
		return 0, 0, err
	}
	hits, lost, err := p.counts()
	switch {
	case err != nil:
	case lost != 0:
		err = fmt.Errorf("%d of %d: %w", lost, hits, errRing)
	case hits != want:
		err = fmt.Errorf("%d, not %d: %w", hits, want, errCount)
	}
	return rate, st.Size(), err
}

// pump has the program make so many events, which are a multiple of batches, and writes each
// record.
func (b *bench) pump(p *ownProber, w *asyncwriter.Writer, want uint64) error {
	part := b.room / eventParts / batches * batches
	room, stop, made := make(chan struct{}, eventParts-1), make(chan struct{}), make(chan error, 1)
	go func() { made <- b.produce(want, part, room, stop) }()
	last := time.Now()
	for read, freed := uint64(0), uint64(0); read < want && time.Since(last) < pumpWait && b.ctx.Err() == nil; {
		n := b.s.core.Poll(func(h *hit.Hit) { _, _ = w.Write(h.Rec) }) // Close tells of errors
		if n > 0 {
			last = time.Now()
		} else {
			time.Sleep(100 * time.Microsecond)
		}
		for read += uint64(n); read >= freed+part; freed += part {
			<-room
		}
	}
	close(stop)
	err := errors.Join(<-made, w.Close())
	if b.ctx.Err() != nil {
		err = errors.Join(err, errInterrupted)
	}
	return err
}

// What is written to the file at once, in bytes, and in how many buffers: as much as the ring
// holds waits for it.
const (
	fileBuffer  = 1 << 20
	fileBuffers = 4
)

// pumpWait is how long no record may come until it is given up; the counts tell then.
const pumpWait = 10 * time.Second

// eventParts is the number of parts of the ring, all but one of which the program fills while
// what it has filled is read.
const eventParts = 4

// produce lets the program make the events, part by part, where the ring has room for one.
func (b *bench) produce(want, part uint64, room chan<- struct{}, stop <-chan struct{}) error {
	for left := want; left > 0; {
		select {
		case room <- struct{}{}:
		case <-stop:
			return nil
		}
		n := min(left, part)
		left -= n
		if _, err := b.probed.Run(classes[0].function, n, 1); err != nil {
			return err
		}
	}
	return nil
}

// figureBytes is the figure whose value is to be 0.
const figureBytes = "bytes of code that differ once all is taken out"

// disarmed measures what a probe costs that was taken out: nothing is left of it in the code,
// and a call takes what it took. It closes the Core, for the engine's own probes stay until then, and so
// comes last.
func (b *bench) disarmed() error {
	fs := []figure{
		{What: figureBytes, Where: whereProcess, Unit: "bytes", Bar: 0, AtMost: true},
		{What: "a call once its probe is taken out / never probed", Where: whereProcess, Unit: "times", Bar: barDisarmed, AtMost: true},
	}
	n, of, err := b.changedBytes()
	if err != nil {
		return b.add(failed(fs, err)...)
	}
	fs[0].set(float64(n))
	fs[0].Of = of
	var plain, probed []float64
	for range 2 * b.rounds {
		a, err1 := b.plain.Run(classes[0].function, b.calls, 1)
		z, err2 := b.probed.Run(classes[0].function, b.calls, 1)
		if err := errors.Join(err1, err2); err != nil {
			return b.add(failed(fs, err)...)
		}
		plain, probed = append(plain, a.Median), append(probed, z.Median)
	}
	fs[1].set(median(probed) / median(plain))
	return b.add(fs...)
}

// changedBytes takes everything out, the engine's own probes too, and counts the bytes of the probed
// program's code that are not its file's. Nothing can be probed afterwards.
func (b *bench) changedBytes() (n int, of string, err error) {
	m := b.s.target.Space().Modules()[0]
	if err := b.closeCore(); err != nil {
		return 0, "", err
	}
	total := uint64(0)
	for _, s := range m.Image.Segments() {
		if !s.Exec {
			continue
		}
		have, want := make([]byte, s.Filesz), make([]byte, s.Filesz)
		if err := errors.Join(m.Image.ReadAt(s.Vaddr, want), b.s.proc.ReadMem(m.Runtime(s.Vaddr), have)); err != nil {
			return 0, "", err
		}
		for i := range have {
			if have[i] != want[i] {
				n++
			}
		}
		total += s.Filesz
	}
	return n, fmt.Sprintf("of %d", total), nil
}

// handlerFigures hold the handlers of the own process against their bars.
func handlerFigures(cells []cell) []figure {
	var out []figure
	for _, x := range []struct {
		row, what string
		bar       float64
	}{{"k", "atomic handler, by jump", barAtomic}, {rowSleepable, "sleepable handler, by jump", barSleepable}} {
		for _, c := range cells {
			if c.Where == whereSelf && c.Row == x.row && c.Tactic == "jump" && c.known() {
				f := figure{What: x.what, Where: whereSelf, Unit: "ns", Bar: x.bar, AtMost: true}
				f.set(c.NS)
				out = append(out, f)
			}
		}
	}
	return out
}
