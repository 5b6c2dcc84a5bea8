package guest_test

import (
	"testing"
	"time"

	"kprobes.dev/kprobes"
)

// BenchmarkHandler measures what a call of getppid takes in the guest, by the clock here:
// without a probe, with a handler, and with a handler that is hit once in a while.
func BenchmarkHandler(b *testing.B) {
	const calls = 100_000
	p := handlers(b, never, false)
	perCall := func(b *testing.B, n int) {
		for b.Loop() {
			start := time.Now()
			none := p.g.Hit("getppid", 0, 0)
			over := time.Since(start)
			start = time.Now()
			p.g.Hit("getppid", n, 0)
			b.ReportMetric(float64(time.Since(start)-over)/float64(n), "ns/call")
			if none.Calls != 0 {
				b.Fatal("calls were made")
			}
		}
	}
	b.Run("none", func(b *testing.B) { perCall(b, calls) })
	k := p.kprobe(&kprobes.Kprobe{SymbolName: getppid, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }})
	b.Run("handler", func(b *testing.B) { perCall(b, calls) })
	b.Run("ticks", func(b *testing.B) { // of the guest's counter, the first hit after a pause
		for b.Loop() {
			for _, pause := range []time.Duration{10 * time.Millisecond, 2 * time.Second} {
				time.Sleep(pause)
				b.ReportMetric(float64(p.g.Hit("getppid", 1, 0).Ticks), "ticks-after-"+pause.String())
			}
		}
	})
	p.core.UnregisterKprobe(k)
}
