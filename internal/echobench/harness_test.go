package echobench

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// hold has the tracer of a server wait, at a moment when the server runs: the hits stay in the ring, which has room for all of them.
func (tr *tracer) hold(s *server) {
	s.t.Helper()
	for {
		tr.signal(s.t, syscall.SIGSTOP)
		answered := make(chan bool)
		go func() {
			s.counts()
			close(answered)
		}()
		select {
		case <-answered:
			return
		case <-time.After(time.Second): // it is the tracer that holds the server
			tr.signal(s.t, syscall.SIGCONT)
			<-answered
		}
	}
}

func (tr *tracer) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := tr.Process.Signal(sig); err != nil {
		t.Error(err)
	}
}

var summary = regexp.MustCompile(`(?m)^spans=(\d+) .* sent=(\d+) .*$`)

// ended ends the tracer and checks that it has made and sent n spans, and lost none.
func (tr *tracer) ended(t testing.TB, n int) {
	t.Helper()
	tr.signal(t, syscall.SIGINT)
	err := <-tr.done
	m := summary.FindStringSubmatch(tr.out.String())
	if want := strconv.Itoa(n); err != nil || m == nil || m[1] != want || m[2] != want {
		t.Errorf("%v; not %d spans:\n%s", err, n, &tr.out)
	}
}
