package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/target/process"
)

// session is one process being probed.
type session struct {
	proc   *process.Proc
	target *process.Target
	core   *kprobes.Core
	names  *names
}

// attach opens a running process for probing.
func attach(pid int, o process.TargetOptions) (*session, error) {
	p, err := process.OpenUnwaited(pid)
	if err != nil {
		return nil, err
	}
	o.HandlerWait = handlerWait
	return newSession(p, &o)
}

// handlerWait is how long a thread of the process may wait for a handler of this command
// (bench): a busy machine is no reason to miss one.
const handlerWait = 10 * time.Second

func newSession(p *process.Proc, o *process.TargetOptions) (*session, error) {
	t, err := process.Attach(p, o)
	if err != nil {
		p.Close()
		return nil, err
	}
	n := newNames(t)
	core, err := kprobes.Open(t, &kprobes.Options{Comm: n.Comm})
	if err != nil {
		p.Close()
		return nil, err
	}
	n.core = core
	return &session{proc: p, target: t, core: core, names: n}, nil
}

// names finds the names that lines show, and remembers them.
type names struct {
	t     *process.Target
	mu    sync.Mutex
	space *symbol.Space
	syms  map[uint64]*fetch.Sym
	// What follows has a lock of its own: who reads records asks for the names of threads, while others print.
	commMu sync.Mutex
	comm   map[int]taskName
	// program is the name of the process when it was last seen.
	program string
	// foreign: thread ids are those of another pid namespace.
	foreign bool
	core    *kprobes.Core // that tells lines of the source; nil: none are told
}

// Lines implements hit.Liner.
func (n *names) Lines(addr uint64) []fetch.Line {
	if n.core == nil {
		return nil
	}
	return n.core.Lines(addr)
}

// Symbol finds the symbol at an address, nil-safe for what nothing is known of.
func (n *names) Symbol(addr uint64) (fetch.Sym, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.syms[addr]
	if !ok {
		s = n.find(addr)
		if n.syms == nil {
			n.syms = map[uint64]*fetch.Sym{}
		}
		n.syms[addr] = s
	}
	if s == nil {
		return fetch.Sym{}, false
	}
	return *s, true
}

func (n *names) find(addr uint64) *fetch.Sym {
	space := n.t.Space()
	l, ok := space.SymbolAt(addr)
	if !ok {
		return nil
	}
	s := &fetch.Sym{Name: l.Name, Pretty: l.Func.Pretty(), Off: l.Off, Size: l.Size}
	if m := space.ModuleAt(addr); m != nil && !m.Main {
		s.Module = m.Name
	}
	return s
}

// forget drops names that may belong to an object that has gone. Only names that are
// asked for anew are looked up anew.
func (n *names) forget() {
	if s := n.t.Space(); s != n.space {
		n.mu.Lock()
		n.space, n.syms = s, nil
		n.mu.Unlock()
	}
}

// taskName is the name of a thread when it was last looked at.
type taskName struct {
	name string
	at   time.Time
}

// commAge is how long a thread's name is believed: it may change, and its number may go to another.
const commAge = time.Second

// newNames looks at the process while it is there: it may have ended when its last records are read.
func newNames(t *process.Target) *names {
	n := &names{t: t, comm: map[int]taskName{}, foreign: foreignPIDs(t.Proc())}
	n.Comm(t.Proc().PID())
	return n
}

// Comm gives a thread's name. A thread that ended before anybody looked has its
// process's. The ids are those of the target's own pid namespace.
func (n *names) Comm(tid int) string {
	n.commMu.Lock()
	defer n.commMu.Unlock()
	c, ok := n.comm[tid]
	if ok && time.Since(c.at) < commAge {
		return c.name
	}
	if s, ok := n.lookComm(tid); ok {
		c.name = s
	} else if !ok && c.name == "" {
		c.name = n.program
	}
	if c.name == "" {
		return "<...>"
	}
	c.at = time.Now()
	n.comm[tid] = c
	return c.name
}

func (n *names) lookComm(tid int) (string, bool) {
	pid := n.t.Proc().PID()
	host := tid
	if n.foreign {
		host = n.hostTID(tid)
	}
	dirs := []string{fmt.Sprintf("/proc/%d/task/%d", pid, host), fmt.Sprintf("/proc/%d", pid)}
	if !n.foreign {
		dirs = slices.Insert(dirs, 1, fmt.Sprintf("/proc/%d", host)) // a fork child
	}
	for i, dir := range dirs {
		b, err := os.ReadFile(dir + "/comm")
		if err != nil {
			continue
		}
		s := clean(strings.TrimSuffix(string(b), "\n"))
		if i == len(dirs)-1 || tid == pid {
			n.program = s
		}
		return s, true
	}
	return "", false
}

// foreignPIDs says whether the target has a pid namespace other than ours.
func foreignPIDs(p *process.Proc) bool {
	var st unix.Stat_t
	theirs, err := p.Namespace("pid")
	return err == nil && unix.Stat("/proc/self/ns/pid", &st) == nil && st.Ino != theirs
}

// hostTID finds the thread that has an id in the target's pid namespace.
func (n *names) hostTID(tid int) int {
	tasks, err := n.t.Proc().Tasks()
	if err != nil {
		return tid
	}
	for _, host := range tasks {
		st, err := n.t.Proc().TaskStatus(host)
		if err == nil && len(st.NSTID) > 0 && st.NSTID[len(st.NSTID)-1] == tid {
			return host
		}
	}
	return tid
}

// clean replaces control bytes, which a thread's name may hold.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\ufffd' {
			return '?'
		}
		return r
	}, s)
}
