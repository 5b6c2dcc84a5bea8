package main

import (
	"errors"
	"fmt"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/workload"
)

// What is measured of a latency's histogram.
const (
	figureLatency         = "a latency's histogram, beyond two reads of the counter"
	figureBpftrace        = "the same by bpftrace"
	figureBetween         = "a histogram of the time between two probes, beyond two reads"
	figureBetweenBpftrace = "the same by two uprobes of bpftrace"
	barLatency            = 25.0 // ns
)

// latencyRow is a way to a histogram of latencies, and the same by bpftrace.
type latencyRow struct {
	what, bpftrace string
	function       string
	to             string   // where the second probe stands
	probes         []string // with the address in the place of %x
	hists          []string
	synth          string // the synthetic event that has the latencies, and is counted by hists' last; "": there is none
	script         string // with the functions in the place of %s
}

var latencyRows = []latencyRow{
	{
		what: figureLatency, bpftrace: figureBpftrace, function: "bench_lea", to: "bench_lea",
		probes: []string{"r:bench/latency 0x%x ns=$duration"}, hists: []string{"keys=ns.log2"},
		script: "uprobe:%s { @start[tid] = nsecs; } uretprobe:%s { @ns = hist(nsecs - @start[tid]); delete(@start[tid]); }",
	},
	{
		what: figureBetween, bpftrace: figureBetweenBpftrace, function: workload.Ends, to: workload.Bottom,
		probes: []string{"p:bench/from 0x%x", "p:bench/to 0x%x"},
		hists:  []string{"keys=common_pid:ts0=common_timestamp", "keys=common_pid:lat=common_timestamp-$ts0:onmatch(bench.from).trace(between,$lat)", "keys=ns.log2"},
		synth:  "s:between u64 ns",
		script: "uprobe:%s { @start[tid] = nsecs; } uprobe:%s { @ns = hist(nsecs - @start[tid]); delete(@start[tid]); }",
	},
}

// latency measures what histograms of latencies cost, and what the same costs by bpftrace.
func (b *bench) latency() error {
	for i := range latencyRows {
		if err := b.latencyOf(&latencyRows[i]); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) latencyOf(l *latencyRow) error {
	f := figure{What: l.what, Where: whereProcess, Unit: "ns", Bar: barLatency, AtMost: true}
	g := figure{What: l.bpftrace, Where: whereProcess, Unit: "times", Bar: barBpftrace}
	if b.goProgram {
		return b.add(unavailable([]figure{f, g}, errors.New("the workload's functions are a few instructions of assembler, which leave a return probe in Go no register"))...)
	}
	ns, clock, err := b.latencyTime(l)
	if err != nil {
		f.Failed = escapedError(err)
		return b.add(f)
	}
	f.set(ns - 2*clock)
	f.Of = fmt.Sprintf("%.1f ns, a read %.1f ns", ns, clock)
	its, why, err := b.bpftraceTime(findRow("uprobe+uretprobe"), l.function, fmt.Sprintf(l.script, b.inCopy(l.function), b.inCopy(l.to)))
	g.rival(ns, its, why, err)
	return b.add(f, g)
}

// latencyTime is what both probes cost together, and what a read of the counter costs, in nanoseconds.
func (b *bench) latencyTime(l *latencyRow) (ns, clock float64, err error) {
	defs, synth, err := b.latencyEvents(l)
	if err != nil {
		return 0, 0, err
	}
	core := b.s.core
	evs, err := core.Add(defs, &kprobes.AddOptions{Tactic: arch.TacticJump})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, core.Remove(evs)) }()
	var diff, reads []float64
	want := uint64(0)
	for i := 0; i <= b.rounds && b.ctx.Err() == nil; i++ {
		plain, err1 := b.plain.Run(l.function, b.calls, 1)
		probed, err2 := b.probed.Run(l.function, b.calls, 1)
		read, err3 := b.plain.Run(workload.Clock, b.calls, 1)
		none, err4 := b.plain.Run("bench_ret", b.calls, 1)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			return 0, 0, err
		}
		if want += probed.Calls; i > 0 {
			diff, reads = append(diff, probed.Median-plain.Median), append(reads, read.Median-none.Median)
		}
	}
	if b.ctx.Err() != nil {
		return 0, 0, errInterrupted
	}
	e := engine.Of(core)
	count := func() ([]fetch.HistEntry, uint64, bool, error) { return e.Histogram(engine.OfEvent(evs[0])) }
	if synth != nil {
		count = func() ([]fetch.HistEntry, uint64, bool, error) { return e.Traced(synth) }
	}
	entries, dropped, ok, err := count()
	hits := uint64(0)
	for _, e := range entries {
		hits += e.Hits
	}
	switch {
	case err != nil:
	case !ok:
		err = errors.New("the code at the hit makes no histogram")
	case hits != want || dropped != 0:
		err = fmt.Errorf("%d, %d dropped, not %d: %w", hits, dropped, want, errCount)
	}
	return median(diff), median(reads), err
}

// latencyEvents makes the definitions of a way, and its synthetic event, if it has one.
func (b *bench) latencyEvents(l *latencyRow) (defs []*event.Def, synth *event.Synthetic, err error) {
	var hists []*event.Hist
	for _, text := range l.hists {
		h, err := event.ParseHist(text)
		if err != nil {
			return nil, nil, err
		}
		hists = append(hists, h)
	}
	if l.synth != "" {
		if synth, err = event.ParseSynthetic(l.synth); err != nil {
			return nil, nil, err
		}
		synth.Hist = hists[len(hists)-1]
	}
	for i, text := range l.probes {
		at, err := b.place([]string{l.function, l.to}[i])
		if err != nil {
			return nil, nil, err
		}
		d, err := event.Parse(fmt.Sprintf(text, at.Vaddr))
		if err != nil {
			return nil, nil, err
		}
		d.Hist = hists[i]
		for j := range d.Hist.Actions {
			d.Hist.Actions[j].Traced = synth
		}
		defs = append(defs, d)
	}
	return defs, synth, nil
}
