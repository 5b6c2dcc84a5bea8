package process

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/target/patch"
)

// A kernel uprobe belongs to a file: whoever places one has the kernel write a breakpoint into
// every process that has that page of the file mapped, at any time, and does not ask. Inside one
// of our jumps that kills the program. So a page of text gets a private copy before a jump stands
// in it: a mapping of a memory file with the same bytes, put over the page by one mmap(2) with
// MAP_FIXED. The kernel finds the processes of a uprobe by the file: this page it does not find.
//
// The states, and what any thread of the program runs in each:
//
//	1. the memory file is made, filled and named            the file's page
//	2. mmap over the page, one system call, atomic          the file's page, or the same bytes in the copy
//	3. the descriptor is closed; patches are written        the copy, like any patch
//	4. detach: the sites' bytes are put back                the copy, the file's bytes again
//	5. the file is opened, and mmap over the copy, atomic   the copy or the file's page
//	6. the descriptor is closed                             the file's page
//
// A tracer that dies in any of them leaves a program that runs on. A copy that stays is told by
// its name (text.go), and taken back by whoever undoes what was left.
//
// Nothing is made private where it would harm: a page on which a breakpoint of somebody else
// stands (the copy would have none, or worse, one that nobody answers), on which the kernel holds a
// probe of the engine's, whose bytes are not the file's, or where the program would have too many mappings.

// TextMode says whether the pages of text that probes stand in become private copies
// (docs/RATIONALE.md).
type TextMode int

// The modes.
const (
	TextDefault TextMode = iota // TextPrivate
	TextPrivate                 // private copies: uprobes that come later do not reach the probes
	TextShared                  // pages stay mapped from the program's files
)

// privateText is what a target knows of its private copies.
type privateText struct {
	on      bool
	limit   uint64                     // mappings that the process may have
	private map[uint64]bool            // pages that are copies
	held    map[uint64]bool            // pages on which the kernel holds probes of the engine's
	files   map[procfs.FileID]*os.File // the program's files, open here
	mu      sync.Mutex                 // for Stands, which several goroutines may ask
	maps    []procfs.Map               // as they were when somebody first asked Stands; nil: nobody has
	clean   map[uint64]error           // what Stands has answered for a page
	inUse   map[uint64]bool            // where breakpoints of others stand that are in use
	plans   []textPlan                 // of the change that is being made
	why     error                      // why pages of the last change stayed as they are; nil: none did
	kept    int                        // copies that stay after Close, in pages
	keptWhy error
}

func (t *Target) initText(mode TextMode) {
	x := &t.text
	x.on, x.limit = mode != TextShared, mapLimit()
	x.private, x.held, x.files = map[uint64]bool{}, map[uint64]bool{}, map[procfs.FileID]*os.File{}
	x.inUse = map[uint64]bool{}
}

// mapLimit is how many mappings a process may have (vm.max_map_count).
func mapLimit() uint64 {
	b, err := os.ReadFile("/proc/sys/vm/max_map_count")
	if err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
			return n
		}
	}
	return 65530 // DEFAULT_MAX_MAP_COUNT (linux/mm.h)
}

// KeptText tells of copies that stay after Close, in pages, with the file's own bytes, and why.
func (t *Target) KeptText() (pages int, why error) { return t.text.kept, t.text.keptWhy }

// learnText notes which pages are copies, after the mappings have changed.
func (t *Target) learnText(maps []procfs.Map) {
	if !t.text.on {
		return
	}
	clear(t.text.private)
	for _, m := range maps {
		for at := m.Start; isText(m) && at < m.End; at += procfs.PageSize {
			t.text.private[at] = true
		}
	}
}

// learnRuns notes which pages of runs are copies now.
func (t *Target) learnRuns(maps []procfs.Map, runs []textRun) {
	if !t.text.on {
		return
	}
	for _, r := range runs {
		for at := r.Start; at < r.End; at += procfs.PageSize {
			if m, ok := procfs.FindMap(maps, at); ok && isText(m) {
				t.text.private[at] = true
			} else {
				delete(t.text.private, at)
			}
		}
	}
}

// textMap finds the mapping that an address of the program's code lies in, if pages of it can be
// made private: private, executable, not writable, of a file.
func textMap(maps []procfs.Map, addr uint64) (procfs.Map, bool) {
	m, ok := procfs.FindMap(maps, addr)
	return m, ok && m.Perm == procfs.PermRead|procfs.PermExec && !m.Anonymous() && !ours(m) && !isText(m)
}

// textFile opens the file of a mapping.
func (t *Target) textFile(m procfs.Map) (*os.File, error) {
	if f := t.text.files[m.FileID]; f != nil {
		return f, nil
	}
	f, err := t.p.OpenMap(m)
	if err == nil {
		t.text.files[m.FileID] = f
	}
	return f, err
}

// fileBytes reads what a file has, with zeros behind its end, as a mapping shows it.
func fileBytes(f *os.File, off uint64, b []byte) error {
	n, err := f.ReadAt(b, int64(off))
	if errors.Is(err, io.EOF) {
		clear(b[n:])
		err = nil
	}
	return err
}

// close closes the files.
func (x *privateText) close() {
	for _, f := range x.files {
		f.Close()
	}
	clear(x.files)
}

// forget drops what was for one change: it has been made.
func (x *privateText) forget() { x.maps, x.clean, x.plans = nil, nil, nil }

// Stands says why no generated code may stand at an address: somebody else's breakpoint stands on
// the same page, which can not become a private copy then, so that the next of them may fall into
// our code. Several goroutines may ask at once.
func (t *Target) Stands(addr uint64) error {
	page := procfs.PageDown(addr)
	if !t.text.on || t.text.private[page] || t.text.held[page] {
		return nil
	}
	t.text.mu.Lock()
	defer t.text.mu.Unlock()
	if t.text.maps == nil {
		maps, err := t.p.Maps()
		if err != nil {
			return err
		}
		t.text.maps, t.text.clean = maps, map[uint64]error{}
	}
	no, known := t.text.clean[page]
	if !known {
		no = t.othersOn(page, addr)
		t.text.clean[page] = no
	}
	return no
}

// othersOn fails if somebody else's breakpoint stands on a page of text. What can not be looked at is no
// reason against a place: the change itself will find out.
func (t *Target) othersOn(page, addr uint64) error {
	m, ok := textMap(t.text.maps, page)
	if !ok {
		return nil
	}
	f, err := t.textFile(m)
	if err != nil {
		return nil // nothing is made private there
	}
	want := make([]byte, procfs.PageSize)
	if fileBytes(f, page-m.Start+m.Offset, want) != nil {
		return nil
	}
	if _, err = t.samePage(page, want, addr); errors.Is(err, unix.EBUSY) && t.dropKept() {
		_, err = t.samePage(page, want, addr)
	}
	if errors.Is(err, unix.EBUSY) {
		return err
	}
	return nil
}

// dropKept says whether breakpoints were taken out that the kernel had kept. Those that stay are in use: that is
// asked once of each.
func (t *Target) dropKept() bool {
	c := keptCase{inUse: t.text.inUse, held: t.text.held}
	if t.control != nil {
		for s := range t.control.sites {
			c.ours = append(c.ours, patch.Entry{Addr: s.Addr, Orig: s.Orig, Patch: s.Patch})
		}
	}
	k := dropKept(t.p, c)
	for _, addr := range k.Stays {
		t.text.inUse[addr] = true
	}
	return len(k.Dropped) > 0
}

// samePage says whether a page has the file's bytes. The error tells of a breakpoint of somebody
// else on it; addr is for whom.
func (t *Target) samePage(page uint64, want []byte, addr uint64) (bool, error) {
	have := make([]byte, procfs.PageSize)
	if err := t.p.ReadMem(page, have); err != nil {
		return false, err
	}
	if bytes.Equal(have, want) {
		return true, nil
	}
	if t.control != nil {
		for s := range t.control.sites {
			if s.Addr-page < procfs.PageSize && bytes.HasPrefix(have[s.Addr-page:], s.Patch) {
				copy(have[s.Addr-page:], s.Orig)
			}
		}
	}
	for i := range have {
		if have[i] == native.Breakpoint && want[i] != native.Breakpoint {
			return false, errno.Errorf(unix.EBUSY, "0x%x: a breakpoint that is not ours (a kernel uprobe, a debugger) stands on the same page, at 0x%x: "+
				"the page can get no private copy, and a further breakpoint inside the jump would kill the program: remove it, or take the risk by --text shared (TextShared)", addr, page+uint64(i))
		}
	}
	return false, nil
}
