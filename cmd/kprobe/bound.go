package main

import (
	"github.com/spf13/pflag"

	"kprobes.dev/kprobes/event"
)

// probe gives the definition that the flag belongs to; nil: none is before it. defs are those by -e, as many as events, and then the
// others; nil stands for a comment.
func (b *boundFlag) probe(defs []*event.Def, events int) *event.Def {
	i := b.index
	if i >= 0 && !b.byEvent {
		i += events
	}
	if i < 0 || i >= len(defs) || defs[i] == nil || defs[i].Kind == event.Delete {
		return nil
	}
	return defs[i]
}

// probeValue is the flag -e. It notes how many probes without a flag stood before each.
type probeValue struct {
	f      *traceFlags
	fl     *pflag.FlagSet
	others []int
}

func (*probeValue) String() string { return "" }

func (*probeValue) Type() string { return "PROBE" }

// Set takes one probe.
func (v *probeValue) Set(text string) error {
	v.f.probes, v.others = append(v.f.probes, text), append(v.others, v.fl.NArg())
	return nil
}

// boundValue is a flag whose values are bound to probes. Flags and arguments are parsed in their order.
type boundValue struct {
	*probeValue
	kind   string
	values *[]boundFlag
}

// Type is what the help calls a value.
func (v *boundValue) Type() string { return v.kind }

// Set takes one value.
func (v *boundValue) Set(text string) error {
	b := boundFlag{text, false, v.fl.NArg() - 1}
	if n := len(v.others); n > 0 && v.others[n-1] == v.fl.NArg() {
		b.byEvent, b.index = true, n-1
	}
	*v.values = append(*v.values, b)
	return nil
}

// filter gives each definition of the command line its filter.
func (f *traceFlags) filter(defs []*event.Def, events int) error {
	for i := range f.filters {
		b := &f.filters[i]
		switch d := b.probe(defs, events); {
		case d == nil:
			return usagef("-f %q: no probe stands before it", b.text)
		case d.Filter != "":
			return usagef("-f %q: the probe before it has a filter already: join them by &&", b.text)
		default:
			d.Filter = b.text
		}
	}
	return nil
}
