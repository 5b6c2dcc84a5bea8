package perfetto

import (
	"os"
	"time"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// Recorder writes hits to a file. It is not safe for use by several goroutines.
type Recorder struct {
	*Trace
	file   *os.File
	names  hit.Namer
	stacks bool
	latest uint64
	values []fetch.Value
	args   []Arg
	frames []fetch.StackFrame
	comms  map[int]comm
	took   map[*hit.Event]int // the argument that is $duration; -1: none is
}

// Create makes the file at path. names tells the names of threads and addresses; stacks has the callers of hits written.
func Create(path string, t Target, names hit.Namer, stacks bool) (*Recorder, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &Recorder{Trace: New(f, t), file: f, names: names, stacks: stacks, took: map[*hit.Event]int{}, comms: map[int]comm{}}, nil
}

// comm is a thread's name, and when it was asked for, in nanoseconds.
type comm struct {
	name string
	at   uint64
}

const (
	commAge    = 1e9 // nanoseconds for which a thread's name is believed
	maxThreads = 1 << 16
)

// comm is the name of a hit's thread.
func (r *Recorder) comm(h *hit.Hit) string {
	if h.Comm != "" {
		return h.Comm
	}
	c, ok := r.comms[h.TID]
	if ok && h.Nanos-c.at < commAge {
		return c.name
	}
	c = comm{r.names.Comm(h.TID), h.Nanos}
	if len(r.comms) >= maxThreads {
		clear(r.comms)
	}
	r.comms[h.TID] = c
	return c.name
}

// newGoID is the name of the argument that tells of a goroutine's creation: the number of the new one.
const newGoID = "newgoid"

// Hit writes a hit. The errors that wrap fetch.ErrRecord are of a hit that is damaged and left out; after any other error nothing more can be written.
func (r *Recorder) Hit(h *hit.Hit) error {
	e := Event{Nanos: h.Nanos, CPU: h.CPU, TID: h.TID, Goroutine: h.GoID, Comm: r.comm(h), Args: r.args[:0], Group: h.Event.Group, Name: h.Event.Name}
	r.latest = max(r.latest, h.Nanos)
	took, made, err := r.arguments(&e, h)
	if err != nil {
		return err
	}
	defer func() { r.args = e.Args }()
	if r.stacks {
		r.stack(&e, h)
	}
	switch {
	case h.Event.Return:
		e.Args = append(e.Args, Arg{"caller", r.symbol(h.Caller)})
		if made != 0 {
			return r.Trace.Made(&e, made)
		}
		return r.Trace.Return(&e, h.Event.Addr, took)
	case h.IP != 0:
		e.Args = append(e.Args, Arg{"ip", r.symbol(h.IP)})
	case made != 0:
		return r.Trace.Made(&e, made)
	default:
		return r.Trace.Enter(&e, h.Event.Addr)
	}
	return r.Trace.Hit(&e)
}

// arguments takes the arguments of a hit: how long the call took, and which goroutine was made, if they tell.
func (r *Recorder) arguments(e *Event, h *hit.Hit) (took time.Duration, made uint64, err error) {
	if h.Event.Prog == nil {
		return 0, 0, nil
	}
	if r.values, err = h.Event.Prog.DecodeInto(r.values[:0], h.Rec, h.Event.ArgsOff, e.Comm); err != nil {
		return 0, 0, err
	}
	if h.Unknown {
		fetch.HideResults(r.values)
	}
	for i := range r.values {
		v := &r.values[i]
		a := Arg{v.Arg.Name, v.Any()}
		if n, ok := a.Value.(uint64); ok && (v.Arg.Type.Kind == event.Symbol || v.Arg.Type.Kind == event.SymStr) {
			a.Value = r.symbol(n)
		}
		if n, ok := a.Value.(uint64); ok && a.Name == newGoID {
			made = n
		}
		e.Args = append(e.Args, a)
	}
	if i := r.duration(h.Event); i >= 0 && i < len(r.values) && !r.values[i].Unknown {
		took = time.Duration(r.values[i].Num)
	}
	return took, made, nil
}

// duration is the index of the argument that is $duration; -1: none is.
func (r *Recorder) duration(e *hit.Event) int {
	i, ok := r.took[e]
	if ok {
		return i
	}
	i = -1
	for _, a := range e.Def.Args {
		for n := range e.Prog.Args {
			if a.Expr != nil && a.Expr.Kind == event.ExprDuration && e.Prog.Args[n].Name == a.Name {
				i = n
			}
		}
	}
	r.took[e] = i
	return i
}

// stack takes the callers of a hit.
func (r *Recorder) stack(e *Event, h *hit.Hit) {
	r.frames, _, _ = h.Callers(r.frames[:0])
	if len(r.frames) == 0 {
		return
	}
	var all []any
	for _, f := range r.frames {
		all = append(all, string(fetch.AppendFrame(nil, f, r.names.Symbol)))
	}
	e.Args = append(e.Args, Arg{"callers", all})
}

func (r *Recorder) symbol(addr uint64) string {
	return string(fetch.AppendSym(nil, addr, r.names.Symbol))
}

// Lost writes that hits of a CPU were lost behind those that were written.
func (r *Recorder) Lost(cpu int, hits uint64) { _ = r.Trace.Lost(r.latest, cpu, hits) } // Hit and Close give the error

// Close writes the rest, and closes the file.
func (r *Recorder) Close() error {
	err := r.Trace.Close()
	if bad := r.file.Close(); err == nil {
		err = bad
	}
	return err
}
