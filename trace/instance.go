package trace

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

// Options are the choices of New; nil means the defaults.
type Options struct {
	// BufferSize bounds what is kept for WriteTrace and WritePipe, in bytes; 0:
	// trace.DefaultBuffer.
	BufferSize int
	// Comm gives the name of a thread of the target, "" if it has none any more. Nil: the
	// one that /proc/TID/comm tells, which is right for targets of our own pid namespace.
	Comm func(tid int) string
}

// Instance is a trace instance.
type Instance struct {
	core   *kprobes.Core
	names  *names
	buf    *Buffer
	log    ErrorLog
	on     atomic.Bool     // records go to the buffer
	life   context.Context // ends with the instance
	end    context.CancelFunc
	pollMu sync.Mutex // held while the Core's records are read

	mu      sync.Mutex
	probes  []*probe // in the order of their definition
	entries map[string]*entry
	ids     map[int]bool // those of entries
	lastID  int          // the one that was given out last
	namer   event.Namer
	reading *reading // nil while no event is enabled
	before  uint64   // records that the target had lost when the buffer was last cleared
}

// entry is an event: one or several probes that go by one name and have one format.
type entry struct {
	group, name string
	id          int
	on          bool
	probes      []*probe // at least one
	filter      string   // what hits must pass to be recorded; "": nothing
	shown       string   // what the file filter holds; "": none
}

// key is what Instance.entries has an event under.
func key(group, name string) string { return group + "/" + name }

// probe is one definition.
type probe struct {
	*entry
	def *event.Def // with its name
	// What the Core made of it each time that it was enabled; the last is armed if the
	// event is on.
	made []*kprobes.Event
}

// New makes an instance without events on a Core, which must outlive it.
func New(core *kprobes.Core, o *Options) *Instance {
	if o == nil {
		o = &Options{}
	}
	in := &Instance{
		core: core, names: newNames(core, o.Comm), buf: NewBuffer(o.BufferSize),
		entries: map[string]*entry{}, ids: map[int]bool{},
	}
	in.on.Store(true)
	in.life, in.end = context.WithCancel(context.Background())
	return in
}

// Core is the registry that the instance's events are armed in.
func (in *Instance) Core() *kprobes.Core { return in.core }

// Close disables and deletes all events and ends all WritePipes.
func (in *Instance) Close() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.end()
	in.buf.rouse()
	err := in.disable(in.probes)
	if err == nil {
		in.drop(in.probes)
	}
	return err
}

// SetTracing says whether records go to the buffer: tracing_on. Hits are counted all the
// same. What was hit before goes as it was said then. A Pipe that has read something ends where tracing is off.
func (in *Instance) SetTracing(on bool) {
	if in.on.Load() != on {
		in.drain()
	}
	in.on.Store(on)
	in.buf.rouse()
}

// Tracing tells what SetTracing said; true at first.
func (in *Instance) Tracing() bool { return in.on.Load() }

// ErrorLog gives the text of error_log.
func (in *Instance) ErrorLog() string { return in.log.String() }

// ClearErrorLog empties it.
func (in *Instance) ClearErrorLog() { in.log.Clear() }

// note logs what was said about definitions and filters.
func (in *Instance) note(err error) {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // an entry without its time is better than none
	for _, entry := range logEntriesOf(err) {
		in.log.Add(uint64(ts.Nano()), entry)
	}
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
	return nil
}
