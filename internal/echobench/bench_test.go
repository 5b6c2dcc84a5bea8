package echobench

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/kuprobe"
)

// figures are what rounds have taken.
type figures struct {
	rate, cpu, charge []float64 // requests a second; nanoseconds of CPU time per request of the server, and of who collects
}

// measure loads a server and notes what it took.
func (f *figures) measure(s *server, cs dialed, n int) {
	_, _, before := s.counts()
	start := time.Now()
	cs.load(s.t, n)
	took := time.Since(start)
	_, _, after := s.counts()
	f.rate = append(f.rate, float64(n)/took.Seconds())
	f.cpu = append(f.cpu, float64(after-before)/float64(n))
}

// ratio is the median of a figure's ratios to that of another way, pair by pair.
func ratio(a, b []float64) float64 {
	var r []float64
	for i := range a {
		r = append(r, a[i]/b[i])
	}
	return median(r)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// uprobes places the kernel's uprobes in the server's file.
func (s *server) uprobes(at []uint64) (take func(requests uint64)) {
	s.t.Helper()
	f, err := elf.Open(s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	var placed []*kuprobe.Probe
	for _, addr := range at {
		for _, seg := range f.Progs {
			if seg.Type != elf.PT_LOAD || addr-seg.Vaddr >= seg.Filesz {
				continue
			}
			u, err := kuprobe.Tracefs{Place: kuprobe.Place{Path: s.path, Offset: addr - seg.Vaddr + seg.Off}, Record: true}.Open()
			if err != nil {
				s.t.Fatal(err)
			}
			placed = append(placed, u)
		}
	}
	return func(requests uint64) {
		hits := uint64(0)
		for _, u := range placed {
			n, err := u.Count()
			if err != nil {
				s.t.Error(err)
			}
			hits += n
			if err := u.Close(); err != nil {
				s.t.Error(err)
			}
		}
		if hits < 2*requests || len(placed) < len(at) {
			s.t.Errorf("%d uprobes at %d places had %d hits in %d requests: each has an entry and a return", len(placed), len(at), hits, requests)
		}
	}
}

// busy keeps the CPUs of clients and collectors busy with what they leave of them. Else a collector would be the only one to do so, and the server's CPU,
// which may share a core with another one, would be slower beside it.
func busy(b *testing.B, cpus []string) {
	b.Helper()
	for _, cpu := range cpus {
		cmd := exec.Command("chrt", "--idle", "0", "taskset", "-c", cpu, "sh", "-c", "while kill -0 $PPID; do :; done")
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
}

// BenchmarkEcho loads the server in rounds of four: without probes, with spans; and another that runs from a copy of the program without probes, with
// the kernel's uprobes, recorded, at the same instructions. The server has a CPU of its own; clients and who collects share the others, which are
// never idle. Where there is only one other they take time from each other, so that requests a second say less than the server's CPU time. The
// figures are medians: requests a second and the server's CPU time as ratios of those without probes in the same round, and in nanoseconds a request
// the server's and the collector's CPU time.
func BenchmarkEcho(b *testing.B) {
	if _, err := kuprobe.Mount(); err != nil {
		b.Fatalf("%v: run as root", err)
	}
	if runtime.NumCPU() < 2 {
		b.Fatal("one CPU: the server needs one of its own")
	}
	if out, err := exec.Command("taskset", "-a", "-c", "-p", fmt.Sprintf("1-%d", runtime.NumCPU()-1), strconv.Itoa(os.Getpid())).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	var others []string
	for cpu := 1; cpu < runtime.NumCPU(); cpu++ {
		others = append(others, strconv.Itoa(cpu))
	}
	busy(b, others)
	for name, dial := range map[string]func(string) (client, error){"http": dialHTTP, "grpc": dialGRPC} {
		b.Run(name, func(b *testing.B) {
			const n, clients = 20_000, 10
			c := newSink(b, false)
			ours, theirs := serve(b), serve(b)
			addr := map[string]func(*server) string{"http": func(s *server) string { return s.http }, "grpc": func(s *server) string { return s.grpc }}[name]
			toOurs, toTheirs := ours.dial(clients, dial, addr(ours)), theirs.dial(clients, dial, addr(theirs))
			var none, spans, bare, uprobes figures
			for b.Loop() {
				none.measure(ours, toOurs, n)
				tr := ours.traced(append([]string{"--otlp", c.URL}, sets[name]...)...)
				at := ours.places()
				spans.measure(ours, toOurs, n)
				tr.ended(b, n)
				spans.charge = append(spans.charge, float64(tr.ProcessState.UserTime()+tr.ProcessState.SystemTime())/n)
				bare.measure(theirs, toTheirs, n)
				take := theirs.uprobes(at)
				uprobes.measure(theirs, toTheirs, n)
				take(n)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ratio(spans.rate, none.rate), "ours/none")
			b.ReportMetric(ratio(uprobes.rate, bare.rate), "uprobes/none")
			b.ReportMetric(ratio(spans.cpu, none.cpu), "ours-cpu/none")
			b.ReportMetric(ratio(uprobes.cpu, bare.cpu), "uprobes-cpu/none")
			b.ReportMetric(median(none.rate), "requests/s")
			b.ReportMetric(median(none.cpu), "none-ns")
			b.ReportMetric(median(spans.cpu), "ours-ns")
			b.ReportMetric(median(uprobes.cpu), "uprobes-ns")
			b.ReportMetric(median(spans.charge), "collector-ns")
		})
	}
}
