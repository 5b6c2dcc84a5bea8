package trace

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// processes are those of threads, as the option record-tgid has them recorded: each is looked up at the thread's first record. They belong to
// names, and its lock guards them.
type processes struct {
	find    func(tid int) int // 0: it is not known; nil: the threads are not of this machine
	askers  map[*Instance]bool
	tgids   map[int]int // 0: it was not found
	unknown []int       // to be looked up
}

// maxTGIDs is of how many threads the process is remembered.
const maxTGIDs = 1 << 16

// setRecording says whether threads' names are looked up.
func (n *names) setRecording(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent = !on
}

// recordProcesses says whether an instance asks for threads' processes.
func (n *names) recordProcesses(in *Instance, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.askers == nil {
		n.askers, n.tgids = map[*Instance]bool{}, map[int]int{}
	}
	if on {
		n.askers[in] = true
	} else {
		delete(n.askers, in)
	}
}

// sawProcess notes that a thread has a record. Precondition: the lock of names is held.
func (n *names) sawProcess(tid int) {
	if len(n.askers) == 0 || n.processes.find == nil {
		return
	}
	if _, ok := n.tgids[tid]; !ok {
		if len(n.tgids) >= maxTGIDs {
			clear(n.tgids)
		}
		n.tgids[tid] = 0
		n.unknown = append(n.unknown, tid)
	}
}

// lookProcesses looks up what sawProcess has noted.
func (n *names) lookProcesses() {
	n.mu.Lock()
	unknown := n.unknown
	n.unknown = nil
	n.mu.Unlock()
	for _, tid := range unknown {
		tgid := n.processes.find(tid)
		n.mu.Lock()
		n.tgids[tid] = tgid
		n.mu.Unlock()
	}
}

// tgid is the process of a thread; 0: it was not recorded.
func (n *names) tgid(tid int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.tgids[tid]
}

// WriteTGIDs writes saved_tgids: the threads whose process was recorded, by number, with that. See OptionRecordTGID.
func (in *Instance) WriteTGIDs(w io.Writer) error {
	in.names.mu.Lock()
	defer in.names.mu.Unlock()
	var b strings.Builder
	for _, tid := range slices.Sorted(maps.Keys(in.names.tgids)) {
		if tgid := in.names.tgids[tid]; tgid != 0 {
			fmt.Fprintf(&b, "%d %d\n", tid, tgid)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// procTGID asks the kernel for a thread's process; 0: the thread has gone.
func procTGID(tid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(b, []byte("\nTgid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	tgid, _ := strconv.Atoi(string(bytes.TrimSpace(line))) // 0: the kernel tells it in another form
	return tgid
}
