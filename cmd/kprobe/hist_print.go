package main

import (
	"fmt"
	"slices"
)

// sum tells which events' hits are counted by who reads their records.
func (g *histogramming) sum(all []*total) {
	if g.f.every.named() {
		for _, n := range all {
			n.Aggregated = aggregatedByReader
		}
		return
	}
	for _, s := range g.shown {
		for _, e := range s.evs {
			_, _, ok, _ := g.core.Histogram(e)
			for _, n := range all {
				if !ok && n.Event == s.name {
					n.Aggregated = aggregatedByReader
				}
			}
		}
	}
}

// histograms prints histograms, each under the name of its event where there are several; one that events share under all their names.
func (l *lines) histograms(all []shown) {
	l.buf = l.buf[:0]
	for i, s := range all {
		shares := func(o shown) bool { return s.hist.Shares(o.hist) }
		if slices.ContainsFunc(all[:i], shares) {
			continue
		}
		if len(all) > 1 {
			if s.hist.Hits()+s.hist.Dropped() == 0 && s.many {
				continue
			}
			if len(l.buf) > 0 {
				l.buf = append(l.buf, '\n')
			}
			for _, o := range all[i:] {
				if shares(o) {
					l.buf = fmt.Appendf(l.buf, "# %s\n", o.name)
				}
			}
		}
		l.buf = s.hist.AppendText(l.buf, l.print.Names.Symbol)
	}
	_, err := l.out.Write(l.buf)
	l.failed(err)
}
