package trace

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/hit"
)

// repeater gives the last hit that came again and again, as often as it is told, 200 ns apart.
type repeater struct {
	sole
	times atomic.Int64
	last  hit.Hit
	seen  atomic.Bool
}

func (r *repeater) Poll(f func(*kprobes.Hit), fast bool) int {
	n := r.sole.Poll(func(h *kprobes.Hit) {
		r.last = *h
		r.last.Rec = append([]byte(nil), h.Rec...)
		r.seen.Store(true)
		f(h)
	}, fast)
	times := int(r.times.Swap(0))
	h := new(kprobes.Hit)
	for range times {
		*h = r.last
		f(h)
		r.last.Nanos += 200
	}
	return n + times
}

// BenchmarkRawPipe measures what a record costs from where it was read out of the target's ring to where it was read from trace_pipe_raw.
func BenchmarkRawPipe(b *testing.B) {
	prog, first := instance(b, nil)
	again := &repeater{sole: sole{first.core}}
	in := New(first.core, &Options{Shared: again, BufferSize: 64 << 20})
	defer in.Close()
	must(b, in.Write("p:a f_push"))
	must(b, in.Enable("", "", true))
	goes(prog, 1, "f_push")
	for !again.seen.Load() {
		in.drain()
	}
	in.Clear()
	pipe := in.CPURawPipe(again.last.CPU)
	const records = 5000
	bytes, before := 0, cpuTime(b)
	for b.Loop() {
		again.times.Store(records)
		in.poll()
		for {
			got, err := pipe.Read(b.Context(), 128<<10, false)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			must(b, err)
			bytes += len(got)
		}
	}
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N*records), "cpu-ns/record")
	b.ReportMetric(float64(bytes)/float64(b.N*records), "B/record")
}

// cpuTime is the CPU time of this process until now.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
