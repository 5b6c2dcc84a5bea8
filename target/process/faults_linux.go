package process

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// faultSignals are the signals of a fault in an instruction, in the order in which their handlers are installed: records
// ask who handles SIGSEGV, and go by the answer for SIGBUS too.
var faultSignals = []unix.Signal{unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGSEGV}

// ourSignals are all that the resident handler may stand for.
var ourSignals = append([]unix.Signal{unix.SIGTRAP}, faultSignals...)

// faultTable is the tracer's side of the resident handler: what stands in its table,
// and which dispositions it has replaced.
type faultTable struct {
	t         *Target
	live      map[*target.Site]bool
	dirty     bool // the tables are to be written
	gone      bool // that of breakpoints is, for sites that were taken out
	need      bool // a handler must be there
	traps     bool // the handler of SIGTRAP is installed
	wantTraps bool
	trapTable uint64 // two of them, as of the other table
	trapRoom  int
	// trapSecond: the second one is in use.
	trapSecond bool
	noTraps    error
	resident   *native.Handler
	installed  bool   // for all signals of a fault
	handler    uint64 // where the handler's code is, its room
	room       int
	table      uint64 // two tables, one behind the other, each with room for capacity entries
	second     bool   // the second one is in use
	capacity   int
	written    int // bytes of the one in use
	previous   map[unix.Signal]ptrace.Sigaction
	// set are the dispositions that are ours; false: one that may be, since setting it failed.
	set map[unix.Signal]bool
	// replaced: when ours were taken out, the program had put another handler in the place of one.
	replaced bool
	drops    int            // from live, ever
	planned  []plannedTable // of the changes that are about to be made
}

// plannedTable is the table of faults with some sites more than there are, made before a stop.
type plannedTable struct {
	drops, live int            // what they must be for it to be right, with all of add in live
	add         []*target.Site // since the plan was made
	table       []byte
}

// plan makes the table as it will be with some sites more.
func (f *faultTable) plan(add []*target.Site) {
	if len(add) == 0 {
		return
	}
	if len(f.live) < len(add) { // in the stop the map does not grow
		live := make(map[*target.Site]bool, len(f.live)+len(add))
		maps.Copy(live, f.live)
		f.live = live
	}
	f.planned = append(f.planned, plannedTable{f.drops, len(f.live) + len(add), slices.Clone(add), encodeFaults(f.entries(add))})
}

// encoded gives the table as it is.
func (f *faultTable) encoded() []byte {
	for _, p := range f.planned {
		out := func(s *target.Site) bool { return !f.live[s] }
		if p.drops == f.drops && p.live == len(f.live) && !slices.ContainsFunc(p.add, out) {
			return p.table
		}
	}
	return encodeFaults(f.entries(nil))
}

func encodeFaults(es []native.FaultEntry) []byte {
	b := make([]byte, 0, len(es)*native.FaultEntrySize)
	for _, e := range es {
		b = e.Append(b)
	}
	return b
}

// learnFaults prepares for faults: what the program does with their signals is asked.
// Precondition: the world is stopped.
func (t *Target) learnFaults(s *ptrace.Stopped) error {
	t.faults = &faultTable{t: t, live: map[*target.Site]bool{}, previous: map[unix.Signal]ptrace.Sigaction{}, set: map[unix.Signal]bool{}}
	all, err := s.Dispositions()
	if err != nil {
		return err
	}
	if err := t.awaitBegin(s, all); err != nil {
		return err
	}
	if err := t.learnLoads(s, all); err != nil {
		return err
	}
	for _, sig := range ourSignals {
		t.faults.previous[sig] = all[sig]
	}
	if t.golang != nil {
		t.faults.noTraps = errno.Errorf(unix.EOPNOTSUPP, "the Go runtime takes SIGTRAP for itself when the program starts")
		return nil
	}
	if !t.begun.Load() {
		t.faults.noTraps = errno.Errorf(unix.EOPNOTSUPP, "the program has not run yet, and may take or block SIGTRAP once it does")
		return nil
	}
	t.faults.noTraps, err = whyNoTraps(s, all)
	return err
}

// handles says whether the program has a handler of its own for one of the signals.
func (f *faultTable) handles() bool {
	for _, a := range f.previous {
		if a.Handler > 1 {
			return true
		}
	}
	return false
}

// add takes the sites' loads and displaced instructions into account. The handler is
// installed with the first that needs it: a load of a fetch argument, or any displaced
// instruction in a program that handles faults itself. Where a breakpoint of a site that goes is
// replaced, the table tells of the new one from here on; the table of faults, which knows both,
// is there before a breakpoint can lead to the new one's detour. Precondition: the world is
// stopped.
func (f *faultTable) add(s *ptrace.Stopped, c *target.Change) error {
	f.need = f.need || len(c.Add) > 0 && f.handles()
	for _, a := range c.Add {
		if a.Trap {
			f.wantTraps, f.need = true, true // lookTraps has allowed it
		}
		f.live[a] = true
		f.dirty = true
		f.need = f.need || len(a.Detour.Fixups)+len(a.Detour.Faults) > 0
	}
	if f.need && !f.t.begins {
		if err := f.install(s); err != nil {
			return err
		}
	}
	if f.dirty {
		if err := f.writeTable(); err != nil {
			return err
		}
	}
	if f.dirty || f.gone {
		if err := f.writeTraps(c.Remove); err != nil {
			return err
		}
	}
	f.dirty, f.gone = false, false
	return nil
}

// renew installs the handlers, if they are not there, and has the table tell of modules as they are. Precondition: the world is stopped.
func (f *faultTable) renew(s *ptrace.Stopped) error {
	f.need, f.planned = true, nil
	if !f.t.begins {
		if err := f.install(s); err != nil {
			return err
		}
	}
	return f.writeTable()
}

func (f *faultTable) drop(site *target.Site) {
	if f.live[site] {
		delete(f.live, site)
		f.drops++
		f.dirty = true
	}
}

// writeFaults takes what has been dropped out of the tables: out of that of faults last, since no
// breakpoint may lead to a detour that it does not know. Precondition: the world is stopped.
func (t *Target) writeFaults() error {
	f := t.faults
	if f.dirty || f.gone {
		if err := f.writeTraps(nil); err != nil {
			return err
		}
	}
	if f.dirty {
		if err := f.writeTable(); err != nil {
			return err
		}
	}
	f.dirty, f.gone = false, false
	return nil
}

// entries makes the table's contents, with those of more sites.
func (f *faultTable) entries(more []*target.Site) []native.FaultEntry {
	var out []native.FaultEntry
	for site := range f.live {
		out = native.AppendFaultEntries(out, site.Detour)
	}
	for _, site := range more {
		out = native.AppendFaultEntries(out, site.Detour)
	}
	if f.t.inLine != nil {
		out = append(out, f.t.inLine.faults()...)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Lo < out[j].Lo })
	return out
}

// writeTable brings the table of faults up to date. There are two, and the one that is not in use
// is written: a tracer killed in the middle leaves the other in force. The table is there even
// without a handler, since it tells a later tracer which original instruction a copy stands for.
func (f *faultTable) writeTable() error {
	b := f.encoded()
	entries := len(b) / native.FaultEntrySize
	if entries > f.capacity {
		if err := f.reserve(2 * entries); err != nil {
			return err
		}
	}
	f.second = !f.second
	at := f.tableAt(f.second)
	if err := f.t.p.WriteMem(at, b); err != nil {
		return err
	}
	f.written = len(b)
	head := binary.LittleEndian.AppendUint64(nil, at)
	head = binary.LittleEndian.AppendUint64(head, uint64(entries))
	return f.t.p.WriteMem(f.t.control.addr+hdrFaults, head)
}

// reserve makes room for n entries in each of the two tables, and the next one is written there.
func (f *faultTable) reserve(n int) error {
	n = max(1024, n)
	a, err := f.t.control.alloc(2 * uint64(n) * native.FaultEntrySize)
	if err != nil {
		return fmt.Errorf("fault table: %w", err)
	}
	f.table, f.capacity = a, n
	return nil
}

// tableAt is the address of one of the two tables.
func (f *faultTable) tableAt(second bool) uint64 {
	if second {
		return f.table + uint64(f.capacity)*native.FaultEntrySize
	}
	return f.table
}
