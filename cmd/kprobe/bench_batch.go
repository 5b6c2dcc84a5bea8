package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kprobes.dev/kprobes/internal/benchprobes"
	"kprobes.dev/kprobes/internal/workload"
)

// batchFigures are those that arming everything gives.
func batchFigures(where string, bar float64) []figure {
	return []figure{
		{What: "installed in a batch", Where: where, Unit: "probes/s", Bar: bar},
		{What: "stopped for 1,000 probes, arming", Where: where, Unit: "ms", Bar: barStop, AtMost: true},
		{What: "stopped for 1,000 probes, disarming", Where: where, Unit: "ms", Bar: barStop, AtMost: true},
	}
}

// gauge sees how long the program is stopped.
type gauge interface {
	Take() time.Duration
	Stop()
}

// armings fills in the figures of batchFigures. Speed is measured without the thread that
// measures the stops, which keeps a CPU busy. The best of the rounds counts. A round in which a
// busy machine keeps threads from stopping is made again, armTries times at most.
func armings[G gauge](ctx context.Context, fs []figure, rounds int, arm func(armed func() error) (benchprobes.Arming, error), start func() G) []figure {
	try := func(begin func(), armed func() error) (a benchprobes.Arming, err error) {
		for range armTries {
			if ctx.Err() != nil {
				return a, errInterrupted
			}
			begin()
			if a, err = arm(armed); !benchprobes.Busy(err) {
				break
			}
		}
		return a, err
	}
	var best benchprobes.Arming
	for range rounds {
		a, err := try(func() {}, func() error { return nil })
		if err != nil {
			return failed(fs, err)
		}
		best.Better(a)
	}
	fs[0].set(best.PerSecond())
	fs[0].Of = fmt.Sprintf("%d functions, %d left out; %.1f us of CPU each", best.Armed, best.Refused, best.CPU.Seconds()*1e6/float64(best.Armed))
	up, down := time.Hour, time.Hour
	g := start()
	defer g.Stop()
	g.Take()
	time.Sleep(idleTime)
	idle := g.Take()
	for range rounds {
		_, err := try(func() { g.Take() }, func() error { up = min(up, g.Take()); return nil })
		if err != nil {
			return failed(fs, err)
		}
		down = min(down, g.Take())
	}
	thousands := float64(best.Armed) / 1000
	fs[1].set(up.Seconds() * 1e3 / thousands)
	fs[2].set(down.Seconds() * 1e3 / thousands)
	fs[1].Of = fmt.Sprintf("%v at most, as a thread saw it; %v while nothing was done", up.Round(10*time.Microsecond), idle.Round(10*time.Microsecond))
	fs[2].Of = fmt.Sprintf("%v at most", down.Round(10*time.Microsecond))
	return fs
}

// programGauge is the thread of a Go workload.
type programGauge struct{ p *workload.Program }

// Take gives 0 where the program does not answer, which its end tells.
func (g programGauge) Take() time.Duration {
	d, _ := g.p.Gap()
	return d
}

func (g programGauge) Stop() {}

// batch arms all functions of a Go workload.
func (b *bench) batch(dir string) error {
	fs := batchFigures(whereProcess, barBatchProcess)
	path, args := b.path, b.args
	if !b.goProgram {
		var err error
		if path, err = copySelf(dir); err != nil {
			return b.add(failed(fs, err)...)
		}
		args = []string{workloadVerb}
	}
	p, err := workload.Start(path, args...)
	if err != nil {
		return b.add(failed(fs, err)...)
	}
	rounds, pattern := fullArmings, "*"
	if b.quick {
		rounds, pattern = 1, quickPattern
	}
	fs = armings(b.ctx, fs, rounds, func(armed func() error) (benchprobes.Arming, error) {
		return benchprobes.Process(p.PID(), pattern, armed)
	}, func() programGauge { return programGauge{p} })
	return errors.Join(b.add(fs...), p.Close())
}
