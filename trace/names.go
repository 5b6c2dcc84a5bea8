package trace

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/fetch"
)

// names finds the names that lines show. Those of threads are remembered from their first
// record on: a thread may be gone when somebody reads it.
type names struct {
	core *kprobes.Core
	find func(tid int) string

	mu     sync.Mutex
	most   int       // threads that are remembered
	now    time.Time // when the records that are being read were taken up
	comm   map[int]comm
	stale  []int // seen, and to be looked up
	silent bool  // no thread's name is looked up
	processes
	syms map[uint64]sym
}

// sym is what is known of an address.
type sym struct {
	fetch.Sym
	ok bool
}

// comm is what is known of a thread.
type comm struct {
	name string
	at   time.Time // when it was looked up
}

const (
	maxSyms = 1 << 16
	commAge = time.Second // a thread may change its name, and its number may go to another
	noComm  = "<...>"     // what the kernel shows for a thread that it does not know
)

func newNames(core *kprobes.Core, find func(tid int) string) *names {
	var tgids processes
	if find == nil {
		find, tgids.find = procComm, procTGID
	}
	return &names{core: core, find: find, processes: tgids, most: commsFor(1), comm: map[int]comm{}, syms: map[uint64]sym{}}
}

// Symbol implements trace.Namer. What was found is remembered until forget: a line about an
// allocation, in our own process, should not bring forth more of them.
func (n *names) Symbol(addr uint64) (fetch.Sym, bool) {
	n.mu.Lock()
	s, ok := n.syms[addr]
	n.mu.Unlock()
	if ok {
		return s.Sym, s.ok
	}
	s.Sym, s.ok = n.core.Symbol(addr)
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.syms) >= maxSyms {
		clear(n.syms)
	}
	n.syms[addr] = s
	return s.Sym, s.ok
}

// Lines implements hit.Liner.
func (n *names) Lines(addr uint64) []fetch.Line { return n.core.Lines(addr) }

// forget drops what may not be true any more, since objects have come or gone.
func (n *names) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.syms)
}

// Comm implements trace.Namer.
func (n *names) Comm(tid int) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c := n.comm[tid]; c.name != "" {
		return c.name
	}
	return noComm
}

// write writes the threads that are known, by number, as saved_cmdlines has them.
func (n *names) write(w io.Writer) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var b strings.Builder
	for _, tid := range slices.Sorted(maps.Keys(n.comm)) {
		if c := n.comm[tid]; c.name != "" {
			fmt.Fprintf(&b, "%d %s\n", tid, c.name)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// maxComms is the largest number of threads whose names are asked to be kept (PID_MAX_DEFAULT, Linux 6.18).
const maxComms = 1 << 15

// commsFor is of how many threads the kernel keeps names where so many are asked for: of those for which there is room in as many pages as it
// takes then, a power of two (allocate_cmdlines_buffer, Linux 6.18).
func commsFor(most int) int {
	const index, name, number = 4*(maxComms+1) + 4 + 16, 16, 4
	size := 4096
	for size < index+most*name {
		size *= 2
	}
	return (size - index) / (name + number)
}

// setMost sets how many threads are remembered. Those that are too many are forgotten, with all others.
func (n *names) setMost(most int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.most = commsFor(most); len(n.comm) > n.most {
		clear(n.comm)
	}
}

// begin starts to read records.
func (n *names) begin() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.now = time.Now()
}

// saw notes that a thread has a record.
func (n *names) saw(tid int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sawProcess(tid)
	if n.silent {
		return
	}
	c, ok := n.comm[tid]
	if ok && n.now.Sub(c.at) < commAge {
		return
	}
	if !ok && len(n.comm) >= n.most {
		clear(n.comm)
	}
	c.at = n.now
	n.comm[tid] = c
	n.stale = append(n.stale, tid)
}

// look looks up the threads that saw has noted. One that is gone keeps its name.
func (n *names) look() {
	n.mu.Lock()
	stale := n.stale
	n.stale = nil
	n.mu.Unlock()
	n.lookProcesses()
	for _, tid := range stale {
		s := printable(n.find(tid))
		n.mu.Lock()
		if c := n.comm[tid]; s != "" {
			c.name = s
			n.comm[tid] = c
		}
		n.mu.Unlock()
	}
}

// procComm asks the kernel for a thread's name.
func procComm(tid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", tid))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(b), "\n")
}

// printable replaces control bytes, which a thread's name may hold.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\ufffd' {
			return '?'
		}
		return r
	}, s)
}
