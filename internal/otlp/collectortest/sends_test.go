package collectortest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/testprog"
)

// patience bounds every wait for something that has to come.
const patience = 5 * time.Minute

func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// kprobe builds the command, once.
var kprobe = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "collectortest")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "kprobe")
	if out, err := exec.Command("go", "-C", "../../..", "build", "-o", path, "./cmd/kprobe").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := kprobe(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// running is a command that has been started.
type running struct {
	cmd       *exec.Cmd
	out, errs locked
	done      chan struct{}
	err       error
}

// locked is a buffer that is read while it is written.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func run(t *testing.T, args ...string) *running {
	t.Helper()
	path, err := kprobe()
	if err != nil {
		t.Fatal(err)
	}
	r := &running{cmd: exec.Command(path, args...), done: make(chan struct{})}
	r.cmd.Stdin = strings.NewReader("quit\n") // for a program that it starts
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.errs
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		r.err = r.cmd.Wait()
		close(r.done)
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.done
	})
	return r
}

// says waits until a command has written some words n times.
func (r *running) says(t *testing.T, words string, n int) {
	t.Helper()
	within(t, words, func() bool {
		select {
		case <-r.done:
			t.Fatalf("%s ended: %v: %s", r.cmd, r.err, r.errs.String())
		default:
		}
		return strings.Count(r.errs.String(), words) >= n
	})
}

// stop ends a command, which then sends what is left.
func (r *running) stop(t *testing.T) {
	t.Helper()
	_ = r.cmd.Process.Signal(unix.SIGTERM)
	<-r.done
	if r.err != nil {
		t.Errorf("%s: %v: %s", r.cmd, r.err, r.errs.String())
	}
}

// configured writes the configuration of an agent.
func configured(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "probes.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// check compares what the Collector has written of a service with the calls that the program has counted.
func (c *collector) check(t *testing.T, service string, calls uint64) {
	t.Helper()
	var got []*span
	within(t, fmt.Sprintf("%d spans of %s", calls, service), func() bool {
		got = c.spans(t, "Str("+service+")")
		return uint64(len(got)) >= calls
	})
	if uint64(len(got)) != calls {
		t.Errorf("the Collector has %d spans, the program has made %d calls", len(got), calls)
	}
	ns := map[string]uint64{}
	for _, s := range got {
		if s.name != "str" || s.attrs["code.function.name"] != "Str(f_str)" || (s.status == "Error") != (s.attrs["n"] == "Int(3)") {
			t.Errorf("%+v", s)
		}
		ns[s.attrs["n"]]++
	}
	for i := range 16 { // f_str's second argument counts up to 15
		if name := fmt.Sprintf("Int(%d)", i); ns[name] == 0 {
			t.Errorf("no span has the argument %s: %v", name, ns)
		}
	}
}

// TestCollector has the agent, and the verb spans, send the calls of a process to the Collector over HTTP and over gRPC. It gets each of them.
func TestCollector(t *testing.T) {
	c := start(t)
	p := testprog.Start(t, testprog.Build(t, "work"), "2")
	for kind, url := range map[string]string{"http": "http://" + c.http, "grpc": "grpc://" + c.grpc} {
		t.Run("agent/"+kind, func(t *testing.T) {
			service := "agent-" + kind
			a := run(t, "agent", "-c", configured(t, fmt.Sprintf("otlp: {endpoint: '%s', service: %s}\ntargets:\n- name: shop\n  pid: %d\n  probes:\n  - {define: 'r:str f_str n=$arg2:u32', spans: true, failed: n == 3}\n",
				url, service, p.PID)))
			a.says(t, `"msg":"armed"`, 1)
			before := p.Counts("count")["f_str"]
			n := p.Counts("go 1000")["f_str"] - before
			a.stop(t)
			c.check(t, service, n)
		})
		t.Run("spans/"+kind, func(t *testing.T) {
			service := "spans-" + kind
			var out struct {
				FStr uint64 `json:"f_str"`
				Bad  uint64
			}
			s := run(t, "spans", "--otlp", url, "--service", service, "r:str f_str n=$arg2:u32", "--error", "n == 3", "--", p.Path, "2", "1000")
			<-s.done
			lines := strings.Split(strings.TrimSpace(s.out.String()), "\n")
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &out); err != nil || s.err != nil || out.FStr != 2000 || out.Bad != 0 {
				t.Errorf("%v, %v: %s%s", err, s.err, s.out.String(), s.errs.String())
			}
			c.check(t, service, out.FStr)
		})
	}
}
