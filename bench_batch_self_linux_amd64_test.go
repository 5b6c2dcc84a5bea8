package kprobes_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/benchprobes"
)

// BenchmarkSelfBatch arms counters at the entries of all functions of this program that can
// be probed, and takes them out. On a busy machine the CPU time for each tells more than the
// speed.
func BenchmarkSelfBatch(b *testing.B) {
	var all benchprobes.Arming
	rounds := 0
	for b.Loop() {
		a, err := benchprobes.Self("*", func() error { return nil })
		if errors.Is(err, unix.ENOSPC) {
			break // every event has a number of its own, for as long as its counts can be read
		}
		if err != nil {
			b.Fatal(err)
		}
		all.Armed, all.Refused = all.Armed+a.Armed, all.Refused+a.Refused
		all.Add, all.Close, all.CPU = all.Add+a.Add, all.Close+a.Close, all.CPU+a.CPU
		rounds++
	}
	b.ReportMetric(all.PerSecond(), "probes/s")
	b.ReportMetric(all.CPU.Seconds()*1e6/float64(all.Armed), "cpu-µs/probe")
	b.ReportMetric(float64(all.Armed)/float64(rounds), "probes")
	b.ReportMetric(float64(all.Refused)/float64(rounds), "refused")
	b.ReportMetric(all.Close.Seconds()*1e9/float64(all.Armed), "ns/removed")
}
