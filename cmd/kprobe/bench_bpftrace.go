package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// What is measured of a filter, and what bpftrace is held against.
const (
	figureFilterBpftrace = "a hit that a filter stops, by bpftrace"
	barBpftrace          = 20.0 // times
	bpftraceTime         = 2 * time.Minute
)

// scriptFiltered counts a hit, as ours is counted, and stops it by the filter of ours (fetchNothing).
const scriptFiltered = "uprobe:%s { @hits = count(); if (arg0 == 0x123456789abcdef) { @passed = count(); } }"

// filtered measures what a hit that a filter stops costs, beside the same by bpftrace.
func (b *bench) filtered() error {
	g := figure{What: figureFilterBpftrace, Where: whereProcess, Unit: "times", Bar: barBpftrace}
	cl := classes[0]
	ours, err := b.measure(findRow(rowFiltered), cl, 1)
	if err == nil && ours.Why != "" {
		err = errors.New(ours.Why)
	}
	if err != nil {
		g.Failed = escapedError(err)
		return b.add(g)
	}
	its, why, err := b.bpftraceTime(findRow("uprobe count"), cl.function, fmt.Sprintf(scriptFiltered, b.inCopy(cl.function)))
	g.rival(ours.NS, its, why, err)
	return b.add(g)
}

// rival fills in how many times ours another's time is; why tells that it can not be had here.
func (f *figure) rival(ours, its float64, why, err error) {
	switch {
	case why != nil:
		f.Why = escapedError(why)
	case err != nil:
		f.Failed = escapedError(err)
	default:
		f.set(its / max(ours, leastCount))
		f.Of = fmt.Sprintf("%.0f ns, ours %.1f ns", its, ours)
	}
}

// inCopy is a function of the copy that the kernel's probes stand in, as bpftrace names it.
func (b *bench) inCopy(function string) string { return b.copyPath + ":" + b.symbol(function) }

// bpftraceTime is what the probes of a script cost together, in nanoseconds, for a call of a function. The script counts each call,
// in the buckets of a histogram or in @hits; r is the row of its probes, and why tells that they can not be had here.
func (b *bench) bpftraceTime(r *row, function, script string) (ns float64, why, err error) {
	if why := (&kernelProber{b: b, row: r}).refused(); why != nil {
		return 0, why, nil
	}
	exe, why := exec.LookPath("bpftrace")
	if why != nil {
		return 0, why, nil
	}
	ctx, cancel := context.WithTimeout(b.ctx, bpftraceTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, "-B", "none", "-p", strconv.Itoa(b.copied.PID()), "-e",
		script+` interval:ms:100 { printf("ready\n"); }`) // the last one that it attaches
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return 0, nil, err
	}
	text := bufio.NewReader(out)
	for line := ""; err == nil && line != "ready\n"; {
		line, err = text.ReadString('\n')
	}
	rest := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(text)
		rest <- b
	}()
	var want uint64
	if err == nil {
		want, ns, err = b.bpftraceRounds(function, b.callsOf(r))
	}
	_ = cmd.Process.Signal(unix.SIGINT)
	hits := bpftraceHits(<-rest)
	if no := cmd.Wait(); no != nil {
		err = fmt.Errorf("bpftrace: %w: %s", errors.Join(err, no), errs.Bytes())
	}
	if err == nil && hits != want {
		err = fmt.Errorf("bpftrace: %d, not %d: %w", hits, want, errCount)
	}
	return ns, nil, err
}

// bpftraceRounds measures while bpftrace has its probes in the copy.
func (b *bench) bpftraceRounds(function string, calls uint64) (want uint64, ns float64, err error) {
	var diff []float64
	for i := 0; i <= b.rounds; i++ {
		plain, err1 := b.plain.Run(function, calls, 1)
		probed, err2 := b.copied.Run(function, calls, 1)
		if err := errors.Join(err1, err2, b.ctx.Err()); err != nil {
			return 0, 0, err
		}
		if want += probed.Calls; i > 0 {
			diff = append(diff, probed.Median-plain.Median)
		}
	}
	return want, median(diff), nil
}

// bpftraceLine is a line of a histogram, or that of a counter.
var bpftraceLine = regexp.MustCompile(`(?m)^(?:[\[(].*[)\]] +(\d+) \||@hits: (\d+)$)`)

// bpftraceHits adds up what a script has counted.
func bpftraceHits(text []byte) (n uint64) {
	for _, m := range bpftraceLine.FindAllSubmatch(text, -1) {
		hits, _ := strconv.ParseUint(string(m[1])+string(m[2]), 10, 64)
		n += hits
	}
	return n
}
