// Package perfetto writes hits as a trace of Perfetto: protobuf, which its user interface and trace_processor read. Calls whose entry and return are probed are slices,
// other hits are instants. Each stands on the track of its goroutine, or of its thread where there is none; on the tracks of its CPU, and of a goroutine's
// thread, stands an instant of the same name. It knows nothing of who has recorded the hits.
package perfetto

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

// Target is what was traced.
type Target struct {
	// PID is the process; 0: it is not known, as in a guest, and threads have tracks that belong to no process.
	PID  int
	Name string // of the process, or of what was traced
	// Monotonic, Boottime and Realtime are the times of these clocks at one moment, in nanoseconds; Boottime and Realtime 0: they are not known.
	Monotonic, Boottime, Realtime uint64
}

// Arg is an argument. Value is an int64, uint64, byte or string, a []any of these, or nil if it is not known.
type Arg struct {
	Name  string
	Value any
}

// Event is a hit of an event.
type Event struct {
	Nanos       uint64 // CLOCK_MONOTONIC
	CPU, TID    int
	Goroutine   uint64 // 0: none
	Comm        string // the thread's name
	Group, Name string
	Args        []Arg
}

// kinds of tracks, in the upper bits of their numbers.
const (
	rootTrack = uint64(iota+1) << 60
	threadTrack
	goroutineTrack
	cpuTrack
	cpusTrack
	idMask = 1<<60 - 1
)

// writer writes packets. Its first error stays.
type writer struct {
	w      *bufio.Writer
	target Target
	tracks map[uint64]bool // that are described
	names  interned
	groups interned
	args   interned
	packet message
	event  message
	nested message // an annotation that has others
	one    message // an annotation
	err    error
}

// interned gives names numbers. The packet in which one is used first tells it.
type interned struct {
	field int
	ids   map[string]uint64
	fresh []string
}

func (i *interned) id(name string) uint64 {
	id, ok := i.ids[name]
	if !ok {
		id = uint64(len(i.ids) + 1)
		i.ids[name] = id
		i.fresh = append(i.fresh, name)
	}
	return id
}

// tell appends the names that have not been told.
func (i *interned) tell(m *message) {
	for _, name := range i.fresh {
		var one message
		one.uint(internedID, i.ids[name])
		one.text(internedName, name)
		m.sub(i.field, one)
	}
	i.fresh = i.fresh[:0]
}

func newWriter(out io.Writer, t Target) *writer {
	w := &writer{w: bufio.NewWriterSize(out, 256<<10), target: t, tracks: map[uint64]bool{}}
	for field, i := range map[int]*interned{internedNames: &w.names, internedCategories: &w.groups, internedAnnotations: &w.args} {
		*i = interned{field: field, ids: map[string]uint64{}}
	}
	w.begin()
	return w
}

// sequence is the number of the only sequence of packets.
const sequence = 1

// begin writes what comes first: the clock of all times, and what else it was at one moment.
func (w *writer) begin() {
	var p, defaults, clocks message
	defaults.uint(defaultsClockID, clockMonotonic)
	p.uint(packetSequenceID, sequence)
	p.uint(packetSequenceFlags, stateCleared)
	p.sub(packetDefaults, defaults)
	w.write(p)
	for _, c := range []struct{ id, at uint64 }{{clockMonotonic, w.target.Monotonic}, {clockBoottime, w.target.Boottime}, {clockRealtime, w.target.Realtime}} {
		if c.at == 0 {
			continue
		}
		var clock message
		clock.uint(clockID, c.id)
		clock.uint(clockTimestamp, c.at)
		clocks.sub(snapshotClocks, clock)
	}
	clocks.uint(snapshotPrimary, clockMonotonic)
	p = nil
	p.uint(packetSequenceID, sequence)
	p.sub(packetClockSnapshot, clocks)
	w.write(p)
	w.root()
}

// write writes a packet.
func (w *writer) write(p message) {
	if w.err != nil {
		return
	}
	var head message
	head.tag(tracePacket, wireBytes)
	head = binary.AppendUvarint(head, uint64(len(p)))
	if _, w.err = w.w.Write(head); w.err == nil {
		_, w.err = w.w.Write(p)
	}
}

// describe writes the descriptor of a track.
func (w *writer) describe(uuid, parent uint64, name string, more func(*message)) {
	w.tracks[uuid] = true
	var d, p message
	d.uint(trackUUID, uuid)
	if parent != 0 {
		d.uint(trackParent, parent)
	}
	if name != "" {
		d.text(trackName, name)
	}
	if more != nil {
		more(&d)
	}
	p.uint(packetSequenceID, sequence)
	p.sub(packetTrackDescriptor, d)
	w.write(p)
}

// root describes the process, or what else was traced.
func (w *writer) root() {
	if w.target.PID == 0 {
		w.describe(rootTrack, 0, w.target.Name, nil)
		return
	}
	w.describe(rootTrack, 0, "", func(d *message) {
		var p message
		p.uint(processPID, uint64(w.target.PID))
		p.text(processName, w.target.Name)
		d.sub(trackProcess, p)
	})
}

// thread is the track of the event's thread.
func (w *writer) thread(e *Event) uint64 {
	uuid := threadTrack | uint64(uint32(e.TID))
	switch {
	case w.tracks[uuid]:
	case w.target.PID == 0:
		w.describe(uuid, rootTrack, fmt.Sprintf("%s-%d", e.Comm, e.TID), nil)
	default:
		w.describe(uuid, 0, "", func(d *message) {
			var t message
			t.uint(threadPID, uint64(w.target.PID))
			t.uint(threadTID, uint64(uint32(e.TID)))
			t.text(threadName, e.Comm)
			d.sub(trackThread, t)
		})
	}
	return uuid
}

// goroutine is the track of the event's goroutine.
func (w *writer) goroutine(e *Event) uint64 {
	uuid := goroutineTrack | e.Goroutine&idMask
	if !w.tracks[uuid] {
		w.describe(uuid, rootTrack, fmt.Sprintf("goroutine %d", e.Goroutine), nil)
	}
	return uuid
}

// cpu is the track of the event's CPU.
func (w *writer) cpu(cpu int) uint64 {
	if !w.tracks[cpusTrack] {
		w.describe(cpusTrack, 0, "CPUs", nil)
	}
	uuid := cpuTrack | uint64(uint32(cpu))
	if !w.tracks[uuid] {
		w.describe(uuid, cpusTrack, fmt.Sprintf("CPU %d", cpu), nil)
	}
	return uuid
}

// flows are the numbers of arrows that begin at an event, and that end there; 0: there is none.
type flows struct{ from, to uint64 }

// put writes an event of a track. fill appends to its annotations; nil: it has none. name "" is that of an end.
func (w *writer) put(track, nanos, kind uint64, group, name string, f flows, fill func(*message)) {
	e := w.event[:0]
	e.uint(eventType, kind)
	e.uint(eventTrack, track)
	if name != "" {
		e.uint(eventName, w.names.id(name))
		e.uint(eventCategories, w.groups.id(group))
	}
	if f.from != 0 {
		e.fixed(eventFlows, f.from)
	}
	if f.to != 0 {
		e.fixed(eventTerminatingFlows, f.to)
	}
	if fill != nil {
		fill(&e)
	}
	w.event = e
	p := w.packet[:0]
	p.uint(packetTimestamp, nanos)
	p.uint(packetSequenceID, sequence)
	p.uint(packetSequenceFlags, needsState)
	if len(w.names.fresh)+len(w.groups.fresh)+len(w.args.fresh) > 0 {
		var data message
		w.names.tell(&data)
		w.groups.tell(&data)
		w.args.tell(&data)
		p.sub(packetInternedData, data)
	}
	p.sub(packetTrackEvent, e)
	w.packet = p
	w.write(p)
}

// annotate appends arguments to an event.
func (w *writer) annotate(m *message, args []Arg) {
	for _, a := range args {
		w.one = w.one[:0]
		w.one.uint(annotationName, w.args.id(a.Name))
		value(&w.one, a.Value)
		m.sub(eventAnnotations, w.one)
	}
}

// value appends a value to an annotation. One that is not known is the text "(unknown)".
func value(m *message, v any) {
	switch v := v.(type) {
	case uint64:
		m.uint(annotationUint, v)
	case int64:
		m.uint(annotationInt, uint64(v))
	case byte:
		m.text(annotationText, string(rune(v)))
	case string:
		m.text(annotationText, v)
	case []any:
		for _, e := range v {
			var one message
			value(&one, e)
			m.sub(annotationArray, one)
		}
	default:
		m.text(annotationText, "(unknown)")
	}
}

// nest appends arguments as one annotation, under a name.
func (w *writer) nest(m *message, name string, args []Arg) {
	w.nested = w.nested[:0]
	w.nested.uint(annotationName, w.args.id(name))
	for _, a := range args {
		w.one = w.one[:0]
		w.one.text(annotationOwnName, a.Name)
		value(&w.one, a.Value)
		w.nested.sub(annotationEntries, w.one)
	}
	m.sub(eventAnnotations, w.nested)
}
