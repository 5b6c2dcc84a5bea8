package ptrace

import (
	"bytes"
	"slices"
	"sort"
	"strings"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
)

// gadgetSet is the instructions found in a program that system calls can be made with.
type gadgetSet struct {
	gadgets
	stubs []uint64 // rt_sigreturn stubs, one of each file: return addresses of signal frames
}

const (
	scanChunk = 1 << 20  // bytes read at once
	scanMost  = 64 << 20 // bytes of code that are searched
)

// Reserved gives the ranges of code that system calls for the target are made with.
// They must stay as they are. It is empty until the first stop.
func (p *Process) Reserved() []interval.Range {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gadget == nil {
		return nil
	}
	rs := p.gadget.ranges()
	for _, a := range p.gadget.stubs {
		rs = append(rs, interval.Range{Start: a, End: a + uint64(len(sigreturnCode[0]))})
	}
	return rs
}

// Skip names mappings, by what their paths begin with, whose code may go away: nothing of it is used to make system
// calls. It must be called before the first stop.
func (p *Process) Skip(prefixes ...string) { p.skip = prefixes }

// skips says whether a mapping is one of those.
func (p *Process) skips(m procfs.Map) bool {
	return slices.ContainsFunc(p.skip, func(prefix string) bool { return strings.HasPrefix(m.Path, prefix) })
}

// findGadgets searches the program's code, once, and again where what was found is gone.
func (p *Process) findGadgets() *gadgetSet {
	p.mu.Lock()
	g := p.gadget
	p.mu.Unlock()
	if g != nil && p.stillThere(g) {
		return g
	}
	g = &gadgetSet{}
	maps, err := p.Maps()
	if err != nil {
		return g
	}
	left := uint64(scanMost)
	for _, m := range codeMaps(maps) {
		m.End = m.Start + min(m.Size(), left)
		left -= m.Size()
		p.scan(m, g)
	}
	p.mu.Lock()
	p.gadget = g
	p.mu.Unlock()
	return g
}

// codeMaps gives the executable mappings, the vDSO first, which nobody patches, then files
// by size: the small ones are soon read.
func codeMaps(maps []procfs.Map) []procfs.Map {
	var code []procfs.Map
	for _, m := range maps {
		if m.Perm&procfs.PermExec != 0 && m.Start < procfs.UserTop && (!m.Anonymous() || m.Path == "[vdso]") {
			code = append(code, m)
		}
	}
	sort.SliceStable(code, func(i, j int) bool {
		if vi, vj := code[i].Anonymous(), code[j].Anonymous(); vi != vj {
			return vi
		}
		return code[i].Size() < code[j].Size()
	})
	return code
}

// scan looks for what is missing in one mapping, and for its rt_sigreturn stub.
func (p *Process) scan(m procfs.Map, g *gadgetSet) {
	buf := make([]byte, min(m.Size(), scanChunk))
	stub := uint64(0)
	const overlap = 16
	for at := m.Start; at < m.End; at += scanChunk - overlap {
		n, err := p.ReadMemSome(at, buf[:min(uint64(len(buf)), m.End-at)])
		if err != nil {
			return
		}
		b := buf[:n]
		if !p.skips(m) {
			g.search(at, b)
		}
		for _, code := range sigreturnCode {
			first(&stub, at, b, code)
		}
	}
	if stub == 0 {
		return
	}
	g.stubs = append(g.stubs, stub)
	if g.sigreturn == 0 && !p.skips(m) {
		g.sigreturn = stub
	}
}

func first(found *uint64, at uint64, b, code []byte) {
	if *found != 0 {
		return
	}
	if i := bytes.Index(b, code); i >= 0 {
		*found = at + uint64(i)
	}
}

func (p *Process) holds(addr uint64, code []byte) bool {
	b := make([]byte, len(code))
	return p.ReadMem(addr, b) == nil && bytes.Equal(b, code)
}
