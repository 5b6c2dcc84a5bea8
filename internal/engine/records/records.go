// Package records reads what the probes of a target have recorded, in the order of their times.
package records

import (
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/target"
)

// Reader reads the records of a target. It has a lock of its own and takes no other one, so that who reads never waits for a
// change of probes. Show, Open and Close are called by one goroutine at a time.
type Reader struct {
	// Comm gives the name of a thread, for filters; nil: records have it, or nobody knows it. It is set before records are read.
	Comm func(tid int) string

	t     target.Target
	can   target.Capabilities
	views viewTable
	// waits: a thread of the target waits for an answer.
	waits atomic.Bool
	// What the ring's reader has told of records that belong to no event, when records were read last.
	dead, corrupt atomic.Uint64

	mu     sync.Mutex // held while records are read
	reader *ring.Reader
	clock  clock
	early  earlyHits
	tasks  native.KernelTasks
	values []fetch.Value // of the record that a filter looks at
}

// New makes a reader. Until Open it has nothing to read.
func New(t target.Target) *Reader { return &Reader{t: t, can: t.Capabilities()} }

// View is an event as its records show it. It does not change once it is shown.
type View struct {
	Event   hit.Event
	Unknown bool           // the records are those of exits whose value is not known
	Left    bool           // likewise, and of calls that were left without a return
	Read    *atomic.Uint64 // counts the records
	// Filter is what a record must pass to be given out, nil: all are. Filtered counts those that do not. InCode: records of
	// the ring have passed it already.
	Filter   *fetch.Filter
	InCode   bool
	Filtered *atomic.Uint64
	// Counts: there are no records, and what is counted as lost are hits that do not pass the filter.
	Counts bool
	// Take, if not nil, is given the records, and who reads is not.
	Take func(*hit.Hit)
	// Waits: the record says that a thread of the target waits for an answer, and is given to nobody.
	Waits bool
}

// viewTable has the views of events by number. One is published before the code that writes such
// records is armed.
type viewTable struct {
	pages [ring.MaxEvents / viewPage]atomic.Pointer[[viewPage]atomic.Pointer[View]]
}

// viewPage is the number of views that are allocated at once.
const viewPage = 1024

// get gives the view of a number; nil if there is none.
func (v *viewTable) get(id int) *View {
	if id < 0 || id >= ring.MaxEvents {
		return nil
	}
	if p := v.pages[id/viewPage].Load(); p != nil {
		return p[id%viewPage].Load()
	}
	return nil
}

// set publishes a view. Only one goroutine at a time may call it.
func (v *viewTable) set(id int, to *View) {
	p := &v.pages[id/viewPage]
	if p.Load() == nil {
		p.Store(new([viewPage]atomic.Pointer[View]))
	}
	p.Load()[id%viewPage].Store(to)
}

// Show publishes how the records with a number are to be read, and tells the reader which sizes they have, in bytes.
// Precondition: it is open.
func (rs *Reader) Show(id, lo, hi int, v *View) error {
	rs.views.set(id, v)
	return rs.reader.Allow(uint32(id), lo, hi)
}

// Waits says whether a thread of the target waits for an answer.
func (rs *Reader) Waits() bool { return rs.waits.Load() }

// SetWaits notes whether one does, and says whether one did.
func (rs *Reader) SetWaits(waits bool) bool { return rs.waits.Swap(waits) }

// Open makes the reader of the target's ring, and its clock, once. Precondition: the target is prepared.
func (rs *Reader) Open() error {
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

// Tick is the length of a tick of the records' clock in nanoseconds, as a number with 32 bits behind the point. Precondition: it is open.
func (rs *Reader) Tick() (uint64, error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.clock.tick()
}

// Poll reads the records that are there, in the order of their times, and returns how many.
func (rs *Reader) Poll(f func(*hit.Hit)) int {
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
	take, counted := rs.hits(func(h *hit.Hit) {
		rs.early.give(h.Nanos, f)
		f(h)
	})
	n, until := rs.reader.PollAt(now, take)
	counted()
	rs.damaged()
	rs.early.give(rs.early.limit(rs.clock, until), f)
	return n + rs.early.taken()
}

// Losses tells of records that found the target's ring full, by definition and CPU, and that it has not told of before: of those that Poll has come
// upon, or of all. f must not call the reader.
func (rs *Reader) Losses(all bool, f func(d *event.Def, cpu int, records uint64)) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.reader == nil {
		return
	}
	rs.reader.Losses(all, func(event uint32, cpu int, records uint64) {
		if v := rs.views.get(int(event)); v != nil && !v.Counts && !v.Waits {
			f(v.Event.Def, cpu, records)
		}
	})
}

// Forget has Losses begin anew with a number whose counters have been cleared, since it is to be used again. Precondition: it is open.
func (rs *Reader) Forget(id int) {
	rs.mu.Lock()
	rs.reader.Forget(id)
	rs.mu.Unlock()
}

// Close closes the target, and reads all that is left: no probe is armed any more and no thread can
// be in generated code. What a writer that was killed had reserved is given up then.
func (rs *Reader) Close(f func(*hit.Hit)) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.early.add(rs.uprobeHits(), time.Now())
	err := rs.t.Close()
	if rs.clock != nil {
		_ = rs.clock.sync() // without it times are less exact
	}
	if rs.reader != nil {
		take, counted := rs.hits(func(h *hit.Hit) {
			rs.early.give(h.Nanos, f)
			f(h)
		})
		rs.reader.Drain(take)
		if len(rs.reader.Stalls()) > 0 {
			rs.reader.Reap(rs.reader.Mark())
			rs.reader.Drain(take)
		}
		counted()
		rs.damaged()
	}
	rs.early.give(^uint64(0), f)
	return err
}

// Damage tells of records that belong to no event: given up with a writer that was killed in the middle of one, and
// places where the shared memory held what no writer writes. It waits for nobody.
func (rs *Reader) Damage() (dead, corrupt uint64) { return rs.dead.Load(), rs.corrupt.Load() }

// damaged notes what the ring's reader tells of damage. Precondition: mu is held.
func (rs *Reader) damaged() {
	s := rs.reader.Stats()
	rs.dead.Store(s.Dead)
	rs.corrupt.Store(s.Corrupt)
}

// hits makes hits of ring records. What take has read counts once counted is called: a locked addition for each record
// would cost as much as the rest of reading it. Precondition: mu is held.
func (rs *Reader) hits(f func(*hit.Hit)) (take func(ring.Record), counted func()) {
	w := rs.t.CodegenEnv()
	stubs := rs.can.ReturnReplacer
	var h hit.Hit
	var last *View // whose records were read last, n of them
	var n uint64
	counted = func() {
		if n > 0 {
			last.Read.Add(n)
			n = 0
		}
	}
	take = func(r ring.Record) {
		v := rs.views.get(int(r.Event))
		if v == nil {
			return
		}
		if v.Waits {
			rs.waits.Store(true)
			return
		}
		h.Event, h.Unknown, h.Left, h.Caller = &v.Event, v.Unknown, v.Left, 0 // all else that a target's hits have is set for each
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
		if v.Event.Return {
			h.Caller = binary.LittleEndian.Uint64(r.Bytes[off:])
			if stubs != nil {
				h.Caller = stubs.Caller(h.Caller)
			}
		}
		if v.Filter != nil && !v.InCode && !rs.passes(v, &h) {
			return
		}
		if v != last {
			counted()
			last = v
		}
		n++
		if v.Take != nil {
			v.Take(&h)
			return
		}
		f(&h)
	}
	return take, counted
}

// passes says whether a record passes its event's filter, and counts it if not. One that is damaged passes: who shows it
// says so. Precondition: mu is held.
func (rs *Reader) passes(v *View, h *hit.Hit) bool {
	vs, err := v.Event.Prog.DecodeInto(rs.values[:0], h.Rec, v.Event.ArgsOff, h.Comm)
	rs.values = vs
	if err != nil {
		return true
	}
	h.Hide(vs)
	comm := h.Comm
	if comm == "" && rs.Comm != nil && v.Filter.Comm() {
		comm = rs.Comm(h.TID)
	}
	if v.Filter.Match(vs, &fetch.FilterHit{IP: h.Addr(), Ret: h.Caller, PID: uint64(h.TID), CPU: uint64(h.CPU), Comm: comm}) {
		return true
	}
	v.Filtered.Add(1)
	return false
}

// uprobeHits reads what the kernel's probes have recorded, in no order. Precondition: mu is held.
func (rs *Reader) uprobeHits() []hit.Hit {
	var out []hit.Hit
	rs.t.Uprobes(func(r *target.UprobeRecord) {
		v := rs.views.get(r.Event)
		if v == nil {
			return
		}
		h := hit.Hit{Event: &v.Event, Nanos: r.Nanos, CPU: r.CPU, TID: r.TID, IP: r.IP, Before: r.Before, Rec: r.Bytes}
		if rs.t.CodegenEnv().Kernel != nil {
			h.Comm, h.Context, _ = rs.tasks.Read(r.Bytes)
		}
		if v.Filter != nil && !rs.passes(v, &h) {
			return
		}
		v.Read.Add(1)
		h.Rec = slices.Clone(r.Bytes)
		out = append(out, h)
	})
	return out
}
