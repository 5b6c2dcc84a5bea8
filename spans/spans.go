package spans

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/mailbox"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spanmaker"
)

// Spans makes spans of the calls of some functions of a target. Its methods may be called by any goroutine.
type Spans struct {
	core   *kprobes.Core
	o      Options
	events []*kprobes.Event
	defs   map[*event.Def]bool

	exporter *otlp.Exporter // nil: spans go to Export alone
	began    chan bool      // tells the reading goroutine whether there is something to read
	stop     chan struct{}  // reading ends
	done     chan struct{}  // closed when it has
	closing  sync.Once
	closed   error // why Close failed

	mu     sync.Mutex // held while hits are taken
	maker  *spanmaker.Maker
	made   []*Span // for Export
	lost   uint64
	others uint64
}

// using are the Cores that have a Spans.
var using struct {
	mu    sync.Mutex
	cores map[*kprobes.Core]bool
}

// claim has a Core belong to one Spans, if it belongs to none.
func claim(core *kprobes.Core) error {
	using.mu.Lock()
	defer using.mu.Unlock()
	if using.cores[core] {
		return errors.New("the Core has spans already: close them first, or give all functions to one Start")
	}
	if using.cores == nil {
		using.cores = map[*kprobes.Core]bool{}
	}
	using.cores[core] = true
	return nil
}

func release(core *kprobes.Core) {
	using.mu.Lock()
	defer using.mu.Unlock()
	delete(using.cores, core)
}

// Start arms probes at the entries and the returns of functions, all of them or none, and makes spans of their calls until Close. Each probe is
//
//	FUNC [FETCHARGS] [--if FILTER] [--error FILTER] [--kind KIND]
//	r[MAXACTIVE]:NAME FUNC [FETCHARGS] …
//
// as docs/kprobe-spans.md has it: which arguments and results become attributes, which calls are spans, which have failed. The name of an
// argument may have dots. FUNC may be a pattern, of which functions that can not be probed are left out.
//
// The error says what is wrong with the options, the probes or the sets; an *event.Error in its chain has the column. Then nothing is armed.
func Start(core *kprobes.Core, o *Options, probes ...string) (*Spans, error) {
	s, err := start(core, o, probes)
	if err != nil {
		return nil, fmt.Errorf("spans: %w", err)
	}
	return s, nil
}

func start(core *kprobes.Core, o *Options, probes []string) (*Spans, error) {
	switch {
	case core == nil:
		return nil, errors.New("the Core is nil: give what kprobes.Self or kprobes.Open returns")
	case o == nil:
		o = &Options{}
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	calls, err := o.calls(probes)
	if err != nil {
		return nil, err
	}
	if err := claim(core); err != nil {
		return nil, err
	}
	s := &Spans{core: core, o: *o, defs: map[*event.Def]bool{}, began: make(chan bool), stop: make(chan struct{}), done: make(chan struct{})}
	if err := s.arm(calls); err != nil {
		release(core)
		return nil, err
	}
	return s, nil
}

// arm arms the probes, and begins to read their hits. If that fails nothing is there.
func (s *Spans) arm(calls []*spanmaker.Call) error {
	to, err := s.o.sender()
	if err != nil {
		return err
	}
	reader := make(chan uint64)
	go s.run(reader)
	hidden := []uint64{<-reader}
	if to != nil {
		hidden = append(hidden, s.startExporter(to))
	}
	s.maker = s.newMaker(calls, hidden)
	defs, err := s.maker.Define()
	if err == nil {
		for _, d := range defs {
			s.defs[d] = true
		}
		s.events, err = s.core.Add(defs, &kprobes.AddOptions{Skip: s.skipped, Budget: s.o.Budget})
	}
	if err == nil {
		err = s.maker.Prepare(engineEvents(s.events))
	}
	s.began <- err == nil
	if err == nil {
		return nil
	}
	<-s.done
	err = errors.Join(err, s.core.Remove(s.events))
	if s.exporter != nil {
		_, closed := s.exporter.Close()
		err = errors.Join(err, closed)
	}
	return err
}

// startExporter starts what sends the spans, and gives its goroutine.
func (s *Spans) startExporter(to otlp.Sender) uint64 {
	sends := make(chan uint64)
	s.exporter = otlp.NewExporter(to, &otlp.Options{
		Resource: spanmaker.Resource(engine.Of(s.core), s.o.Service, version(), s.pid()).Attrs,
		Scope:    otlp.Scope{Name: scope, Version: version()},
		Block:    s.o.JSON != nil,
		Started:  func() { sends <- mailbox.GoID() },
		Lost:     func(n uint64, why error) { say(s.o.Log, "%d spans are lost: %v", n, why) },
	})
	return <-sends
}

// pid is the process that the spans are of; 0: it is not known.
func (s *Spans) pid() int {
	if s.o.PID == 0 && s.own() {
		return os.Getpid()
	}
	return s.o.PID
}

// own says whether the target is the process that runs here.
func (s *Spans) own() bool { return s.core.Target().Capabilities().Own }

// defaultWait is Options.Wait where it is 0.
const defaultWait = 10 * time.Second

func (s *Spans) newMaker(calls []*spanmaker.Call, hidden []uint64) *spanmaker.Maker {
	o := &spanmaker.Options{
		Words:  spanmaker.Words{Set: "set", Error: "--error", Errors: "Options.Errors"},
		Sample: s.o.Sample, Slower: s.o.Slower, Errors: s.o.Errors, Wait: s.o.Wait, Sets: s.o.Sets,
		Add: &engine.AddOptions{}, Names: names{s.core}, Emit: s.emit, Tell: s.tell,
	}
	if o.Wait == 0 {
		o.Wait = defaultWait
	}
	if s.own() {
		o.Hidden = hidden
	}
	return spanmaker.New(engine.Of(s.core), calls, o)
}

// tell tells what the Maker has to say.
func (s *Spans) tell(what spanmaker.Notice, text string) {
	if what == spanmaker.Detail {
		say(s.o.LeftOut, "%s", text)
		return
	}
	say(s.o.Log, "%s", text)
}

func (s *Spans) skipped(name string, why error) {
	say(s.o.LeftOut, "%s is left out: %v", name, spanmaker.Reason(why))
}

// engineEvents are the engine's of events.
func engineEvents(evs []*kprobes.Event) []*engine.Event {
	out := make([]*engine.Event, len(evs))
	for i, ev := range evs {
		out[i] = engine.OfEvent(ev)
	}
	return out
}

// Events are those that make the spans, for Core.Counts. Their fields and methods are those of all events; Close removes them.
func (s *Spans) Events() []*kprobes.Event { return s.events }

// Done is closed when no span will come any more: the target has ended, or Close was called. Close is to be called all the same.
func (s *Spans) Done() <-chan struct{} { return s.done }

// Close takes the probes out, makes spans of what has been recorded, and sends them, for 10 s at most. Calls in progress are no spans. The error
// says how many spans could not be sent, and why, or why probes could not be taken out, which the Core tries again. Close may be called more
// than once, and waits for the functions of the options.
func (s *Spans) Close() error {
	s.closing.Do(func() {
		err := s.core.Remove(s.events)
		if engine.Of(s.core).Ended() {
			err = nil // the probes have gone with it
		}
		close(s.stop)
		<-s.done
		release(s.core)
		if err != nil {
			s.closed = fmt.Errorf("spans: the probes could not be taken out: %w", err)
		}
		if s.exporter == nil {
			return
		}
		st, err := s.exporter.Close()
		if st.Failed > 0 {
			err = errors.Join(fmt.Errorf("%d spans could not be sent: %w", st.Failed, st.Err), err)
		}
		if err != nil {
			s.closed = errors.Join(s.closed, fmt.Errorf("spans: %w", err))
		}
	})
	return s.closed
}
