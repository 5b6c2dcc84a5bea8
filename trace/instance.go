package trace

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/hit"
)

// Options are the choices of New; nil means the defaults.
type Options struct {
	// BufferSize bounds what is kept of each CPU for WriteTrace and WritePipe, in bytes; 0:
	// trace.DefaultBuffer.
	BufferSize int
	// Comm gives the name of a thread of the target, "" if it has none any more. Nil: the
	// one that /proc/TID/comm tells, which is right for targets of our own pid namespace.
	Comm func(tid int) string
	// Shared is set where others use the Core too. Nil: nobody else reads its records.
	Shared Shared
}

// Shared is the part of a Core that one of several users has. Its methods may be called by several goroutines.
type Shared interface {
	// User is the user's number: event.Def.User of its definitions.
	User() uint32
	// Poll gives the records of the user's events, as Core.Poll does those of all. fast: f takes no longer than a copy of the record.
	Poll(f func(*kprobes.Hit), fast bool) int
	// Losses tells of records of the user's events that found the target's ring full, by definition and CPU, and that it has not told of
	// before: of those that Poll has come upon, or of all. f must not call the Core.
	Losses(all bool, f func(d *event.Def, cpu int, records uint64))
	// Follow is Core.Sync.
	Follow() error
}

// sole is a Core that nobody else uses.
type sole struct{ *kprobes.Core }

func (sole) User() uint32    { return 0 }
func (s sole) Follow() error { return s.Sync() }
func (s sole) Poll(f func(*kprobes.Hit), _ bool) int {
	return s.Core.Poll(f)
}

func (s sole) Losses(all bool, f func(d *event.Def, cpu int, records uint64)) {
	engine.Of(s.Core).Losses(all, f)
}

// Instance is a trace instance.
type Instance struct {
	*registry
	name string // "": that of New
	buf  *buffer
	log  ErrorLog
	on   atomic.Bool            // records go to the buffer
	skip atomic.Pointer[[]bool] // CPUs whose records do not; nil: none
	fill atomic.Int32           // how full a CPU's buffer is to be for who polls it, in percent
	life context.Context        // ends with the instance
	end  context.CancelFunc
	use  users

	optMu   sync.Mutex
	opts    map[Option]bool
	stacked atomic.Bool // OptionStacktrace is on

	onlyPIDs, notPIDs map[int]bool // whose hits are taken, and not taken; of pollMu
	snap              *buffer      // nil: there is none; of pollMu
	woken             bool         // it is one of registry.woken
	ringLost          uint64       // records that found the target's ring full; of pollMu

	states  map[*entry]*state
	set     *hit.Triggers // of pollMu
	missing *missing      // what the set needed last, and was not there
	made    []*arming
	before  uint64 // elsewhere, when the buffer was last cleared
	gone    uint64 // records that were lost of probes that have been deleted
}

// state is how an event stands in an instance. The zero value is that of one that is not enabled.
type state struct {
	on     bool   // of an event that is not live: it is enabled
	armed  bool   // it is in the target
	live   bool   // the set knows it, and how it stands; of pollMu
	all    bool   // hits are to come whatever the filter says
	stack  int    // callers that hits have for triggers
	filter string // what hits must pass to be recorded; "": nothing
	shown  string // what the file filter holds; "": none
}

// New makes an instance without events on a Core, which must outlive it.
func New(core *kprobes.Core, o *Options) *Instance {
	if o == nil {
		o = &Options{}
	}
	shared := o.Shared
	if shared == nil {
		shared = sole{core}
	}
	r := &registry{
		core: core, shared: shared, names: newNames(core, o.Comm), instances: map[string]*Instance{}, entries: map[string]*entry{}, ids: map[int]bool{},
		armings: map[*event.Def]*arming{}, living: map[*Instance]bool{}, lines: map[*event.Synthetic]*hit.Event{},
	}
	in := newInstance(r, "", o.BufferSize)
	r.first, r.instances[""] = in, in
	return in
}

// Core is the registry that the instance's events are armed in.
func (in *Instance) Core() *kprobes.Core { return in.core }

var errClosed = errno.Errorf(unix.ESHUTDOWN, "the trace instance is closed")

// Close disables all events and ends all WritePipes. Close of the instance that New has made ends those that NewInstance has made, and
// deletes all events.
func (in *Instance) Close() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.end()
	in.buf.Rouse()
	if in.name != "" {
		return in.leave()
	}
	for _, o := range in.each() {
		if o == in {
			continue
		}
		if err := o.leave(); err != nil {
			return err
		}
	}
	err := in.silence()
	if err == nil {
		in.dropSynthetics(in.order)
		in.drop(in.probes)
	}
	return err
}

// silence takes all triggers away and disables all events.
func (in *Instance) silence() error {
	if err := in.disarm(probesOf(in.order)); err != nil {
		return err
	}
	in.drain()
	in.pollMu.Lock()
	in.set.Close()
	for _, e := range in.order {
		if in.state(e).live {
			_ = in.set.SetEnabled(e.group, e.name, false) // it needs less
		}
	}
	in.pollMu.Unlock()
	return in.takeOut(in.order)
}

// state is how an event stands.
func (in *Instance) state(e *entry) *state {
	s := in.states[e]
	if s == nil {
		s = &state{live: e.synthetic != nil}
		in.states[e] = s
	}
	return s
}

// arming is what has put a probe into the target; nil: it is not in there.
func (in *Instance) arming(p *probe) *arming {
	for i := len(in.made) - 1; i >= 0; i-- {
		if a := in.made[i]; a.probe == p {
			if a.ended {
				return nil
			}
			return a
		}
	}
	return nil
}

// SetTracing says whether records go to the buffer: tracing_on. Hits are counted all the
// same. What was hit before goes as it was said then. A Pipe that has read something ends where tracing is off.
func (in *Instance) SetTracing(on bool) {
	if in.on.Load() != on {
		in.drain()
	}
	in.pollMu.Lock()
	in.set.SetTracing(on)
	in.on.Store(on)
	in.pollMu.Unlock()
	in.buf.Rouse()
}

// Tracing tells what SetTracing, or a trigger, said last; true at first.
func (in *Instance) Tracing() bool {
	in.drain()
	return in.on.Load()
}

// ErrorLog gives the text of error_log.
func (in *Instance) ErrorLog() string { return in.log.String() }

// ClearErrorLog empties it.
func (in *Instance) ClearErrorLog() { in.log.Clear() }

// note logs what was said about definitions and filters.
func (in *Instance) note(err error) {
	now := monotonic()
	for _, entry := range logEntriesOf(err) {
		in.log.Add(now, entry)
	}
}

// monotonic is the time of CLOCK_MONOTONIC in nanoseconds.
func monotonic() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // it can not fail
	return uint64(ts.Nano())
}

// logEntriesOf finds what error_log says of the errors in a tree of errors: of some nothing, as in the kernel.
func logEntriesOf(err error) (out []string) {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range many.Unwrap() {
			out = append(out, logEntriesOf(err)...)
		}
		return out
	}
	var def *event.Error
	var filter *event.FilterError
	switch {
	case errors.As(err, &def):
		if !def.Logged() {
			return nil
		}
		return []string{def.Detail()}
	case errors.As(err, &filter):
		return []string{filter.LogEntry()}
	}
	var entry interface{ LogEntry() string }
	if errors.As(err, &entry) && entry.LogEntry() != "" {
		return []string{entry.LogEntry()}
	}
	return nil
}
