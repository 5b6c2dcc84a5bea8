package tracedat

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/hit"
)

// layoutNames are the names of a process with functions of 0x100 bytes, and one at the end whose size is not known.
type layoutNames struct {
	base uint64
	fns  []string
}

func (*layoutNames) Comm(tid int) string { return fmt.Sprintf("thread%d", tid) }

func (n *layoutNames) Symbol(addr uint64) (fetch.Sym, bool) {
	i := (addr - n.base) / 0x100
	switch {
	case addr < n.base || i > uint64(len(n.fns)):
		return fetch.Sym{}, false
	case i == uint64(len(n.fns)):
		return fetch.Sym{Name: "unsized", Off: addr - n.base - 0x100*i}, true
	}
	return fetch.Sym{Name: n.fns[i], Off: addr - n.base - 0x100*i, Size: 0x100}, true
}

// TestSeveral records hits of processes in which other functions lie at the same addresses: each hit is shown with the names of its own,
// and addresses without a name as what they were.
func TestSeveral(t *testing.T) {
	all := []*layoutNames{
		{0x1000, []string{"a", "b", "c"}},
		{0x1000, []string{"c", "a", "b"}},
		{0x1080, []string{"b", "d", "a"}},
		{0x40000, []string{"a", "b", "c"}},
		{1<<56 - 0x300, []string{"b", "a", "e"}},
	}
	path := filepath.Join(t.TempDir(), "trace.dat")
	r, err := Create(path, testNames{}, "Linux test", "kprobe test")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	nanos := uint64(1e9)
	for range 3 {
		for i, names := range all {
			for off := uint64(0x10); off < 0x480; off += 0x77 {
				ev := &hit.Event{Group: "g", Name: "e", Return: true, Addr: names.base + off}
				h := &hit.Hit{Event: ev, Nanos: nanos, TID: 100 + i, Caller: names.base + 0x480 - off, Rec: make([]byte, 24)}
				if err := r.HitOf(names, h); err != nil {
					t.Fatal(err)
				}
				nanos += 1e6
				want = append(want, fmt.Sprintf("thread%d-%d (%s <- %s)", 100+i, 100+i, shown(names, h.Caller), strings.Split(shown(names, ev.Addr), "+")[0]))
			}
			r.Forget(names)
		}
	}
	if len(r.several) != 0 || r.from != &r.one {
		t.Errorf("%d processes are remembered", len(r.several))
	}
	if err := r.Close(1); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, err := report(f)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(text), "\n")[1:] {
		w := strings.Fields(line)
		got = append(got, w[0]+" "+strings.Join(w[4:], " "))
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("shown\n%s\nwant\n%s", g, w)
	}
}

// shown is an address as a report shows it.
func shown(n *layoutNames, addr uint64) string {
	s, ok := n.Symbol(addr)
	if !ok {
		return fmt.Sprintf("0x%x+0x0", addr)
	}
	return fmt.Sprintf("%s+0x%x", s.Name, s.Off)
}
