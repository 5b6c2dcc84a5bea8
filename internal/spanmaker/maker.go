package spanmaker

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spans"
	"kprobes.dev/kprobes/internal/spanset"
)

// Call is a definition whose calls become spans. A Maker changes it: each has Calls of its own (Clone).
type Call struct {
	// Def is a return probe. Its filter says which calls are spans.
	Def *event.Def
	// Names are the attributes that arguments become, by the arguments' names, where they differ.
	Names map[string]string
	// Kind is the kind of the spans; 0: server of a call that is in a span of another program, else internal.
	Kind otlp.Kind
	// Failing is the condition of calls that have failed; "": those of Go whose last result is an error that is not nil.
	Failing string
	// Set is the set that the call comes from; "": it was asked for by itself. A call of a set is left out where the program has not its function.
	Set   string
	Where string                 // of a set: FILE:LINE
	Or    map[string][]event.Arg // of a set: what stands for an argument that the program does not know
	// Entry and Return are the definitions that Define has made. Entry is nil where the return alone is recorded.
	Entry, Return *event.Def
}

// OfSet makes a call of one of a set.
func OfSet(set string, c *spanset.Call) *Call {
	one := OfProbe(c)
	one.Set, one.Where, one.Or = set, c.Where, c.Or
	return one
}

// OfProbe makes a call that is asked for by itself of one that is written as those of a set.
func OfProbe(c *spanset.Call) *Call {
	return &Call{Def: c.Def, Names: c.Names, Kind: c.Kind, Failing: c.Error}
}

// Clone gives a call for another Maker. Precondition: no Maker has the call.
func (c *Call) Clone() *Call {
	one, def := *c, *c.Def
	one.Def = &def
	return &one
}

// attribute is the attribute that an argument becomes.
func (c *Call) attribute(arg string) string { return cmp.Or(c.Names[arg], arg) }

// Words are what a user calls the parts of what is asked for. Errors and notices have them.
type Words struct {
	Set    string // a set
	Error  string // the condition of calls that have failed
	Errors string // that only calls that have failed become spans
}

// condition is what to do where it is not known which calls have failed.
func (w *Words) condition() string {
	return "give a condition, such as " + w.Error + " 'ret < 0', behind the probe"
}

// Notice says how much somebody should know what Options.Tell tells.
type Notice int

// Notices.
const (
	Detail Notice = iota // what is left out, and why
	Remark               // what spans will not have
	Defect               // what makes no spans though it was asked for
)

// Options of a Maker.
type Options struct {
	Words Words
	// Sample keeps one trace in so many; 0 and 1 keep all.
	Sample uint64
	// Slower has only calls become spans that take at least this long, and Errors only calls that have failed.
	Slower time.Duration
	Errors bool
	// Wait is how long a call waits for the one that it is in, with Slower and Errors.
	Wait time.Duration
	// Sets are those of which the program must have a function each.
	Sets []string
	// Add is how the calls of sets will be added; nil: by the defaults.
	Add *engine.AddOptions
	// Hidden are goroutines of a Go program whose calls are no spans, nor are those of goroutines that are created in them, and so on: of a
	// program that probes itself those that send its spans.
	Hidden []uint64
	// Names finds the names of threads and symbols.
	Names hit.Namer
	// Offset tells what a time of CLOCK_MONOTONIC becomes nanoseconds since 1970 by; nil: UnixOffset. A guest has a clock of its own.
	Offset func() int64
	// Begun is told at the first hit what times of hits become nanoseconds since 1970 by; nil: nobody is.
	Begun func(unix int64)
	// Emit takes a span, which belongs to it from then on.
	Emit func(*otlp.Span)
	// Tell takes what people should know, a line without its end.
	Tell func(what Notice, text string)
}

// filtered says whether most calls are stopped at their return.
func (o *Options) filtered() bool { return o.Slower > 0 || o.Errors }

// Maker makes spans of the calls of functions in one target.
type Maker struct {
	core    *engine.Core
	guest   bool // the target is a guest's kernel
	o       Options
	calls   []*Call
	missing map[string]error    // why the program has nothing of sets
	runtime map[*event.Def]role // of the probes on the runtime of Go
	probes  map[string]*spanProbe
	known   map[*hit.Event]*spanProbe
	joiner  *spans.Joiner // one of these
	nester  *spans.Nester
	values  []fetch.Value
	damaged uint64 // records
	unnamed uint64 // hits whose thread is not known
	begun   bool
	hidden  map[uint64]bool // goroutines whose calls are no spans
	hid     uint64          // calls of these
	// sampling is how the probes choose traces; nil: they do not. unsampled are calls of those that they have not kept.
	sampling  *engine.Sampling
	unsampled atomic.Uint64
	counted   atomic.Bool // unsampled is what it stays
}

// New makes a Maker for a target. The calls are its own from now on.
func New(core *engine.Core, calls []*Call, o *Options) *Maker {
	m := &Maker{core: core, guest: isGuest(core), o: *o, calls: calls, hidden: map[uint64]bool{}}
	for _, id := range o.Hidden {
		m.hidden[id] = true
	}
	return m
}

// isGuest says whether a target is a guest's kernel, which has a clock of its own.
func isGuest(core *engine.Core) bool { return core.Target().Capabilities().Clocked != nil }

// Calls are those that Define has left, in their order.
func (m *Maker) Calls() []*Call { return m.calls }

// Missing says of which sets Define has left nothing, and why.
func (m *Maker) Missing() map[string]error { return m.missing }

// detail tells what is left out.
func (m *Maker) detail(format string, args ...any) { m.tell(Detail, format, args...) }

// tell tells something.
func (m *Maker) tell(what Notice, format string, args ...any) {
	m.o.Tell(what, fmt.Sprintf(format, args...))
}

// Stats says what has become of calls.
type Stats struct {
	spans.Stats
	Damaged uint64 // records that could not be read
	Hidden  uint64 // calls of Options.Hidden
	Unnamed uint64 // hits of which it is not known whose call they are, since their thread is not
}

// Add adds what has become of other calls.
func (s *Stats) Add(o Stats) {
	s.Spans += o.Spans
	s.Errors += o.Errors
	s.Left += o.Left
	s.Unsampled += o.Unsampled
	s.Unjoined += o.Unjoined
	s.Unfollowed += o.Unfollowed
	s.Unread += o.Unread
	s.Active += o.Active
	s.Split += o.Split
	s.Damaged += o.Damaged
	s.Unnamed += o.Unnamed
	s.Hidden += o.Hidden
}

// Stats says what has become of calls until now.
func (m *Maker) Stats() (s Stats) {
	switch {
	case m.joiner != nil:
		s.Stats = m.joiner.Stats()
	case m.nester != nil:
		s.Stats = m.nester.Stats()
	}
	if m.o.Sample > 1 {
		s.Unsampled += m.unsampled.Load()
	} else {
		s.Unfollowed += m.unsampled.Load()
	}
	s.Damaged, s.Unnamed, s.Hidden = m.damaged, m.unnamed, m.hid
	return s
}

// Finish hands over what is held. Precondition: the last hit has been taken.
func (m *Maker) Finish() {
	if m.nester != nil {
		m.nester.Close()
	}
	m.Count()
}

// Count takes what the target has counted, which Finish does else. It is called before the target's memory is given back, behind the last hit but not behind
// its being taken, by any goroutine.
func (m *Maker) Count() {
	if m.sampling != nil && m.counted.CompareAndSwap(false, true) {
		m.unsampled.Store(m.core.Unsampled(m.sampling))
	}
}

// Resource describes a target by OpenTelemetry's semantic conventions. service is the name of the service, "" for that of the program;
// version that of the software that makes the spans. pid is 0 if no process is meant.
func Resource(core *engine.Core, service, version string, pid int) *otlp.Resource {
	name, exe, guest := "kernel", "", isGuest(core)
	if main := core.Target().Space().Main(); !guest && main != nil {
		name, exe = main.Name, main.Name
	}
	of := &otlp.Resource{Attrs: []otlp.Attr{
		{Key: "service.name", Value: cmp.Or(service, name)},
		{Key: "telemetry.sdk.name", Value: "kprobe"},
		{Key: "telemetry.sdk.version", Value: version},
	}}
	if host, err := os.Hostname(); err == nil && !guest {
		of.Attrs = append(of.Attrs, otlp.Attr{Key: "host.name", Value: host})
	}
	if exe != "" {
		of.Attrs = append(of.Attrs, otlp.Attr{Key: "process.executable.name", Value: exe})
	}
	if pid != 0 {
		of.Attrs = append(of.Attrs, otlp.Attr{Key: spans.AttrProcess, Value: int64(pid)})
	}
	return of
}

// AskedError says that what is asked for is wrong, whatever the program.
type AskedError struct{ Err error }

func (e *AskedError) Error() string { return e.Err.Error() }
func (e *AskedError) Unwrap() error { return e.Err }

// wrongf is an AskedError.
func wrongf(format string, args ...any) error { return &AskedError{fmt.Errorf(format, args...)} }

// isWrong says whether an error is one of what is asked for: also of a definition that turns out not to be of the language.
func isWrong(err error) bool {
	var asked *AskedError
	var bad *event.Error
	return errors.As(err, &asked) || errors.As(err, &bad) && bad.Code.Language()
}

// Reason is why a definition that the user has not written is refused, without its column.
func Reason(err error) error {
	var bad *event.Error
	if errors.As(err, &bad) {
		if bad.Err != nil {
			return bad.Err
		}
		return errors.New(bad.Text)
	}
	return err
}
