package trace

import (
	"bufio"
	"errors"
	"io"
	"runtime"
	"sync"
	"time"

	"kprobes.dev/kprobes/internal/engine/records"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/target"
)

// reading are the goroutines that read the Core's records while events are enabled, and follow what the
// target has mapped.
type reading struct {
	stop chan struct{}
	done sync.WaitGroup
}

// The pause between two looks at the ring grows from pollMin while nothing comes. It is
// never left out: in the own process what reads records may itself be probed.
const (
	pollMin   = time.Millisecond
	pollMax   = 16 * time.Millisecond
	syncEvery = 50 * time.Millisecond // between two looks at what the target has mapped
)

// read starts the goroutines if they do not run.
func (in *Instance) read() {
	if in.reading != nil {
		return
	}
	r := &reading{stop: make(chan struct{})}
	in.reading = r
	gone, pending := make(chan struct{}), make(chan struct{}, 1)
	r.done.Go(func() { in.pollUntil(r.stop, gone, pending) })
	r.done.Go(func() { in.follow(r.stop, gone, pending) })
}

// stopReading ends the goroutines; what was recorded by then is read.
func (in *Instance) stopReading() {
	if in.reading == nil {
		return
	}
	close(in.reading.stop)
	in.reading.done.Wait()
	in.reading = nil
	in.drain()
}

// drain reads what has been recorded until now.
func (in *Instance) drain() {
	in.poll() // what lies in the ring of a target with a clock of its own waits from when it was seen
	time.Sleep(records.SettleTime)
	in.poll()
}

// pollUntil reads records until it is told to stop, or the target has gone, and tells when Sync should be
// called now.
func (in *Instance) pollUntil(stop, gone <-chan struct{}, pending chan<- struct{}) {
	idle := time.NewTimer(0)
	defer idle.Stop()
	pause := pollMin
	for {
		select {
		case <-stop:
			return
		case <-gone:
			in.poll()
			return
		case <-idle.C:
		}
		pause = min(2*pause, pollMax)
		if in.poll() > 0 {
			pause = pollMin
		}
		if in.core.Stats().Pending {
			select {
			case pending <- struct{}{}:
			default:
			}
		}
		idle.Reset(pause)
	}
}

// follow follows what the target has mapped until it is told to stop; it closes gone if the target has
// gone. A change can take long, so records are read by another goroutine.
func (in *Instance) follow(stop <-chan struct{}, gone chan<- struct{}, pending <-chan struct{}) {
	look := time.NewTimer(0)
	defer look.Stop()
	for {
		select {
		case <-stop:
			return
		case <-pending:
		case <-look.C:
		}
		err := in.core.Sync()
		if errors.Is(err, target.ErrGone) {
			close(gone)
			return
		}
		in.note(err)
		in.names.forget()
		look.Reset(syncEvery)
	}
}

// poll moves the records that are there into the buffer and returns how many there were.
func (in *Instance) poll() int {
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	in.names.begin()
	n := in.core.Poll(func(h *hit.Hit) {
		in.names.saw(h.TID)
		if in.on.Load() {
			in.buf.Add(h)
		}
	})
	if n > 0 {
		in.names.look()
		in.buf.Wake()
	}
	return n
}

// WriteTrace writes the file trace: the records that are in the buffer, oldest first, which
// stay there.
func (in *Instance) WriteTrace(w io.Writer) error {
	in.drain()
	in.mu.Lock()
	lost := in.lost() - in.before
	in.mu.Unlock()
	runs, written := in.buf.Hits()
	n := 0
	for _, hits := range runs {
		n += len(hits)
	}
	bw := bufio.NewWriter(w)
	if _, err := bw.WriteString(hit.HeaderOf(uint64(n), written+lost, in.cpus())); err != nil {
		return err
	}
	p := hit.Printer{Names: in.names}
	var line []byte
	for _, hits := range runs {
		for i := range hits {
			line = p.Text(line[:0], &hits[i])
			if _, err := bw.Write(line); err != nil {
				return err
			}
		}
	}
	return bw.Flush()
}

// Clear empties the buffer, as a truncation of trace does.
func (in *Instance) Clear() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.drain()
	in.clear()
}

func (in *Instance) clear() {
	in.buf.Clear()
	in.before = in.lost()
}

// cpus is the number of CPUs that the target runs on.
func (in *Instance) cpus() int {
	if cpus := in.core.Target().Capabilities().CPUs; cpus != nil {
		return cpus()
	}
	return runtime.NumCPU()
}

// lost counts the records that found the target's ring full.
func (in *Instance) lost() uint64 {
	var n uint64
	for _, p := range in.probes {
		n += in.counts(p).Lost
	}
	return n
}
