package echobench

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/kuprobe"
)

// figures are what rounds have taken.
type figures struct {
	rate, cpu, charge []float64 // requests a second; nanoseconds of CPU time per request of the server, and of who collects
}

// Requests of a measurement, whose hits the ring has room for, and of the time before it.
const (
	n    = 3000
	warm = 500
)

// measure loads a server and notes what it took. begins is called when it has been loaded for a while.
func (f *figures) measure(s *server, cs dialed, begins func()) {
	cs.load(s.t, warm)
	begins()
	_, _, before := s.counts()
	start := time.Now()
	cs.load(s.t, n)
	took := time.Since(start)
	_, _, after := s.counts()
	f.rate = append(f.rate, float64(n)/took.Seconds())
	f.cpu = append(f.cpu, float64(after-before)/float64(n))
}

// mean makes one measurement of the last two: what is measured between them is compared with it, since a machine is not as fast at all times.
func (f *figures) mean() {
	for _, v := range []*[]float64{&f.rate, &f.cpu} {
		n := len(*v) - 2
		*v = append((*v)[:n], ((*v)[n]+(*v)[n+1])/2)
	}
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

// BenchmarkEcho loads the server in rounds: without probes, before and behind the others; with spans that are collected behind the load (held); with spans that are collected
// beside it (live); and another server that runs from a copy of the program, without probes and with the kernel's uprobes, recorded and read by nobody, at
// the same instructions. The server has a CPU of its own; clients and who collects share the others, which are never idle. Who collects takes time from
// the clients there, and slows the server down where the two CPUs share a core: what the probes cost the server is what held says. The figures are
// medians: requests a second and the server's CPU time as ratios of those without probes in the same round, and in nanoseconds a request the server's and
// the collector's CPU time.
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
			const clients = 10
			c := newSink(b, false)
			ours, theirs := serve(b), serve(b)
			addr := map[string]func(*server) string{"http": func(s *server) string { return s.http }, "grpc": func(s *server) string { return s.grpc }}[name]
			toOurs, toTheirs := ours.dial(clients, dial, addr(ours)), theirs.dial(clients, dial, addr(theirs))
			var none, held, live, bare, uprobes figures
			for b.Loop() {
				none.measure(ours, toOurs, func() {})
				var at []uint64
				for _, how := range []*figures{&held, &live} {
					tr := ours.traced(append([]string{"--otlp", c.URL}, sets[name]...)...)
					at = ours.places()
					how.measure(ours, toOurs, func() {
						if how == &held {
							tr.hold(ours)
						}
					})
					tr.signal(b, syscall.SIGCONT)
					tr.ended(b, warm+n)
					how.charge = append(how.charge, float64(tr.ProcessState.UserTime()+tr.ProcessState.SystemTime())/(warm+n))
				}
				none.measure(ours, toOurs, func() {})
				none.mean()
				bare.measure(theirs, toTheirs, func() {})
				take := theirs.uprobes(at)
				uprobes.measure(theirs, toTheirs, func() {})
				take(warm + n)
				bare.measure(theirs, toTheirs, func() {})
				bare.mean()
			}
			b.ReportMetric(0, "ns/op")
			for what, r := range map[string]struct{ probed, plain *figures }{"held": {&held, &none}, "live": {&live, &none}, "uprobes": {&uprobes, &bare}} {
				b.ReportMetric(ratio(r.probed.rate, r.plain.rate), what+"/none")
				b.ReportMetric(ratio(r.probed.cpu, r.plain.cpu), what+"-cpu/none")
			}
			b.ReportMetric(median(none.rate), "requests/s")
			b.ReportMetric(median(none.cpu), "none-ns")
			b.ReportMetric(median(held.cpu), "held-ns")
			b.ReportMetric(median(live.cpu), "live-ns")
			b.ReportMetric(median(uprobes.cpu), "uprobes-ns")
			b.ReportMetric(median(live.charge), "collector-ns")
		})
	}
}
