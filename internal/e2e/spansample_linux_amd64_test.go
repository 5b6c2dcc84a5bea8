package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// among gives the spans of a tree whose functions are among some.
func (tr *tree) among(names ...string) *tree {
	out := &tree{map[uint64]*gotSpan{}, tr.in}
	for n, s := range tr.of {
		if slices.Contains(names, s.name) {
			out.of[n] = s
		}
	}
	return out
}

// roots counts the calls that are in none of the tree.
func (tr *tree) roots(all *tree) (n uint64) {
	for id := range tr.of {
		if all.nearest(id, tr) == 0 {
			n++
		}
	}
	return n
}

// TestSpansSampledGo has traces of goroutines chosen at the hit, while another command has them all: as many are kept as the flag says, and each as a
// whole, with the goroutines that were created in it. In one command the first calls of traces are such as a panic leaves.
func TestSpansSampledGo(t *testing.T) {
	p := hardGo(t, "gonests", nil)
	c := newCollector(t)
	dir := t.TempDir() + "/"
	full := startSpans(t, p, "--otlp", c.url, "main.Handle id in", "main.Query id in", "main.Grow id in", "main.Climb id in", "main.Guard id in", "main.Quit id in")
	most := startSpans(t, p, "--sample", "4", "-o", dir+"most", "main.Handle id in", "main.Query id in", "main.Grow id in", "main.Climb id in", "main.Guard id in", "main.Quit id in")
	inner := startSpans(t, p, "--sample", "3", "-o", dir+"inner", "main.Query id in", "main.Climb id in")
	var n map[string]uint64
	for range 6 { // the ring holds less of a Go program than all of them make
		n = p.Counts("go 4")
		total := n["handle"] + n["query"] + n["grow"] + n["climb"] + n["guard"] + n["quit"]
		within(t, fmt.Sprintf("%d spans", total), func() bool { return c.count() >= total })
	}
	sums := map[string]map[string]uint64{}
	for name, s := range map[string]*session{"most": most, "inner": inner} {
		s.interrupt()
		r := s.wait()
		if r.code != 0 {
			t.Fatalf("%s: %v", s.cmd, r.outcome)
		}
		if sums[name] = r.sums(t); sums[name]["unjoined"]+sums[name]["unfollowed"]+sums[name]["active"]+sums[name]["dropped"] != 0 {
			t.Errorf("%s: %v", name, sums[name])
		}
	}
	full.end()
	all := treeOf(t, c.spans)
	for name, of := range map[string]struct {
		chosen *tree
		every  uint64
	}{"most": {all, 4}, "inner": {all.among("main.Query", "main.Climb"), 3}} {
		kept := treeOf(t, spansIn(t, dir+name))
		kept.parents(t, all)
		roots := kept.wholes(t, of.chosen)
		calls, traces := uint64(len(of.chosen.of)), of.chosen.roots(all)
		if roots != (traces+of.every-1)/of.every || sums[name]["spans"] != uint64(len(kept.of)) || sums[name]["spans"]+sums[name]["unsampled"] != calls {
			t.Errorf("%s: %d traces kept of %d, of %d calls: %v", name, roots, traces, calls, sums[name])
		}
	}
}

// TestSpansSampledLoad has far more calls than a small ring has room for: those of traces that are not kept write no record, so none is lost.
func TestSpansSampledLoad(t *testing.T) {
	p := program(t, "nests")
	c := newCollector(t)
	s := startSpans(t, p, append([]string{"--buffer-size", "65536", "--sample", "2000", "--otlp", c.url}, nestProbes...)...)
	n := p.Counts("go 4000")
	r := s.end()
	calls := n["work"] + n["leaf"] + n["tail"] + n["try"] + n["throw"]
	hits := uint64(0)
	for name, one := range r.totals {
		if one.lost+one.missed != 0 {
			t.Errorf("%s: %+v", name, one)
		}
		if !strings.HasPrefix(name, "r_") && name != "jump" {
			hits += one.hits
		}
	}
	tr, sum := treeOf(t, c.spans), r.sums(t)
	tr.parents(t, tr)
	if kept := tr.roots(tr); kept != (n["roots"]+1999)/2000 || hits != calls || sum["spans"] != uint64(len(tr.of)) || sum["spans"]+sum["unsampled"] != calls || sum["unjoined"]+sum["active"] != 0 {
		t.Errorf("%d traces kept of %d, %d hits of %d calls: %v", kept, n["roots"], hits, calls, sum)
	}
}
