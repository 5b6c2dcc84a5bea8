// Package agentconfig reads the configuration of kprobe agent: what is probed, and where counts and spans go. A file is taken as a whole or refused with
// all that is wrong with it, each with its line and column. The package touches no process. Of other files it reads those of sets that are named.
package agentconfig

import (
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/budget"
	"kprobes.dev/kprobes/internal/executables"
	"kprobes.dev/kprobes/internal/metrics"
	"kprobes.dev/kprobes/internal/spanset"
)

// Config is a file. Its parts must not be changed.
type Config struct {
	Listen    string // HOST:PORT that requests are answered at; "": none are
	TokenFile string // has the token that requests must bear
	AuditLog  string // that audit lines are appended to; "": standard error
	OTLP      OTLP
	Targets   []*Target // at least one, with names of their own
}

// OTLP says where spans go.
type OTLP struct {
	Endpoint string // as otlp.Dial takes it; "": there are no spans
	Headers  map[string]string
	Service  string // service.name; "": the name of the program
}

// Target is a process, or all processes of a program, and what is probed in them. Of PID, PIDFile and Exe one is given.
type Target struct {
	Name    string
	PID     int
	PIDFile string           // has the number of the process, also of those that follow it
	Exe     string           // the path of the program's file
	Only    executables.Only // which processes of Exe count
	Labels  map[string]string
	Probes  []*Probe // at least one
}

// SameProcesses says whether another target names its processes as this one does.
func (t *Target) SameProcesses(o *Target) bool {
	return t.PID == o.PID && t.PIDFile == o.PIDFile && t.Exe == o.Exe && t.Only == o.Only
}

// Probe is a probe. Two with the same Key are the same.
type Probe struct {
	// Key is all that the file says of it.
	Key string
	// Define is the definition as it was written, Filter and Hist what goes with it.
	Define, Filter, Hist string
	Spans                bool
	Failed               string // which calls have failed: a filter; "": those whose last result is an error of Go
	Kind                 string // the kind of its spans, as spanset.Kind takes it; "": none is given
	// Set is the set that the probe stands for, whose calls become spans; "": it has a definition. Define is "set NAME" then.
	Set    string
	Budget budget.Budget
	Labels map[string]string // those of the target too

	set []byte // the file of Set
}

// Calls parses the probe of spans, or the set, anew: who adds the calls may change them. The file was refused if that has an error.
func (p *Probe) Calls() ([]*spanset.Call, error) {
	if p.Set != "" {
		return spanset.Read(p.Set, p.set)
	}
	text, names := spanset.Attributes(p.Define)
	d, err := event.Parse(text)
	if err != nil {
		return nil, err
	}
	d.Filter = p.Filter
	c := &spanset.Call{Def: d, Names: names, Error: p.Failed}
	if p.Kind != "" {
		c.Kind, err = spanset.Kind(p.Kind)
	}
	return []*spanset.Call{c}, err
}

// Def parses the definition of a probe without spans anew, with its filter and its histogram: who adds it may change it. The file was refused if that has an error.
func (p *Probe) Def() (*event.Def, error) {
	d, err := event.Parse(p.Define)
	if err != nil {
		return nil, err
	}
	d.Filter = p.Filter
	if p.Hist == "" {
		return d, nil
	}
	if d.Hist, err = event.ParseHist(p.Hist); err != nil {
		return nil, err
	}
	if d.Hist.Filter != "" {
		d.Filter = d.Hist.Filter
	}
	metrics.SumKeys(d.Hist)
	return d, nil
}
