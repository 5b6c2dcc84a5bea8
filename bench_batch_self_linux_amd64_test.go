package kprobes_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
)

// BenchmarkSelfBatch arms counters at the entries of all functions of this program that can
// be probed, and takes them out.
func BenchmarkSelfBatch(b *testing.B) {
	core, err := kprobes.Self()
	if err != nil {
		b.Fatal(err)
	}
	d, err := event.Parse("p *")
	if err != nil {
		b.Fatal(err)
	}
	var armed, refused int
	var adding, removing time.Duration
	for b.Loop() {
		begin := time.Now()
		evs, err := core.Add([]*event.Def{d}, &kprobes.AddOptions{Count: true, Skip: func(string, error) { refused++ }})
		if errors.Is(err, unix.ENOSPC) {
			break // every event has a number of its own, for as long as its counts can be read
		}
		if err != nil {
			b.Fatal(err)
		}
		adding += time.Since(begin)
		armed += len(evs)
		begin = time.Now()
		if err := core.Remove(evs); err != nil {
			b.Fatal(err)
		}
		removing += time.Since(begin)
	}
	b.ReportMetric(float64(armed)/adding.Seconds(), "probes/s")
	b.ReportMetric(float64(armed)/float64(b.N), "probes")
	b.ReportMetric(float64(refused)/float64(b.N), "refused")
	b.ReportMetric(removing.Seconds()/float64(armed)*1e9, "ns/removed")
}
