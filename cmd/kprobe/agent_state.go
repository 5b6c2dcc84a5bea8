package main

import (
	"log/slog"
	"sync"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/agentconfig"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/executables"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/metrics"
	"kprobes.dev/kprobes/internal/otlp"
	"kprobes.dev/kprobes/internal/spanmaker"
	"kprobes.dev/kprobes/target/process"
)

// agentRun is a run of the verb agent.
type agentRun struct {
	con   *console
	path  string
	check bool

	audit  *slog.Logger
	otlp   agentconfig.OTLP
	seen   fileState      // of the file when it was read last
	ending sync.WaitGroup // exporters that send what is left
	files  process.Files  // programs and shared objects that targets have read

	mu                 sync.Mutex
	applied            bool                // the file has been, once
	config             *agentconfig.Config // in force
	targets            []*agentTarget      // in the order of the file
	accepted, rejected uint64              // reloads
	refused            bool                // the file that is there now was
}

// agentProbe is a probe of the file, with what it has counted in processes that have been left.
type agentProbe struct {
	is *agentconfig.Probe

	showing sync.Mutex                  // held while histograms become series
	shown   map[string]*metrics.Counted // by event

	mu     sync.Mutex
	armed  map[*agentArmed]bool // in the processes that there are
	counts []*eventCounts       // by group and name
	hists  *metrics.Set
	failed uint64 // processes in which it could not be armed
}

// agentArmed is a probe that is armed in a process; without events it could not be.
type agentArmed struct {
	probed
	p     *agentProcess
	hists []*agentHist

	mu    sync.Mutex
	final *agentReading // nil: it counts on
}

// agentHist is a histogram of an event.
type agentHist struct {
	group, name string
	ev          *engine.Event
	hist        *hit.Histogram
}

// agentProcess is a process that the agent probes.
type agentProcess struct {
	t       *agentTarget
	pid     int
	p       *tracedProcess
	exited  <-chan struct{}             // nil: a set says when it has ended
	probes  map[*agentProbe]*agentArmed // of the goroutine that attends to it
	wake    chan struct{}               // the target's probes have changed
	end     chan string                 // it is to be left, and why
	gone    chan struct{}               // closed when it has been
	pending chan struct{}               // a thread waits for Sync
	stop    chan struct{}               // reading ends
	read    chan struct{}               // closed when it has
	said    map[string]bool             // what went wrong and has been told

	mu     sync.Mutex // held while hits are taken
	known  map[*hit.Event]*agentHist
	hists  map[string]*agentHist // by event
	values []fetch.Value
	spans  *spanmaker.Maker // nil: there are none

	runtime []*kprobes.Event // probes on Go's runtime that the spans need
}

// agentTarget is a target of the agent: a process that runs, or is waited for, or all processes of a program.
type agentTarget struct {
	a    *agentRun
	is   *agentconfig.Target
	wake chan struct{} // the probes have changed
	stop chan string   // the target goes, and why
	done chan struct{} // closed when it has gone
	told string        // what has been said of why there is no process

	refusals tellOnce // of processes of a program

	mu        sync.Mutex
	want      []*agentconfig.Probe
	why       string        // the probes are wanted
	probes    []*agentProbe // is replaced, not changed
	processes []*agentProcess
	opened    uint64           // processes that had probes
	looked    bool             // the processes that were there have been opened
	ending    string           // why all processes are left; "": they are not
	set       *executables.Set // of a program, once it is open
	sent      agentSpans
}

// agentSpans is what has become of the calls of a target.
type agentSpans struct {
	made     spanmaker.Stats                    // by processes that have been left
	making   map[*spanmaker.Maker]*agentProcess // in the processes that there are
	exporter *otlp.Exporter                     // of all processes; nil: none has had spans
	losses   tellOnce                           // why spans were lost
}

// agentReading is what the events of a probe have counted in a process.
type agentReading struct {
	counts   []kprobes.Counts // as the events
	hists    []*hit.Histogram // as the histograms
	disabled uint64           // events that their budget has disabled
	err      error            // why a histogram is not complete
}

// fileState is what changes when a file does.
type fileState struct {
	dev, ino     uint64
	size         int64
	sec, nanosec int64 // of the last change
}
