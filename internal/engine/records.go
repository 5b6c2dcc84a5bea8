package engine

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/trace"
)

// records reads what the probes of a target have recorded. It has a lock of its own and takes no other
// one, so that a reader never waits for a change of probes. A change takes the lock after Core.mu, and
// only to open and to close the records.
type records struct {
	t      target.Target
	can    target.Capabilities
	shown  viewTable
	loaded atomic.Bool // a record said that the loader waits for Sync
	// What the reader has told of records that belong to no event, when records were read last: see Stats.
	dead, corrupt atomic.Uint64

	mu     sync.Mutex // held while records are read
	reader *ring.Reader
	clock  clock
	early  earlyHits
	tasks  native.KernelTasks
}

// view is an event as its records show it. It does not change once it is published.
type view struct {
	event   *Event
	trace   trace.Event
	unknown bool // the records are those of exits whose value is not known
}

// viewTable has the views of events by number. One is published before the code that writes such
// records is armed.
type viewTable struct {
	pages [ring.MaxEvents / viewPage]atomic.Pointer[[viewPage]atomic.Pointer[view]]
}

// viewPage is the number of views that are allocated at once.
const viewPage = 1024

// get gives the view of a number; nil if there is none.
func (v *viewTable) get(id int) *view {
	if id < 0 || id >= ring.MaxEvents {
		return nil
	}
	if p := v.pages[id/viewPage].Load(); p != nil {
		return p[id%viewPage].Load()
	}
	return nil
}

// set publishes a view. Only one goroutine at a time may call it.
func (v *viewTable) set(id int, to *view) {
	p := &v.pages[id/viewPage]
	if p.Load() == nil {
		p.Store(new([viewPage]atomic.Pointer[view]))
	}
	p.Load()[id%viewPage].Store(to)
}

// show publishes how records of an event that has its numbers are to be read, and tells the reader which
// sizes they have. Precondition: Core.mu is held.
func (rs *records) show(e *Event) error {
	if e.Prog == nil {
		return nil
	}
	w := rs.t.CodegenEnv()
	lo, hi := e.sizes(w)
	for _, id := range []int{e.ID, e.tail} {
		if id < 0 {
			continue
		}
		rs.shown.set(id, &view{event: e, unknown: id == e.tail, trace: trace.Event{
			Group: e.Group, Name: e.Name, Return: e.Def.Kind == event.Return,
			Addr: e.Place.Addr, Prog: e.Prog, ArgsOff: e.argsOffset(w),
		}})
		if err := rs.reader.Allow(uint32(id), lo, hi); err != nil {
			return err
		}
	}
	return nil
}

// open makes the reader of the target's ring, and its clock, once. Precondition: Core.mu is held.
func (rs *records) open() error {
	if rs.reader != nil {
		return nil
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.tasks.Kernel = rs.t.CodegenEnv().Kernel
	if t := rs.can.Clocked; t != nil {
		rs.clock = &ownClock{t: t}
		rs.reader = ring.NewReader(rs.t.Ring(), &ring.ReaderConfig{Hold: holdRecords})
		return nil
	}
	k, err := ring.NewClock(ring.SourceTSC)
	if err != nil {
		return err
	}
	rs.clock = counterClock{k}
	rs.reader = ring.NewReader(rs.t.Ring(), nil)
	return nil
}

// poll reads the records that are there, in the order of their times, and returns how many.
func (rs *records) poll(f func(*trace.Hit)) int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.reader == nil {
		return 0
	}
	if err := rs.clock.sync(); err != nil {
		return 0
	}
	now := rs.reader.Now() // all that is older by the reader's margin can be read from here on
	rs.early.add(rs.uprobeHits(), time.Now())
	n, until := rs.reader.PollAt(now, rs.hits(func(h *trace.Hit) {
		rs.early.give(h.Nanos, f)
		f(h)
	}))
	rs.damaged()
	rs.early.give(rs.early.limit(rs.clock, until), f)
	return n + rs.early.taken()
}

// close closes the target, and reads all that is left: no probe is armed any more and no thread can
// be in generated code. What a writer that was killed had reserved is given up then. Precondition: Core.mu
// is held.
func (rs *records) close(f func(*trace.Hit)) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.early.add(rs.uprobeHits(), time.Now())
	err := rs.t.Close()
	if rs.reader != nil {
		take := rs.hits(func(h *trace.Hit) {
			rs.early.give(h.Nanos, f)
			f(h)
		})
		rs.reader.Drain(take)
		if len(rs.reader.Stalls()) > 0 {
			rs.reader.Reap(rs.reader.Mark())
			rs.reader.Drain(take)
		}
		rs.damaged()
	}
	rs.early.give(^uint64(0), f)
	return err
}

// damaged notes what the reader tells of damage. Precondition: mu is held.
func (rs *records) damaged() {
	s := rs.reader.Stats()
	rs.dead.Store(s.Dead)
	rs.corrupt.Store(s.Corrupt)
}

// hits makes trace.Hits of ring records. Precondition: mu is held.
func (rs *records) hits(f func(*trace.Hit)) func(ring.Record) {
	w := rs.t.CodegenEnv()
	stubs := rs.can.ReturnReplacer
	var h trace.Hit
	return func(r ring.Record) {
		v := rs.shown.get(int(r.Event))
		if v == nil {
			return
		}
		if v.event.internalProbe {
			rs.loaded.Store(true)
			return
		}
		h.Event, h.Unknown, h.Caller = &v.trace, v.unknown, 0 // all else that a target's hits have is set for each
		h.Nanos, h.CPU, h.TID, h.Rec = rs.clock.nanos(r.TSC, r.CPU), r.CPU, int(r.TID), r.Bytes
		off := ring.RecHeader
		switch {
		case w.Go != nil:
			h.GoID = binary.LittleEndian.Uint64(r.Bytes[off:])
			off += 8
		case w.Kernel != nil:
			h.Comm, h.Context, _ = rs.tasks.Read(r.Bytes)
			off = native.KernelRecord
		}
		if v.trace.Return {
			h.Caller = binary.LittleEndian.Uint64(r.Bytes[off:])
			if stubs != nil {
				h.Caller = stubs.Caller(h.Caller)
			}
		}
		v.event.read.Add(1)
		f(&h)
	}
}

// uprobeHits reads what the kernel's probes have recorded, in no order. Precondition: mu is held.
func (rs *records) uprobeHits() []trace.Hit {
	var out []trace.Hit
	rs.t.Uprobes(func(r *target.UprobeRecord) {
		v := rs.shown.get(r.Event)
		if v == nil {
			return
		}
		v.event.read.Add(1)
		h := trace.Hit{Event: &v.trace, Nanos: r.Nanos, CPU: r.CPU, TID: r.TID, Rec: slices.Clone(r.Bytes)}
		if rs.t.CodegenEnv().Kernel != nil {
			h.Comm, h.Context, _ = rs.tasks.Read(r.Bytes)
		}
		out = append(out, h)
	})
	return out
}
