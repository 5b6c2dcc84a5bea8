package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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
	// Callers has the kernel record a stack behind each hit, of which at most so many callers are handed over; 0: none is recorded
	// but by triggers.
	Callers int
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
	stack  stackFormat           // its id is 0: no stacks are recorded
	stacks map[uint64]*hit.Event // of stacks, by the first address
	bad    error                 // the first record or page that was not understood
	shut   bool
}

// probed is an event: one probe, or several of one name.
type probed struct {
	group, name string // the user's
	ours        string // our GROUP/NAME
	ret         bool
	filter      string
	given       []*event.Def // of its probes; a pattern's is the pattern
	triggers    []string     // that it has, as the kernel calls them, without counts and filters
	*format
	at   map[uint64]*hit.Event // by address
	read uint64
}

// Open makes an instance for a trace. Nothing is probed yet. Errors are those of Dir, or
// say which part of tracefs refused.
func Open(o *Options) (*Target, error) {
	t := &Target{byID: map[uint16]*probed{}, stacks: map[uint64]*hit.Event{}}
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
	if t.o.Callers > 0 {
		if err := errors.Join(t.prepareStacks(), write("1", t.inst, "options/stacktrace")); err != nil {
			return fmt.Errorf("this kernel records no stacks: %w", err)
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
	errs := []error{t.removeTriggers()}
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
	if t.stacked() && c.id == t.stack.id {
		return t.stackHit(r, &c, buf), nil
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
		errs = append(errs, t.removeTriggers(), t.enable("0"))
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
