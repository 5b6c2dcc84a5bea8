package trace

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/hit"
)

// Option is a choice of an instance, as those of trace_options.
type Option string

// The options. All are on at first.
const (
	OptionContextInfo Option = "context-info" // lines have the task, the CPU and the time
	OptionIRQInfo     Option = "irq-info"     // lines have the flags behind the CPU
	OptionMarkers     Option = "markers"      // Mark is taken
	OptionOverwrite   Option = "overwrite"    // a full buffer drops the oldest records, else the new ones
)

// Options lists the options that there are, by name.
func (*Instance) Options() []Option {
	return []Option{OptionContextInfo, OptionIRQInfo, OptionMarkers, OptionOverwrite}
}

// Option tells how an option stands. EINVAL: there is none of the name.
func (in *Instance) Option(o Option) (bool, error) {
	in.optMu.Lock()
	defer in.optMu.Unlock()
	if !slices.Contains(in.Options(), o) {
		return false, in.noOption(o)
	}
	return !in.off[o], nil
}

func (in *Instance) noOption(o Option) error {
	var names []string
	for _, o := range in.Options() {
		names = append(names, string(o))
	}
	return errno.Errorf(unix.EINVAL, "%q is no option: there are %s", string(o), strings.Join(names, ", "))
}

// SetOption switches an option. EINVAL: there is none of the name.
func (in *Instance) SetOption(o Option, on bool) error {
	in.optMu.Lock()
	defer in.optMu.Unlock()
	if !slices.Contains(in.Options(), o) {
		return in.noOption(o)
	}
	in.off[o] = !on
	if o == OptionOverwrite {
		in.buf.SetOverwrite(on)
	}
	return nil
}

// has says whether an option is on.
func (in *Instance) has(o Option) bool {
	on, err := in.Option(o)
	return err == nil && on
}

// printer prints as the options say.
func (in *Instance) printer() hit.Printer {
	return hit.Printer{Names: in.names, NoContext: !in.has(OptionContextInfo), NoFlags: !in.has(OptionIRQInfo)}
}
