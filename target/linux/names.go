package linux

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"kprobes.dev/kprobes/internal/fetch"
)

// names finds the names that lines show. It is safe for use by several goroutines.
type names struct {
	dir  string // tracefs
	once sync.Once
	syms symbols

	mu   sync.Mutex
	comm map[int]string // since refresh
}

// Symbol finds the symbol at an address of the kernel; none where the caller may not see
// addresses.
func (n *names) Symbol(addr uint64) (fetch.Sym, bool) {
	n.load()
	return n.syms.at(addr)
}

// load reads the symbols, once. Without them addresses are shown.
func (n *names) load() { n.once.Do(func() { n.syms, _ = loadSymbols() }) }

// refresh forgets threads' names: a thread that executes a program gets another one.
func (n *names) refresh() {
	n.mu.Lock()
	n.comm = nil
	n.mu.Unlock()
}

// Comm gives a thread's name: what it is called now, or, if it has ended, what the kernel
// remembers of it.
func (n *names) Comm(tid int) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.comm == nil {
		n.comm = map[int]string{0: "<idle>"}
	}
	s, ok := n.comm[tid]
	if !ok {
		s = n.look(tid)
		n.comm[tid] = s
	}
	return s
}

func (n *names) look(tid int) string {
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", tid)); err == nil {
		return clean(strings.TrimSuffix(string(b), "\n"))
	}
	saved, err := read(n.dir, "saved_cmdlines")
	if err == nil {
		for line := range strings.Lines(saved) {
			pid, comm, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			if ok && pid == strconv.Itoa(tid) {
				return clean(comm)
			}
		}
	}
	return "<...>"
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
