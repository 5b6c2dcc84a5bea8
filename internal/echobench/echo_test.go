package echobench

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"kprobes.dev/kprobes/internal/kuprobe"
	"kprobes.dev/kprobes/target/process"
)

var dir string // of the programs

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if dir, err = os.MkdirTemp("", "echobench"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		for _, args := range [][]string{{"build", "-o", dir, "./server"}, {"-C", "../..", "build", "-o", dir, "./cmd/kprobe"}} {
			if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "go %q: %v\n%s", args, err, out)
				return 1
			}
		}
		return m.Run()
	}())
}

// server is a server that runs.
type server struct {
	t          testing.TB
	path       string
	pid        int
	http, grpc string // addresses
	ask        io.Writer
	answers    *bufio.Scanner
}

// serve starts a copy of the server: the kernel's uprobes and ours must not meet in one file.
func serve(t testing.TB, args ...string) *server {
	t.Helper()
	s := &server{t: t, path: filepath.Join(t.TempDir(), "server")}
	text, err := os.ReadFile(filepath.Join(dir, "server"))
	if err == nil {
		err = os.WriteFile(s.path, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("taskset", append([]string{"-c", "0", s.path}, args...)...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server: %v", err)
		}
	})
	s.pid, s.ask, s.answers = cmd.Process.Pid, in, bufio.NewScanner(out)
	s.http, s.grpc, _ = strings.Cut(s.line(), " ")
	return s
}

func (s *server) line() string {
	s.t.Helper()
	if !s.answers.Scan() {
		s.t.Fatalf("the server ended: %v", s.answers.Err())
	}
	return s.answers.Text()
}

// counts is what the server has answered, and its CPU time in nanoseconds.
func (s *server) counts() (overHTTP, overGRPC uint64, cpu int64) {
	s.t.Helper()
	fmt.Fprintln(s.ask)
	if _, err := fmt.Sscan(s.line(), &overHTTP, &overGRPC, &cpu); err != nil {
		s.t.Fatal(err)
	}
	return overHTTP, overGRPC, cpu
}

// dialed are connections to a server.
type dialed []client

func (s *server) dial(n int, dial func(string) (client, error), addr string) (cs dialed) {
	s.t.Helper()
	for range n {
		c, err := dial(addr)
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { c.Close() })
		cs = append(cs, c)
	}
	return cs
}

// atOnce is how many requests a client sends side by side where its protocol lets it.
const atOnce = 16

// load sends n requests over all connections, numbered from 1, and returns the answers by number.
func (cs dialed) load(t testing.TB, n int) []string {
	t.Helper()
	answers := make([]string, n)
	var wg sync.WaitGroup
	each := n / len(cs)
	for i, c := range cs {
		wg.Go(func() {
			ids := make([]uint64, 0, each)
			for id := i*each + 1; id <= (i+1)*each; id++ {
				ids = append(ids, uint64(id))
			}
			for part := range slices.Chunk(ids, atOnce) {
				if err := c.ask(part, func(id uint64, answer string) { answers[id-1] = answer }); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for i, a := range answers[:each*len(cs)] {
		if number, _, _ := strings.Cut(a, " "); number != fmt.Sprintf("%016x", i+1) {
			t.Fatalf("answer to %d: %q", i+1, a)
		}
	}
	return answers
}

// sink takes spans over HTTP, and reads them when they are asked for.
type sink struct {
	*httptest.Server
	mu     sync.Mutex
	bodies [][]byte
	keep   bool
}

func newSink(t testing.TB, keep bool) *sink {
	s := &sink{keep: keep}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		if s.keep {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.bodies = append(s.bodies, body)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *sink) spans(t testing.TB) (all []*trace.Span) {
	t.Helper()
	for _, body := range s.bodies {
		plain, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(plain)
		if err != nil {
			t.Fatal(err)
		}
		r := new(collector.ExportTraceServiceRequest)
		if err := proto.Unmarshal(text, r); err != nil {
			t.Fatal(err)
		}
		for _, rs := range r.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				all = append(all, ss.Spans...)
			}
		}
	}
	return all
}

// tracer is a kprobe spans that runs.
type tracer struct {
	*exec.Cmd
	out  bytes.Buffer
	done chan error // has how it ended
}

// traced starts kprobe spans on the server, and waits until its probes stand.
func (s *server) traced(args ...string) *tracer {
	s.t.Helper()
	tr := &tracer{done: make(chan error, 1), Cmd: exec.Command(filepath.Join(dir, "kprobe"), append([]string{"spans", "--alone", "-p", strconv.Itoa(s.pid)}, args...)...)}
	tr.Stdout, tr.Stderr = &tr.out, &tr.out
	if err := tr.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() { tr.done <- tr.Wait() }()
	for s.places() == nil {
		select {
		case err := <-tr.done:
			s.t.Fatalf("no probes came: %v\n%s", err, &tr.out)
		case <-time.After(time.Millisecond):
		}
	}
	return tr
}

// places are the addresses in the server that have probes; nil: not all that are to come.
func (s *server) places() (at []uint64) {
	p, err := process.Open(s.pid)
	if err != nil {
		return nil
	}
	defer p.Close()
	l, err := process.FindLeftover(p)
	if err != nil || l == nil {
		return nil
	}
	for _, site := range l.Sites {
		have := make([]byte, len(site.Patch))
		if p.ReadMem(site.Addr, have) != nil || !bytes.Equal(have, site.Patch) {
			return nil
		}
		if len(site.Points) > 0 {
			at = append(at, site.Addr)
		}
	}
	return at
}

var summary = regexp.MustCompile(`(?m)^spans=(\d+) .* sent=(\d+) .*$`)

// ended ends the tracer and checks that it has made and sent n spans, and lost none.
func (tr *tracer) ended(t testing.TB, n int) {
	t.Helper()
	if err := tr.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	err := <-tr.done
	m := summary.FindStringSubmatch(tr.out.String())
	if want := strconv.Itoa(n); err != nil || m == nil || m[1] != want || m[2] != want {
		t.Errorf("%v; not %d spans:\n%s", err, n, &tr.out)
	}
}

// What the sets name: the spans of requests, and the path of one over HTTP.
const (
	httpServer = "net/http.serverHandler.ServeHTTP"
	grpcServer = "google.golang.org/grpc.(*Server).processRPC"
	pathAttr   = "url.path"
)

// sets are the probes of each protocol.
var sets = map[string][]string{"http": {"--set", "net/http"}, "grpc": {"--set", "grpc"}}

// named are spans by their names.
func named(all []*trace.Span) map[string][]*trace.Span {
	m := map[string][]*trace.Span{}
	for _, s := range all {
		m[s.Name] = append(m[s.Name], s)
	}
	return m
}

// attribute is an attribute of a span, as text.
func attribute(s *trace.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return strings.Trim(strings.TrimPrefix(strings.TrimPrefix(a.Value.String(), "int_value:"), "string_value:"), `"`)
		}
	}
	return ""
}

// TestEcho has spans of each request: as many as the client counts, with the numbers and goroutines that the program tells, each in its own request.
func TestEcho(t *testing.T) {
	const n, clients = 2000, 8
	s, c := serve(t, "-ids"), newSink(t, true)
	tr := s.traced(slices.Concat([]string{"--otlp", c.URL, "main.answer id"}, sets["http"], sets["grpc"])...)
	overHTTP := s.dial(clients, dialHTTP, s.http).load(t, n)
	overGRPC := s.dial(clients, dialGRPC, s.grpc).load(t, n)
	if h, g, _ := s.counts(); h != n || g != n {
		t.Fatalf("the server counted %d and %d", h, g)
	}
	tr.ended(t, 4*n)
	by := named(c.spans(t))
	parents := map[string]*trace.Span{}
	for _, name := range []string{httpServer, grpcServer} {
		if len(by[name]) != n {
			t.Errorf("%d spans of %s, not %d", len(by[name]), name, n)
		}
		for _, p := range by[name] {
			parents[string(p.SpanId)] = p
		}
	}
	seen := map[string]bool{}
	for _, a := range by["main.answer"] {
		id, err := strconv.Atoi(attribute(a, "id"))
		p := parents[string(a.ParentSpanId)]
		if err != nil || id < 1 || id > n || p == nil || !bytes.Equal(a.TraceId, p.TraceId) {
			t.Fatalf("request %d: %v in %v", id, a, p)
		}
		said := overHTTP[id-1]
		if p.Name == grpcServer {
			said = overGRPC[id-1]
		} else if path := attribute(p, pathAttr); path != fmt.Sprintf("/echo/%016x", id) {
			t.Errorf("request %d has the path %q", id, path)
		}
		_, g, _ := strings.Cut(said, " ")
		if attribute(a, "go.goroutine.id") != g || attribute(p, "go.goroutine.id") != g || seen[p.Name+said] {
			t.Errorf("request %d, on goroutine %s: %v in %v", id, g, a, p)
		}
		seen[p.Name+said] = true
		if p.ParentSpanId != nil || a.StartTimeUnixNano < p.StartTimeUnixNano || a.EndTimeUnixNano > p.EndTimeUnixNano {
			t.Errorf("request %d: parent %s, %v in %v", id, hex.EncodeToString(p.ParentSpanId), a, p)
		}
	}
	if len(seen) != 2*n {
		t.Errorf("%d requests, not %d", len(seen), 2*n)
	}
}

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
func (s *server) uprobes(at []uint64) (take func()) {
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
	return func() {
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
		if hits == 0 || len(placed) < len(at) {
			s.t.Errorf("%d uprobes at %d places had %d hits", len(placed), len(at), hits)
		}
	}
}

// BenchmarkEcho loads the server in rounds of four: without probes, with spans; and another that runs from a copy of the program without probes, with
// the kernel's uprobes, recorded, at the same instructions. The server has a CPU of its own; clients and who collects share the others. Where there is only
// one other they take time from each other, so that requests a second say less than the server's CPU time. The figures are medians: requests a second and
// the server's CPU time as ratios of those without probes in the same round, and in nanoseconds a request the server's and the collector's CPU time.
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
				take()
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
