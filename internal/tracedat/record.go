package tracedat

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/ringpage"
)

// Recorder writes hits to a file. The pages of each CPU wait in a file without a name beside it, until Close writes all. It is not safe for
// use by several goroutines.
type Recorder struct {
	file     *os.File
	contents Contents
	packer   *ringpage.Packer
	ids      map[string]uint16
	pages    []*os.File // by CPU
	bytes    []int64
	added    int // hits since pages were written
	threads  map[int]thread
	thread   thread // of the last hit
	tid      int
	symbols  map[uint64]Symbol
	one      source  // of Hit
	from     *source // of the hit at hand
	several  map[hit.Namer]*source
	places   places // of the symbols of several
}

// source is a target that hits come from.
type source struct {
	names  hit.Namer
	seen   [recent]moved
	events []*hit.Event // of several sources: those that the packer knows
}

// moved is an address, and what stands for it in the file.
type moved struct{ addr, to uint64 }

// thread is a thread's name, and when it was asked for.
type thread struct {
	name string
	at   uint64 // nanoseconds
}

const (
	recent     = 256     // a power of two
	maxSymbols = 1 << 16 // in a file: further addresses are shown as numbers
	maxThreads = 1 << 16
	nameAge    = 1e9     // nanoseconds for which a thread's name is believed
	spillEvery = 1 << 14 // hits after which whole pages are written
	firstID    = 1024    // of events: below are ftrace's own
	maxEvents  = 1<<16 - firstID
)

// Create makes the file at path, empty until Close. names tells the names of threads and addresses; system and version are those of
// Contents.
func Create(path string, names hit.Namer, system, version string) (*Recorder, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	r := &Recorder{
		file: f, ids: map[string]uint16{}, threads: map[int]thread{}, symbols: map[uint64]Symbol{}, one: source{names: names},
		contents: Contents{Clock: "mono", System: system, Version: version},
	}
	r.packer = ringpage.NewPacker(names, r.id)
	r.packer.Address, r.from = r.address, &r.one
	return r, nil
}

// Stacks has the callers of hits recorded. It is called before the first Hit.
func (r *Recorder) Stacks() {
	r.packer.Stacks = true
	r.contents.Formats = append(r.contents.Formats, Format{ftraceGroup, stackFormat})
}

// id numbers an event: those of the same name and format are one.
func (r *Recorder) id(e *hit.Event) uint16 {
	if r.from != &r.one {
		r.from.events = append(r.from.events, e)
	}
	key := e.Group + "/" + formatOf(e, 0)
	id, ok := r.ids[key]
	if !ok {
		id = uint16(firstID + len(r.ids))
		r.ids[key] = id
		r.contents.Formats = append(r.contents.Formats, Format{e.Group, formatOf(e, int(id))})
	}
	return id
}

// Hit records a hit. The errors that wrap fetch.ErrRecord are of a hit that is damaged and left out; after any other error nothing more can be
// recorded.
func (r *Recorder) Hit(h *hit.Hit) error {
	r.saw(h)
	if err := r.packer.Add(h); err != nil {
		return err
	}
	if len(r.ids) > maxEvents {
		return errno.Errorf(unix.ENOSPC, "trace.dat numbers at most %d events: record fewer", maxEvents)
	}
	if r.added++; r.added%spillEvery == 0 {
		return r.spill()
	}
	return nil
}

// Lost records that hits of a CPU were lost behind those that were recorded: the page of its next hit says so.
func (r *Recorder) Lost(cpu int, hits uint64) { r.packer.Lost(cpu, hits) }

// saw notes the name of the thread that hit.
func (r *Recorder) saw(h *hit.Hit) {
	if r.tid == h.TID && h.Nanos-r.thread.at < nameAge && (h.Comm == "" || h.Comm == r.thread.name) {
		return
	}
	t, ok := r.threads[h.TID]
	if h.Comm != "" {
		t = thread{h.Comm, h.Nanos}
	} else if !ok || h.Nanos-t.at >= nameAge {
		t = thread{r.from.names.Comm(h.TID), h.Nanos}
	}
	r.tid, r.thread = h.TID, t
	if ok || len(r.threads) < maxThreads {
		r.threads[h.TID] = t
	}
}

// address notes the symbol of an address, and gives what stands for the address in the file.
func (r *Recorder) address(addr uint64) uint64 {
	slot := &r.from.seen[(addr^addr>>8)%recent]
	if slot.addr == addr {
		return slot.to
	}
	if len(r.symbols) >= maxSymbols {
		return r.nameless(addr)
	}
	s, ok := r.from.names.Symbol(addr)
	if !ok || s.Off >= farthest { // else the symbol before it would be taken for it
		s = fetch.Sym{Size: 1, Name: fmt.Sprintf("0x%x", addr)}
	}
	*slot = moved{addr, addr}
	if r.from != &r.one {
		slot.to = r.places.at(&s, addr)
	}
	start := slot.to - s.Off
	r.symbols[start] = Symbol{Addr: start, Size: s.Size, Name: s.Name, Module: s.Module}
	return slot.to
}

// spill writes the pages that are whole to the files of their CPUs.
func (r *Recorder) spill() error {
	for cpu := range r.packer.CPUs() {
		b := r.packer.Pages(cpu)
		if len(b) == 0 {
			continue
		}
		for cpu >= len(r.pages) {
			r.pages, r.bytes = append(r.pages, nil), append(r.bytes, 0)
		}
		if r.pages[cpu] == nil {
			f, err := temporary(r.file.Name())
			if err != nil {
				return err
			}
			r.pages[cpu] = f
		}
		if _, err := r.pages[cpu].Write(b); err != nil {
			return err
		}
		r.bytes[cpu] += int64(len(b))
	}
	return nil
}

// temporary makes a file without a name beside another.
func temporary(beside string) (*os.File, error) {
	f, err := os.CreateTemp(filepath.Dir(beside), "."+filepath.Base(beside)+".cpu*")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// Close writes the file. cpus is the number of CPUs that the target has; 0: those that had hits.
func (r *Recorder) Close(cpus int) error {
	for cpu := range r.packer.CPUs() {
		r.packer.Flush(cpu)
	}
	err := errors.Join(r.spill(), r.write(cpus))
	for _, f := range r.pages {
		if f != nil {
			f.Close()
		}
	}
	return errors.Join(err, r.file.Close())
}

func (r *Recorder) write(cpus int) error {
	r.contents.Threads = map[int]string{}
	for tid, t := range r.threads {
		r.contents.Threads[tid] = t.name
	}
	for _, s := range r.symbols {
		r.contents.Symbols = append(r.contents.Symbols, s)
	}
	all := make([]Pages, max(cpus, len(r.pages), 1))
	for cpu := range all {
		all[cpu].Data = strings.NewReader("")
		if cpu >= len(r.pages) || r.pages[cpu] == nil {
			continue
		}
		if _, err := r.pages[cpu].Seek(0, io.SeekStart); err != nil {
			return err
		}
		all[cpu] = Pages{r.pages[cpu], r.bytes[cpu]}
	}
	return Write(r.file, &r.contents, all)
}
