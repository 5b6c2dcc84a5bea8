package ptrace

import (
	"testing"
	"time"
)

// A stop and release, and how long the process stands still meanwhile.
func BenchmarkStop(b *testing.B) {
	p := run(b, build(b, "hold")).open()
	var held time.Duration
	for b.Loop() {
		s := stop(b, p)
		release(b, s)
		held += time.Since(s.Since())
	}
	b.ReportMetric(float64(held.Nanoseconds())/float64(b.N), "held-ns/op")
}

// One system call by a stopped thread, frame and all; and each further one of a batch.
func BenchmarkCall(b *testing.B) {
	p := run(b, build(b, "hold")).open()
	b.Run("one", func(b *testing.B) {
		s := stop(b, p)
		defer s.Release()
		for b.Loop() {
			if _, err := s.Call(sysGettid); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("batch of 64", func(b *testing.B) {
		s := stop(b, p)
		defer s.Release()
		calls := make([]Syscall, 64)
		for i := range calls {
			calls[i].Nr = sysGettid
		}
		for b.Loop() {
			if err := s.CallAll(calls); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/call")
	})
}

func BenchmarkFindGadgets(b *testing.B) {
	p := run(b, build(b, "hold")).open()
	for b.Loop() {
		p.gadget = nil
		if !p.findGadgets().complete() {
			b.Fatal("nothing is found")
		}
	}
}
