package trace

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/hit"
)

// registry is what the instances of one target share: its events, and the reading of their records.
type registry struct {
	core   *kprobes.Core
	shared Shared
	names  *names
	first  *Instance // that New has made

	mu        sync.Mutex           // taken before pollMu and the Core's
	instances map[string]*Instance // by name; that of New has none
	probes    []*probe             // in the order of their definition
	entries   map[string]*entry
	order     []*entry     // in the order of their making
	ids       map[int]bool // those of entries
	lastID    int          // the one that was given out last
	namer     event.Namer
	reading   *reading // nil while no event is armed
	copies    uint64   // definitions that were armed

	pollMu  sync.Mutex // held while the Core's records are read
	armings map[*event.Def]*arming
	woken   []*Instance        // whose buffer has got records, since readers were woken
	living  map[*Instance]bool // that have not ended
	latest  uint64             // the time of a record, in nanoseconds

	triggered bool // an event has, or had, triggers
	synths    hit.Synthetics
	lines     map[*event.Synthetic]*hit.Event // what lines of synthetic events are of
	text      []byte
}

// entry is an event: one or several probes that go by one name and have one format, or a synthetic event.
type entry struct {
	group, name string
	id          int
	probes      []*probe // at least one, but for a synthetic event
	synthetic   *event.Synthetic
}

// key is what registry.entries has an event under.
func key(group, name string) string { return group + "/" + name }

// probe is one definition.
type probe struct {
	*entry
	def *event.Def // with its name
	// aimed is def, of uprobe_events with the path under which its file is mapped.
	aimed *event.Def
	// spans are what counts the probe's hits: an arming at a time, though each instance has one.
	spans []*span
}

// span is the part of an arming's counts that a probe's are made of.
type span struct {
	a     *arming
	from  kprobes.Counts
	until *kprobes.Counts // nil: all since from
}

// arming is a probe that an instance has put into the target, once.
type arming struct {
	in    *Instance
	probe *probe
	state *state     // of the event in the instance
	def   *event.Def // the probe's, of this arming
	event *kprobes.Event
	ended bool // it was taken out
}

// each gives the instances, the first one first.
func (r *registry) each() (out []*Instance) {
	for _, name := range slices.Sorted(maps.Keys(r.instances)) {
		out = append(out, r.instances[name])
	}
	return out
}

// busy says whether an event is armed by any instance.
func (r *registry) busy(e *entry) bool {
	for _, in := range r.instances {
		if in.state(e).armed {
			return true
		}
	}
	return false
}

// readsOn says whether any event is armed.
func (r *registry) readsOn() bool { return slices.ContainsFunc(r.order, r.busy) }

// probesOf are the probes of events.
func probesOf(es []*entry) (out []*probe) {
	for _, e := range es {
		out = append(out, e.probes...)
	}
	return out
}

// counted begins to count a probe's hits by an arming, if nothing counts them.
func (r *registry) counted(a *arming) {
	p := a.probe
	if n := len(p.spans); n > 0 && !p.spans[n-1].a.ended {
		return
	}
	p.spans = append(p.spans, &span{a: a, from: r.core.Counts(a.event)})
}

// uncounted has another arming count a probe's hits, if one is left.
func (r *registry) uncounted(a *arming) {
	last := a.probe.spans[len(a.probe.spans)-1]
	if last.a != a {
		return
	}
	for _, o := range r.each() {
		if b := o.arming(a.probe); b != nil {
			n := r.core.Counts(a.event)
			last.until = &n
			r.counted(b)
			return
		}
	}
}

// counts sums up what a probe has counted since it was defined.
func (r *registry) counts(p *probe) (sum kprobes.Counts) {
	for _, s := range p.spans {
		n := s.until
		if n == nil {
			all := r.core.Counts(s.a.event)
			n = &all
		}
		sum.Hits += n.Hits - s.from.Hits
		sum.Lost += n.Lost - s.from.Lost
		sum.Missed += n.Missed - s.from.Missed
	}
	return sum
}

// NewInstance makes an instance beside this one, as a mkdir in the directory instances does: with the same events, none of which is
// enabled, and a buffer of its own. EEXIST: there is one of the name; EINVAL,
// ENAMETOOLONG: no directory can have the name.
func (in *Instance) NewInstance(name string) (*Instance, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.life.Err() != nil {
		return nil, errClosed
	}
	switch {
	case len(name) > unix.NAME_MAX:
		return nil, errno.Errorf(unix.ENAMETOOLONG, "the name of an instance has at most %d bytes, this one %d", unix.NAME_MAX, len(name))
	case name == "", name == ".", name == "..", strings.ContainsAny(name, "/\n\x00"):
		return nil, errno.Errorf(unix.EINVAL, "an instance can not be called %q: it is the name of a directory", name)
	case in.instances[name] != nil:
		return nil, errno.Errorf(unix.EEXIST, "an instance is called %q already", name)
	}
	o := newInstance(in.registry, name, DefaultBuffer)
	in.instances[name] = o
	return o, nil
}

// Instances are the names of those that NewInstance has made, in order.
func (in *Instance) Instances() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	var out []string
	for name := range in.instances {
		if name != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Instance gives one that NewInstance has made; nil: none has the name.
func (in *Instance) Instance(name string) *Instance {
	in.mu.Lock()
	defer in.mu.Unlock()
	if name == "" {
		return nil
	}
	return in.instances[name]
}

// RemoveInstance ends an instance that NewInstance has made: it disarms what that has armed. ENOENT: there is none of the name; EBUSY:
// somebody holds it.
func (in *Instance) RemoveInstance(name string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	o := in.instances[name]
	switch {
	case name == "" || o == nil:
		return errno.Errorf(unix.ENOENT, "no instance is called %q", name)
	}
	if n := o.use.close(); n > 0 {
		return errno.Errorf(unix.EBUSY, "instance %q: %d files of it are open", name, n)
	}
	err := o.leave()
	if err != nil {
		o.use.reopen()
	}
	return err
}

// Hold keeps an instance from being removed until release is called, which may be called again. It waits for no change of the target.
// ENODEV: the instance has been removed.
func (in *Instance) Hold() (release func(), err error) {
	if !in.use.begin() {
		return nil, errno.Errorf(unix.ENODEV, "the instance %q has been removed", in.name)
	}
	return sync.OnceFunc(in.use.end), nil
}

// users counts who uses an instance, until it is closed to them.
type users struct {
	mu     sync.Mutex
	n      int
	closed bool
}

func (u *users) begin() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.closed {
		u.n++
	}
	return !u.closed
}

func (u *users) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.n--
}

// close lets nobody begin any more, unless there are users, whose number it gives.
func (u *users) close() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = u.closed || u.n == 0
	return u.n
}

func (u *users) reopen() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = false
}

// leave takes an instance away.
func (in *Instance) leave() error {
	if err := in.silence(); err != nil {
		return err
	}
	in.end()
	in.names.recordProcesses(in, false)
	in.buf.Rouse()
	if in.instances[in.name] == in { // another may have its name by now
		delete(in.instances, in.name)
	}
	in.pollMu.Lock()
	defer in.pollMu.Unlock()
	delete(in.living, in)
	maps.DeleteFunc(in.armings, func(_ *event.Def, a *arming) bool { return a.in == in })
	return nil
}

// newInstance makes an instance. Precondition: mu is held, or nobody knows the registry.
func newInstance(r *registry, name string, size int) *Instance {
	r.pollMu.Lock()
	defer r.pollMu.Unlock()
	in := &Instance{registry: r, name: name, buf: newBuffer(size), states: map[*entry]*state{}, opts: defaultOptions()}
	in.on.Store(true)
	in.fill.Store(DefaultBufferPercent)
	r.living[in] = true
	in.set = hit.NewLive(&hit.Host{Need: in.need, Snapshot: in.snapshotNow, Reserve: in.reserve, Traced: in.traced}, &r.synths)
	in.life, in.end = context.WithCancel(context.Background())
	return in
}
