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

// figures are what rounds have taken: of one server with probes to one without, and of the first in nanoseconds.
type figures struct {
	rate, cpu     []float64 // requests a second, and CPU time per request of the server
	probed, plain []float64 // nanoseconds of CPU time per request
	charge        []float64 // likewise of who collects
}

// Requests of a measurement, whose hits the ring has room for, the parts that it is made in, and requests of the time before it.
const (
	n     = 3000
	parts = 12
	warm  = 500
)

// loaded is a server with its clients, and what it has taken.
type loaded struct {
	*server
	clients dialed
	took    time.Duration
	cpu     int64
}

// part loads the server for a part of a measurement.
func (l *loaded) part() {
	_, _, before := l.counts()
	start := time.Now()
	l.clients.load(l.t, n/parts)
	l.took += time.Since(start)
	_, _, after := l.counts()
	l.cpu += after - before
}

// measure loads a server with probes and one without in turn, in parts so short that the machine is as fast for one as for the other.
func (f *figures) measure(probed, plain *loaded) {
	for _, l := range []*loaded{probed, plain} {
		l.took, l.cpu = 0, 0
	}
	for i := range parts {
		first, then := probed, plain
		if i%2 == 0 {
			first, then = plain, probed
		}
		first.part()
		then.part()
	}
	f.rate = append(f.rate, float64(plain.took)/float64(probed.took))
	f.cpu = append(f.cpu, float64(probed.cpu)/float64(plain.cpu))
	f.probed = append(f.probed, float64(probed.cpu)/n)
	f.plain = append(f.plain, float64(plain.cpu)/n)
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

// BenchmarkEcho loads two servers in turn, one with probes and one without, which change places from round to round: with spans that are collected behind the
// load (held); with spans that are collected beside it (live); and two others that run from a copy of the program, with the kernel's uprobes, recorded and
// read by nobody, at the same instructions. The servers have a CPU of their own; clients and who collects share the others, which are never idle. Who
// collects takes time from the clients there, and slows the server down where the two CPUs share a core: what the probes cost the server is what held
// says. The figures are medians: requests a second and the server's CPU time as ratios of those without probes, and in nanoseconds a request the
// server's and the collector's CPU time.
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
			addr := map[string]func(*server) string{"http": func(s *server) string { return s.http }, "grpc": func(s *server) string { return s.grpc }}[name]
			var ours, theirs [2]*loaded
			for i := range 2 {
				for _, two := range []*[2]*loaded{&ours, &theirs} {
					s := serve(b)
					two[i] = &loaded{server: s, clients: s.dial(clients, dial, addr(s))}
				}
			}
			var held, live, uprobes figures
			for round := 0; b.Loop(); round++ {
				probed, plain := ours[round%2], ours[1-round%2]
				var at []uint64
				for _, how := range []*figures{&held, &live} {
					tr := probed.traced(append([]string{"--otlp", c.URL}, sets[name]...)...)
					at = probed.places()
					probed.clients.load(b, warm)
					plain.clients.load(b, warm)
					if how == &held {
						tr.hold(probed.server)
					}
					how.measure(probed, plain)
					tr.signal(b, syscall.SIGCONT)
					tr.ended(b, warm+n)
					how.charge = append(how.charge, float64(tr.ProcessState.UserTime()+tr.ProcessState.SystemTime())/(warm+n))
				}
				probed, plain = theirs[round%2], theirs[1-round%2]
				take := probed.uprobes(at)
				probed.clients.load(b, warm)
				plain.clients.load(b, warm)
				uprobes.measure(probed, plain)
				take(warm + n)
			}
			for what, f := range map[string]*figures{"held": &held, "live": &live, "uprobes": &uprobes} {
				b.ReportMetric(median(f.rate), what+"/none")
				b.ReportMetric(median(f.cpu), what+"-cpu/none")
				b.ReportMetric(median(f.probed), what+"-ns")
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(held.plain), "none-ns")
			b.ReportMetric(median(live.charge), "collector-ns")
		})
	}
}
