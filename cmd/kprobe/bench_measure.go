package main

import (
	"errors"
	"fmt"
)

// measure fills a cell. A row that this machine does not offer is no error: the cell says
// why.
func (b *bench) measure(r *row, cl class, threads int) (c cell, err error) {
	c = cell{Row: r.name, What: r.what, Class: cl.name, Where: whereProcess, Threads: threads}
	p := b.prober(r)
	if err := p.arm(cl); err != nil {
		c.Why = escapedError(err)
		return c, p.disarm()
	}
	defer func() { err = errors.Join(err, p.disarm()) }()
	rs, err := b.roundsOf(&c, p, cl.function, r)
	if err != nil {
		return c, fmt.Errorf("%s on %s: %w", r.name, cl.name, err)
	}
	c.sum(rs)
	c.Tactic = string(p.tactic())
	if c.Hits, c.Lost, err = p.counts(); err != nil {
		return c, fmt.Errorf("%s on %s: %w", r.name, cl.name, err)
	}
	switch {
	case c.Hits != c.Want:
		return c, fmt.Errorf("%s on %s: %d, not %d: %w", r.name, cl.name, c.Hits, c.Want, errCount)
	case c.Lost != 0:
		return c, fmt.Errorf("%s on %s: %d: %w", r.name, cl.name, c.Lost, errRing)
	}
	return c, nil
}

// roundsOf runs the unprobed and the probed function alternately, and reads what was
// recorded in between. The first round warms up and does not count.
func (b *bench) roundsOf(c *cell, p prober, function string, r *row) ([]round, error) {
	var rs []round
	calls, hitsPerCall := b.callsOf(r), r.hitsPerCall()
	for i := 0; i <= b.rounds; i++ {
		if b.ctx.Err() != nil {
			return nil, errInterrupted
		}
		plain, err := b.plain.Run(function, calls, c.Threads)
		if err != nil {
			return nil, err
		}
		prog, fn := p.program(function)
		probed, err := prog.Run(fn, calls, c.Threads)
		if err != nil {
			return nil, err
		}
		c.Want += probed.Calls * hitsPerCall
		p.drain(c.Want)
		if i > 0 {
			rs = append(rs, round{plain.Median, probed.Median})
		}
	}
	return rs, nil
}

// judge says whether a value reaches its bar.
func judge(what string, cl class, value, bar float64, atMost bool) ratio {
	ok := value >= bar
	if atMost {
		ok = value <= bar
	}
	return ratio{What: what, Class: cl.name, Value: value, Bar: bar, AtMost: atMost, OK: ok}
}

// ratios compares what was measured with one thread with the bars. What was
// not available is left out.
func ratios(cells []cell) []ratio {
	at := map[[2]string]float64{}
	for _, c := range cells {
		if c.known() && c.Threads == 1 && c.Where == whereProcess {
			at[[2]string{c.Row, c.Class}] = c.NS
		}
	}
	var out []ratio
	for _, cl := range classes {
		get := func(name string) (float64, bool) {
			v, ok := at[[2]string{name, cl.name}]
			return v, ok
		}
		if v, ok := get(rowCount); ok {
			out = append(out, judge("counter, ns", cl, v, barCount, true))
			if f, ok := get(rowFiltered); ok {
				out = append(out, judge("filtered / counter", cl, f/max(v, leastCount), barFiltered, true))
			}
		}
		if v, ok := get(rowBoth); ok {
			out = append(out, judge("entry and return, ns", cl, v, barBoth, true))
		}
		out = append(out, stringRatios(cl, get)...)
		for _, m := range []struct {
			row string
			bar float64
		}{{rowModule, barModule}, {rowPrintk, barPrintk}, {rowModuleBoth, barModuleBoth}} {
			if v, ok := get(m.row); ok {
				out = append(out, judge(m.row+", ns", cl, v, m.bar, true))
			}
		}
		rec, ok := get(rowRecord)
		if !ok {
			continue
		}
		if v, ok := get(rowTracepoint); ok && v > 0 {
			out = append(out, judge("record / tracepoint", cl, rec/v, barTracepoint, true))
		}
		if v, ok := get(rowUprobe); ok && rec > 0 {
			out = append(out, judge("uprobe / record", cl, v/rec, cl.faster, false))
		}
	}
	return out
}

// stringRatios hold records with a string against their bars: beyond the question, if there is one.
func stringRatios(cl class, get func(row string) (float64, bool)) (out []ratio) {
	question, asks := get(rowQuestion)
	for _, name := range []string{rowString, rowGoString} {
		v, ok := get(name)
		switch {
		case !ok:
		case asks:
			out = append(out, judge(name+" - question, ns", cl, v-question, barStringAsks, true))
		default:
			out = append(out, judge(name+", ns", cl, v, barString, true))
		}
	}
	return out
}
