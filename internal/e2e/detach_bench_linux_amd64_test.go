package e2e

import (
	"strconv"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/testprog"
)

// BenchmarkDetach takes all functions' probes, more than 2,000, out of a program under load: of redis-server, and of a server of Go. It reports
// how long the command takes that placed them, from SIGINT to its end, and how long kprobe detach does after such a command was killed, as medians.
// The program's memory is what its files have then.
func BenchmarkDetach(b *testing.B) {
	b.Run("redis", func(b *testing.B) {
		r := startRedis(b, redisPath(b))
		benchDetach(b, r.proc.PID, func() { r.load(5_000) })
	})
	b.Run("go", func(b *testing.B) {
		p := testprog.Start(b, testprog.Build(b, "goserver"))
		p.Line() // its address
		benchDetach(b, p.PID, func() { right(b, p, "load 200 4") })
	})
}

func benchDetach(b *testing.B, pid int, load func()) {
	before := stateOf(b, pid)
	ended, loaded := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(loaded)
		for {
			select {
			case <-ended:
				return
			default:
				load()
			}
		}
	}()
	var took [2][]float64 // milliseconds
	probes := 0
	since := func(i int, start time.Time) { took[i] = append(took[i], float64(time.Since(start).Microseconds())/1e3) }
	for b.Loop() {
		s := trace(b, pid, "--stat", "--counters", "p *")
		start := time.Now()
		s.interrupt()
		r := s.wait()
		since(0, start)
		if probes = len(r.totals); r.code != 0 || probes < 2000 || r.hit() < 50 {
			b.Fatalf("%d probes, %d hit: %v", probes, r.hit(), r.outcome)
		}
		s = trace(b, pid, "--alone", "--stat", "--counters", "p *")
		if err := s.cmd.Process.Kill(); err != nil {
			b.Fatal(err)
		}
		<-s.done
		cmd := command(b, "detach", "-p", strconv.Itoa(pid))
		start = time.Now()
		o := run(b, cmd)
		since(1, start)
		if o.code != 0 || points(b, pid) != 0 {
			b.Fatalf("%v", o)
		}
	}
	close(ended)
	<-loaded
	before.same(b)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(probes), "probes")
	b.ReportMetric(median(took[0]), "end-ms")
	b.ReportMetric(median(took[1]), "detach-ms")
}

