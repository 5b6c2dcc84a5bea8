package trace

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/hit"
)

// Option is a choice of an instance, as those of trace_options.
type Option string

// The options that change something here.
const (
	OptionContextInfo   Option = "context-info"    // lines have the task, the CPU and the time; on at first
	OptionIRQInfo       Option = "irq-info"        // lines have the flags behind the CPU; on at first
	OptionMarkers       Option = "markers"         // Mark is taken; on at first
	OptionOverwrite     Option = "overwrite"       // a full buffer drops the oldest records, else the new ones; on at first
	OptionRecordCmd     Option = "record-cmd"      // names of threads are looked up, for all instances; on at first
	OptionRecordTGID    Option = "record-tgid"     // lines have the process of the thread
	OptionStacktrace    Option = "stacktrace"      // the stack is recorded with each hit, and shown behind it
	OptionSymAddr       Option = "sym-addr"        // lines have addresses behind symbols
	OptionFields        Option = "fields"          // lines show the fields of records by name
	OptionRaw           Option = "raw"             // lines have numbers alone
	OptionHex           Option = "hex"             // lines have the bytes of those, in hexadecimal digits
	OptionBin           Option = "bin"             // lines have those bytes
	OptionPrintkMsgOnly Option = "printk-msg-only" // of Mark the text alone is shown
	OptionDisableOnFree Option = "disable_on_free" // FreeBuffer switches tracing off
)

// refusing is an option that no kernel takes: its nop tracer has it for tests.
const refusing Option = "test_nop_refuse"

// choice is an option of trace_options.
type choice struct {
	name  Option
	on    bool // at first
	first bool // only the first instance has a file for it
}

// choices are the options in the order of trace_options, with the nop tracer's at the end (trace_options and TRACE_DEFAULT_FLAGS in
// kernel/trace/trace.h, Linux 6.12).
var choices = []choice{
	{name: "print-parent", on: true},
	{name: "sym-offset"},
	{name: OptionSymAddr},
	{name: "verbose"},
	{name: OptionRaw},
	{name: OptionHex},
	{name: OptionBin},
	{name: "block"},
	{name: OptionFields},
	{name: "trace_printk", on: true, first: true},
	{name: "annotate", on: true},
	{name: "userstacktrace"},
	{name: "sym-userobj"},
	{name: OptionPrintkMsgOnly, first: true},
	{name: OptionContextInfo, on: true},
	{name: "latency-format"},
	{name: OptionRecordCmd, on: true, first: true},
	{name: OptionRecordTGID},
	{name: OptionOverwrite, on: true},
	{name: OptionDisableOnFree},
	{name: OptionIRQInfo, on: true},
	{name: OptionMarkers, on: true},
	{name: "event-fork"},
	{name: "trace_printk_dest", on: true},
	{name: "pause-on-trace"},
	{name: "hash-ptr", on: true},
	{name: "function-trace", on: true},
	{name: "function-fork"},
	{name: "display-graph"},
	{name: OptionStacktrace},
	{name: "test_nop_accept"},
	{name: refusing},
}

// Options lists the options that there are, in the order of trace_options. Those without a constant change nothing here.
func (*Instance) Options() (out []Option) {
	for _, c := range choices {
		out = append(out, c.name)
	}
	return out
}

// HasOptionFile says whether the instance has a file in the directory options for an option: some have one in the first instance alone.
func (in *Instance) HasOptionFile(o Option) bool {
	return slices.ContainsFunc(choices, func(c choice) bool { return c.name == o && (!c.first || in == in.registry.first) })
}

// defaultOptions are those that are on at first.
func defaultOptions() map[Option]bool {
	out := map[Option]bool{}
	for _, c := range choices {
		out[c.name] = c.on
	}
	return out
}

// Option tells how an option stands. EINVAL: there is none of the name.
func (in *Instance) Option(o Option) (bool, error) {
	in.optMu.Lock()
	defer in.optMu.Unlock()
	on, ok := in.opts[o]
	if !ok {
		return false, noOption(o)
	}
	return on, nil
}

func noOption(o Option) error {
	return errno.Errorf(unix.EINVAL, "%q is no option: trace_options lists those that there are", string(o))
}

// SetOption switches an option. EINVAL: there is none of the name, or it can not be switched on. With OptionStacktrace events that are
// enabled are armed anew; its other errors are those of Enable, and the option stays as it was then.
func (in *Instance) SetOption(o Option, on bool) error {
	was, err := in.Option(o)
	switch {
	case err != nil:
		return err
	case o == refusing:
		return errno.Errorf(unix.EINVAL, "the option %s can not be switched", refusing)
	case was == on:
		return nil
	}
	in.setOption(o, on)
	switch o {
	case OptionOverwrite:
		in.buf.SetOverwrite(on)
	case OptionRecordCmd:
		in.drain() // what was hit before goes as it was said then
		in.names.setRecording(on)
	case OptionRecordTGID:
		in.drain() // what was hit before has none
		in.names.recordProcesses(in, on)
	case OptionStacktrace:
		return in.stacks(on)
	}
	return nil
}

func (in *Instance) setOption(o Option, on bool) {
	in.optMu.Lock()
	defer in.optMu.Unlock()
	in.opts[o] = on
	if o == OptionStacktrace {
		in.stacked.Store(on)
	}
}

// has says whether an option is on.
func (in *Instance) has(o Option) bool {
	on, err := in.Option(o)
	return err == nil && on
}

// stacks arms events anew whose records are to have a stack, or are not to any more.
func (in *Instance) stacks(on bool) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	var err error
	for _, e := range in.order {
		if s := in.state(e); s.armed {
			err = errors.Join(err, in.rearm(e, s.all, s.stack))
		}
	}
	if err != nil {
		in.setOption(OptionStacktrace, !on)
		in.note(err)
	}
	return err
}

// stackOf is how many callers the records of an event have.
func (in *Instance) stackOf(s *state) int {
	if in.stacked.Load() {
		return event.MaxStack
	}
	return s.stack
}

// printer prints as the options say.
func (in *Instance) printer() *printer {
	p := &printer{in: in, Printer: hit.Printer{
		Names: in.names, NoContext: !in.has(OptionContextInfo), NoFlags: !in.has(OptionIRQInfo), Addresses: in.has(OptionSymAddr),
	}}
	if in.has(OptionRecordTGID) {
		p.TGID = in.names.tgid
	}
	switch {
	case in.has(OptionBin):
		p.form = p.binary
	case in.has(OptionHex):
		p.form = p.hexadecimal
	case in.has(OptionRaw):
		p.form = p.raw
	case in.has(OptionFields):
		p.form = p.fields
	}
	p.messageOnly = in.has(OptionPrintkMsgOnly) && in.has("trace_printk")
	return p
}
