package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"kprobes.dev/kprobes/internal/hit"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
)

// Options are the choices of Open; nil means the defaults.
type Options struct {
	// Buffer is the size of the kernel's ring for each CPU, in bytes; 0: DefaultBuffer.
	Buffer int
	// Count makes probes that only count: the ring is off.
	Count bool
}

// DefaultBuffer is the size of a CPU's ring, in bytes.
const DefaultBuffer = 4 << 20

// Target is the kernel with the probes of one trace. It is for one goroutine; what Names
// gives is not.
type Target struct {
	o      Options
	dir    string // tracefs
	inst   string // our instance
	holder Holder
	names  *names
	reader *reader

	namer  event.Namer
	groups []string // the user's, by the number of this target's
	events []*probed
	byID   map[uint16]*probed
	totals []Total
	bad    error // the first record or page that was not understood
	shut   bool
}

// probed is an event: one probe, or several of one name.
type probed struct {
	group, name string // the user's
	ours        string // our GROUP/NAME
	ret         bool
	filter      string
	*format
	at   map[uint64]*hit.Event // by address
	read uint64
}

// Open makes an instance for a trace. Nothing is probed yet. Errors are those of Dir, or
// say which part of tracefs refused.
func Open(o *Options) (*Target, error) {
	t := &Target{byID: map[uint16]*probed{}}
	if o != nil {
		t.o = *o
	}
	if t.o.Buffer <= 0 {
		t.o.Buffer = DefaultBuffer
	}
	var err error
	if t.dir, err = Dir(); err != nil {
		return nil, err
	}
	if t.holder, err = self(); err != nil {
		return nil, err
	}
	t.names = &names{dir: t.dir}
	t.inst = filepath.Join(t.dir, "instances", t.holder.String())
	switch err := os.Mkdir(t.inst, 0o750); {
	case errors.Is(err, fs.ErrExist):
		return nil, errno.Errorf(unix.EBUSY, "this process traces the kernel already: %s is there", t.inst)
	case err != nil:
		return nil, fmt.Errorf("trace instance: %w", err)
	}
	if err := t.configure(); err != nil {
		return nil, errors.Join(fmt.Errorf("trace instance: %w", err), t.remove())
	}
	return t, nil
}

// configure sets the instance up: times of CLOCK_MONOTONIC, and a full ring drops what is
// new, as ours do.
func (t *Target) configure() (err error) {
	on := "1"
	if t.o.Count {
		on = "0"
	}
	for _, s := range [][2]string{
		{"trace_clock", "mono"},
		{"options/overwrite", "0"},
		{"buffer_size_kb", fmt.Sprint(max(t.o.Buffer>>10, 8))},
		{"tracing_on", on},
	} {
		if err := write(s[1], t.inst, s[0]); err != nil {
			return err
		}
	}
	if err := t.exclude(); err != nil {
		return err
	}
	t.reader, err = openReader(t.inst)
	return err
}

// initialPIDs is the inode of the first pid namespace (PROC_PID_INIT_INO,
// include/linux/proc_ns.h).
const initialPIDs = 0xeffffffc

// exclude leaves our own threads out: reading the ring and writing lines would make hits
// for ever. Where ids are those of another namespace than the kernel's, and before Linux
// 5.7, they are not left out.
func (t *Target) exclude() error {
	const file = "set_event_notrace_pid"
	if _, err := os.Stat(filepath.Join(t.inst, file)); err != nil || t.holder.NS != initialPIDs {
		return nil
	}
	// New threads are left out from here on if the one that makes them is.
	if err := write("1", t.inst, "options/event-fork"); err != nil {
		return err
	}
	told := map[string]bool{}
	for fresh := true; fresh; {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		fresh = false
		for _, task := range tasks {
			if told[task.Name()] {
				continue
			}
			fresh, told[task.Name()] = true, true
			if err := write(task.Name(), t.inst, file); err != nil {
				return err
			}
		}
	}
	return nil
}

// Names finds the names that lines show.
func (t *Target) Names() hit.Namer { return t.names }

// AddOptions are the choices of Add; nil means the defaults.
type AddOptions struct {
	// Skip leaves out functions of a pattern on which the kernel takes no probe; each is
	// told to it with the reason. Nil: the first such function is an error.
	Skip func(name string, why error)
}

// Add makes the probes and enables them: all or none. The errors of definitions are
// *event.Error, with the kernel's own text and the column that its caret marks.
func (t *Target) Add(defs []*event.Def, o *AddOptions) error {
	if o == nil {
		o = &AddOptions{}
	}
	for _, d := range defs {
		if d.Name != "" {
			t.namer.Reserve(d.Name)
		}
	}
	var errs []error
	for _, d := range defs {
		errs = append(errs, t.define(d, o))
	}
	err := errors.Join(errs...)
	if err == nil {
		err = t.enable("1")
	}
	if err != nil {
		return errors.Join(err, t.undefine())
	}
	return nil
}

// define makes the probes of a definition.
func (t *Target) define(d *event.Def, o *AddOptions) error {
	if err := foreign(d); err != nil {
		return err
	}
	if m := d.Place.Module; m != "" {
		if err := findModule(os.DirFS("/"), release(), m); err != nil {
			return d.Refuse(event.BadProbeAddr, d.Place.Pos, "", err)
		}
	}
	if !d.Place.Glob {
		return t.defineOne(d)
	}
	funcs, err := Funcs("*")
	if err != nil {
		return err
	}
	all, err := expand(d, funcs)
	if err != nil {
		return err
	}
	made := 0
	for _, one := range all {
		switch err := t.defineOne(one); {
		case err == nil:
			made++
		case o.Skip == nil:
			return err
		default:
			o.Skip(one.Place.Symbol, err)
		}
	}
	if made == 0 {
		return d.Refuse(event.FailRegProbe, d.Place.Pos, "of the functions that match none takes a probe", nil)
	}
	return nil
}

// defineOne makes one probe and reads its format.
func (t *Target) defineOne(d *event.Def) error {
	name := d.Name
	if name == "" {
		name = t.namer.Name(d, d.Place)
	}
	group := t.group(d.Group)
	cmd := command(d, group, name)
	if err := write(cmd, t.dir, "kprobe_events"); err != nil {
		if d.Name == "" {
			t.namer.Release(name)
		}
		log, _ := read(t.dir, "error_log")
		return t.explain(d, refused(d, cmd, log, err))
	}
	ours := group + "/" + name
	if i := slices.IndexFunc(t.events, func(p *probed) bool { return p.ours == ours }); i >= 0 {
		if had := t.events[i].filter; had != d.Filter { // another probe of an event that is there
			return errno.Errorf(unix.EINVAL, "filter %q: an event has one filter, and %s has %q", d.Filter, name, had)
		}
		return nil
	}
	p := &probed{group: d.Group, name: name, ours: ours, ret: d.Kind == event.Return, filter: d.Filter, at: map[uint64]*hit.Event{}}
	t.events = append(t.events, p) // so that it is taken out whatever follows
	text, err := read(t.inst, "events", ours, "format")
	if err != nil {
		return err
	}
	if p.format, err = parseFormat(text); err != nil {
		return err
	}
	t.byID[p.id] = p
	return t.filter(p)
}

// filter gives an event its filter.
func (t *Target) filter(p *probed) error {
	if p.filter == "" {
		return nil
	}
	err := write(p.filter, t.inst, "events", p.ours, "filter")
	if err == nil {
		return nil
	}
	shown, _ := read(t.inst, "events", p.ours, "filter")
	return refusedFilter(p.filter, shown, err)
}

// group is our group for one of the user's.
func (t *Target) group(name string) string {
	n := slices.Index(t.groups, name)
	if n < 0 {
		n = len(t.groups)
		t.groups = append(t.groups, name)
	}
	return t.holder.group(n)
}

// explain says why the kernel takes no probe on a function, where it does not itself.
func (t *Target) explain(d *event.Def, err error) error {
	var e *event.Error
	if d.Place.Kind != event.PlaceSymbol || !errors.As(err, &e) || e.Code != event.FailRegProbe {
		return err
	}
	syms, bad := loadSymbols()
	if bad != nil || !slices.ContainsFunc(syms, func(k ksym) bool { return k.name == d.Place.Symbol }) {
		return err
	}
	if funcs, bad := Funcs(d.Place.Symbol); bad == nil && len(funcs) == 0 {
		e.Text = d.Place.Symbol + " is on the kernel's blacklist, or notrace: kprobe funcs -k lists what can be probed"
	}
	return err
}

// enable switches all events in our instance.
func (t *Target) enable(on string) error {
	var errs []error
	for n := range t.groups {
		path := filepath.Join(t.inst, "events", t.holder.group(n), "enable")
		if err := write(on, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("events of group %s: %w", t.groups[n], err))
		}
	}
	return errors.Join(errs...)
}

// undefine takes all our probes out of the kernel.
func (t *Target) undefine() error {
	var errs []error
	if len(t.events) > 0 {
		errs = append(errs, t.enable("0"))
	}
	for _, p := range t.events {
		if err := write("-:"+p.ours, t.dir, "kprobe_events"); err != nil {
			errs = append(errs, fmt.Errorf("event %s (%s) stays: %w", p.name, p.ours, err))
		}
	}
	t.events, t.byID = nil, map[uint16]*probed{}
	return errors.Join(errs...)
}

// Poll hands over the hits that are there, in the order of their times, and gives their
// number. A hit is valid until f returns; its Event stays.
func (t *Target) Poll(f func(*hit.Hit)) int {
	t.names.refresh()
	return t.poll(false, f)
}

func (t *Target) poll(last bool, f func(*hit.Hit)) (n int) {
	var buf []byte
	_, err := t.reader.poll(last, func(r *rawRecord) {
		h, err := t.hit(r, buf[:0])
		if err != nil && t.bad == nil {
			t.bad = err
		}
		if h == nil {
			return
		}
		buf = h.Rec
		n++
		if f != nil {
			f(h)
		}
	})
	if err != nil && t.bad == nil {
		t.bad = err
	}
	return n
}

// hit makes a hit of a record; nil of one that is not ours.
func (t *Target) hit(r *rawRecord, buf []byte) (*hit.Hit, error) {
	c, ok := parseCommon(r.data)
	if !ok {
		return nil, fmt.Errorf("record of %d bytes", len(r.data))
	}
	p := t.byID[c.id]
	if p == nil {
		return nil, nil
	}
	rec, err := p.translate(buf, r.data)
	if err != nil {
		return nil, fmt.Errorf("event %s: %w", p.name, err)
	}
	p.read++
	h := &hit.Hit{Event: p.event(word(r.data, p.ip)), Nanos: r.nanos, CPU: r.cpu, TID: c.pid, Context: c.context(), Comm: p.task(r.data), Rec: rec}
	if p.caller != 0 {
		h.Caller = word(r.data, p.caller)
	}
	return h, nil
}

// event is the event as it hits at an address.
func (p *probed) event(addr uint64) *hit.Event {
	e := p.at[addr]
	if e == nil {
		e = &hit.Event{Group: p.group, Name: p.name, Return: p.ret, Addr: addr, Prog: p.prog}
		p.at[addr] = e
	}
	return e
}

// Leave takes all probes out of the kernel, hands over the hits that were left, and
// removes the instance. f may be nil. To do so again does nothing.
func (t *Target) Leave(f func(*hit.Hit)) error {
	if t.shut {
		return nil
	}
	t.shut = true
	var errs []error
	if len(t.events) > 0 {
		tactics := t.tactics()
		errs = append(errs, t.enable("0"))
		t.names.refresh()
		t.poll(true, f)
		errs = append(errs, t.sum(tactics))
	}
	errs = append(errs, t.undefine(), t.remove())
	return errors.Join(errs...)
}

// remove removes the instance.
func (t *Target) remove() error {
	var err error
	if t.reader != nil {
		err = t.reader.close()
	}
	return errors.Join(err, unix.Rmdir(t.inst))
}

// Damage tells of the first record that was not understood, and was left out; nil if all
// were.
func (t *Target) Damage() error { return t.bad }
