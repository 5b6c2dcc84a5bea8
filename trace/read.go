package trace

import (
	"bufio"
	"errors"
	"io"
	"runtime"
	"sync"
	"time"

	"kprobes.dev/kprobes/event"
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
func (r *registry) read() {
	if r.reading != nil {
		return
	}
	now := &reading{stop: make(chan struct{})}
	r.reading = now
	gone, pending := make(chan struct{}), make(chan struct{}, 1)
	now.done.Go(func() { r.pollUntil(now.stop, gone, pending) })
	now.done.Go(func() { r.follow(now.stop, gone, pending) })
}

// stopReading ends the goroutines; what was recorded by then is read.
func (r *registry) stopReading() {
	if r.reading == nil {
		return
	}
	close(r.reading.stop)
	r.reading.done.Wait()
	r.reading = nil
	r.drain()
}

// drain reads what has been recorded until now.
func (r *registry) drain() {
	if !r.recorded() {
		return
	}
	r.poll() // what lies in the ring of a target with a clock of its own waits from when it was seen
	time.Sleep(records.SettleTime)
	r.poll()
	r.pollMu.Lock()
	defer r.pollMu.Unlock()
	r.shared.Losses(true, r.lost)
}

// recorded says whether anything may have been recorded.
func (r *registry) recorded() bool {
	r.pollMu.Lock()
	defer r.pollMu.Unlock()
	return len(r.armings) > 0
}

// pollUntil reads records until it is told to stop, or the target has gone, and tells when Sync should be
// called now.
func (r *registry) pollUntil(stop, gone <-chan struct{}, pending chan<- struct{}) {
	idle := time.NewTimer(0)
	defer idle.Stop()
	pause := pollMin
	for {
		select {
		case <-stop:
			return
		case <-gone:
			r.poll()
			return
		case <-idle.C:
		}
		pause = min(2*pause, pollMax)
		if r.poll() > 0 {
			pause = pollMin
		}
		if r.core.Stats().Pending {
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
func (r *registry) follow(stop <-chan struct{}, gone chan<- struct{}, pending <-chan struct{}) {
	look := time.NewTimer(0)
	defer look.Stop()
	for {
		select {
		case <-stop:
			return
		case <-pending:
		case <-look.C:
		}
		err := r.shared.Follow()
		if errors.Is(err, target.ErrGone) {
			close(gone)
			return
		}
		r.first.note(err)
		r.names.forget()
		look.Reset(syncEvery)
	}
}

// poll gives the records that are there to the instances that have armed their events and returns how many there were.
func (r *registry) poll() int {
	r.pollMu.Lock()
	defer r.pollMu.Unlock()
	r.names.begin()
	var last *hit.Event // of the hit before, and what has armed it
	var of *arming
	tid := -1
	n := r.shared.Poll(func(h *hit.Hit) {
		if h.TID != tid {
			tid = h.TID
			r.names.saw(tid)
		}
		r.latest = max(r.latest, h.Nanos)
		if h.Event != last {
			last, of = h.Event, r.armings[h.Event.Def]
		}
		if of != nil {
			of.take(h)
		}
	}, !r.triggered)
	r.shared.Losses(false, r.lost)
	if n == 0 {
		return 0
	}
	r.names.look()
	for _, in := range r.woken {
		in.woken = false
		in.buf.Wake()
	}
	clear(r.woken)
	r.woken = r.woken[:0]
	return n
}

// lost tells an instance of records of its event that found the target's ring full. Those of hits that would not have been shown count as others
// do where a filter decides that when they are read. Precondition: pollMu is held.
func (r *registry) lost(d *event.Def, cpu int, hits uint64) {
	a := r.armings[d]
	if a == nil {
		return
	}
	in := a.in
	in.ringLost += hits
	if in.on.Load() && in.taken(cpu) && (!a.state.live || !in.set.State(a.probe.group, a.probe.name).SoftDisabled) {
		in.buf.RingLost(cpu, hits)
	}
}

// now is the time on the clock of the records, in nanoseconds: where that can not be read here, that of the latest record.
func (r *registry) now() uint64 {
	if r.core == nil || r.core.Target().Capabilities().Clocked == nil {
		return monotonic()
	}
	r.pollMu.Lock()
	defer r.pollMu.Unlock()
	return r.latest
}

// WriteTrace writes the file trace: the records that are in the buffer, oldest first, which
// stay there.
func (in *Instance) WriteTrace(w io.Writer) error { return in.writeTrace(w, in.buf, AllCPUs) }

// writeTrace writes what a buffer has of a CPU, or of all.
func (in *Instance) writeTrace(w io.Writer, buf *buffer, cpu int) error {
	in.drain()
	s, hits := buf.Look(cpu)
	lost := s.RingLost
	if buf == in.buf && cpu == AllCPUs {
		in.mu.Lock()
		lost += in.elsewhere() - in.before
		in.mu.Unlock()
	}
	bw := bufio.NewWriter(w)
	p := in.printer()
	if _, err := bw.WriteString(p.Header(s.Entries, s.Written+lost, in.cpus())); err != nil {
		return err
	}
	var line []byte
	for h := range hits {
		line = p.Text(line[:0], h)
		if _, err := bw.Write(line); err != nil {
			return err
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
	in.buf.Clear(AllCPUs)
	in.before = in.elsewhere()
}

// cpus is the number of CPUs that the target runs on; of no target, this machine's.
func (r *registry) cpus() int {
	if r.core == nil {
		return runtime.NumCPU()
	}
	if cpus := r.core.Target().Capabilities().CPUs; cpus != nil {
		return cpus()
	}
	return runtime.NumCPU()
}

// elsewhere counts the instance's records that the kernel has lost for it, of watchpoints and uprobes: it does not tell their CPU.
func (in *Instance) elsewhere() uint64 {
	all := in.losses()
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	return all - min(in.ringLost, all)
}

// losses counts the instance's records that found the target's ring full, or the kernel's rings that it reads.
func (in *Instance) losses() uint64 {
	n := in.gone
	for _, a := range in.made {
		n += in.core.Counts(a.event).Lost
	}
	return n
}
