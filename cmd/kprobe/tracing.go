package main

import (
	"sync"
	"sync/atomic"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/executables"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/spanmaker"
	"kprobes.dev/kprobes/target/process"
)

// tracing is one run of the verb.
type tracing struct {
	f       *traceFlags
	s       tracee
	end     *ending
	hits    *hitQueue
	printed *lines
	// define makes of the definitions those that are added, if the verb adds others; what is probed is open by then.
	define func(s tracee, defs []*event.Def) ([]*event.Def, error)
	// What triggers and the verbs hist and stat do when the probes are added, and when the last hit was handed over.
	added func(s tracee) error
	left  func()
	// What the verb spans does with each process of an executable: it adds the probes, and ends when all its hits were handed over.
	eachAdd  func(m *executableMember, add func([]*event.Def) error) error
	eachLeft func(m *executableMember)
	// What triggers have counted of the events, for the summary.
	sum func([]*total)
	// Hits that were lost since nobody printed them in time.
	lost map[*hit.Event]uint64
	// What the verb stat does at intervals.
	every  time.Duration
	ticked func()
}

// tracedExecutable is all processes of an executable as one tracee. Each has an engine of its own, in this process; they share what is
// read of files.
type tracedExecutable struct {
	t     *tracing
	every *everyProcess
	cmd   []string // is started, and its processes alone count; none: all
	set   *executables.Set
	files process.Files
	defs  []*event.Def
	add   kprobes.AddOptions

	first   sync.Once // tells what is so in every process
	told    tellOnce
	skipped tellOnce
	// exceeded are events that budgets have disabled.
	exceeded tellOnce
	pending  atomic.Bool

	mu      sync.Mutex
	members []*executableMember
	next    int // that Sync looks at next
	sums    executableSums

	hits     mergedHits
	nextPoll time.Time
}

// executableMember is one process of an executable.
type executableMember struct {
	x    *tracedExecutable
	p    tracedProcess
	comm string
	met  bool // its histograms have been made; of the goroutine that counts
	// spans makes its spans; of the goroutine that takes the hits, once the process has its probes.
	spans *spanmaker.Maker
	lossy atomic.Bool // hits were lost, which spans is not told yet

	// mu is held while the process is left; who reads records or follows what it maps holds it for reading.
	mu   sync.RWMutex
	left bool
	// final is what the events had counted when the process was left.
	final []kprobes.Counts
}

// mergedHits are hits of several processes, until they are handed over in the order of their times.
type mergedHits struct {
	mu   sync.Mutex
	full batch
	left []*executableMember // all hits of these are in full
}

// traceFlags are the flags of kprobe trace.
type traceFlags struct {
	con      *console
	of       subject
	every    everyProcess
	probes   []string // by -e
	others   []string // without a flag
	only     restriction
	filters  []boundFlag
	triggers []boundFlag
	bound    []boundTrigger // triggers, with their probes
	deletes  []string
	file     string
	stat     bool
	counters bool
	duration time.Duration
	count    uint64
	out      string
	format   string
	quiet    bool
	verbose  bool
	buffer   int
	tactic   string
	stubs    bool
	stack    int
	given    func(flag string) bool
	listed   []*event.Def // what probes and others are, in their order; nil for a comment
	text     string
	alone    bool
	budget   kprobes.Budget
	// inlines and noInlines are --inlines and --no-inlines; patterns says that a definition is one.
	inlines, noInlines, patterns bool
}

// boundFlag is a flag that belongs to the probe before it: by -e or without a flag, and its place among these; -1: none.
type boundFlag struct {
	text    string
	byEvent bool
	index   int
}

// boundTrigger is a trigger with the probe that it belongs to.
type boundTrigger struct {
	def     *event.Def
	trigger *event.Trigger
}

// everyProcess is what -x and the flags that belong to it have named: all processes of an executable.
type everyProcess struct {
	path, group, container string
	file                   *executables.File
	only                   executables.Only
}

// executableSums is what the processes have counted that were left. Whoever uses it holds the tracee's lock.
type executableSums struct {
	totals []*total // in the order of their first appearance
	// counts are those of the events of totals, for intervals.
	counts []kprobes.Counts
	byName map[string]int
	// processes are those that were left; others counts those of which there was no room to remember more.
	processes []processSum
	others    uint64
	remarks   map[string]int // what went wrong, and how often
	errs      []error
}

// tellOnce has each thing told once, however many processes it is so in.
type tellOnce struct {
	most  int // things that are told
	mu    sync.Mutex
	seen  map[string]int
	order []string
	first error
	// Until now is called what is to be told waits: it may be what the command ends with.
	waits  bool
	untold []func()
}

// processSum is what one process has counted.
type processSum struct {
	PID    int    `json:"process"`
	Comm   string `json:"comm"`
	Hits   uint64 `json:"hits"`
	Missed uint64 `json:"missed"`
	Lost   uint64 `json:"lost"`
	// Events has the hits of each event that had any, if there are several events.
	Events map[string]uint64 `json:"events,omitempty"`
}
