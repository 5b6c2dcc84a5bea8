package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/testprog"
)

// redis is a redis-server of the test's own, without persistence.
type redis struct {
	t    testing.TB
	proc *testprog.Proc
	port string
	conn net.Conn
	in   *bufio.Reader
}

// redisPath is Debian's server.
func redisPath(t testing.TB) string { return tool(t, "redis-server", "redis-server") }

// tool finds a program that the tests need.
func tool(t testing.TB, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: install it (Debian: apt-get install %s)", err, pkg)
	}
	return path
}

// startRedis starts a server on a free port of the loopback interface. Words before the
// path are those of a command that starts it.
func startRedis(t testing.TB, path ...string) *redis {
	t.Helper()
	for range 5 { // somebody may take the port before the server does
		r := &redis{t: t, port: freePort(t)}
		r.proc = testprog.StartHeld(t, path[0], append(slices.Clone(path[1:]), "--port", r.port, "--bind", "127.0.0.1",
			"--save", "", "--appendonly", "no", "--dir", t.TempDir(), "--logfile", tempFile(t, "log"))...)
		within(t, "redis-server answers or ends", func() bool { return r.connect() || !r.proc.Alive() })
		if r.conn != nil {
			spinning := min(len(path)-1, 1)
			within(t, "the server's threads wait for work", func() bool { return r.idle(spinning) })
			return r
		}
	}
	t.Fatalf("%s does not start", path)
	return nil
}

// idle says whether at most so many of the server's threads have anything to do: those
// that have just been made still block all signals.
func (r *redis) idle(busy int) bool {
	for _, tid := range tasks(r.t, r.proc.PID) {
		if !strings.HasPrefix(field(r.t, r.proc.PID, tid, "State"), "S") {
			busy--
		}
	}
	return busy >= 0
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// connect tries to reach the server, and sees that it is this one.
func (r *redis) connect() bool {
	c, err := net.Dial("tcp", "127.0.0.1:"+r.port)
	if err != nil {
		return false
	}
	r.conn, r.in = c, bufio.NewReader(c)
	r.t.Cleanup(func() { c.Close() })
	if info, err := r.try("INFO server"); err == nil && strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", r.proc.PID)) {
		return true
	}
	r.conn = nil
	return false
}

// ask sends a command and gives the answer.
func (r *redis) ask(command string) string {
	r.t.Helper()
	s, err := r.try(command)
	if err != nil {
		r.t.Fatalf("redis-server: %s: %v", command, err)
	}
	return s
}

// try sends a command inline and reads an answer that is a line or a string (the Redis
// serialization protocol: +OK, -ERR, :1, $5).
func (r *redis) try(command string) (string, error) {
	if err := r.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(r.conn, command+"\r\n"); err != nil {
		return "", err
	}
	line, err := r.in.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSpace(line)
	switch {
	case strings.HasPrefix(line, "+"), strings.HasPrefix(line, ":"):
		return line[1:], nil
	case !strings.HasPrefix(line, "$"):
		return "", errors.New(line)
	}
	n, err := strconv.Atoi(line[1:])
	if err != nil || n < 0 {
		return "", fmt.Errorf("answer %q", line)
	}
	b := make([]byte, n+2)
	if _, err := io.ReadFull(r.in, b); err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// calls asks how often the server has called each command since CONFIG RESETSTAT. This
// very call is not among them.
func (r *redis) calls() map[string]uint64 {
	r.t.Helper()
	out := map[string]uint64{}
	for line := range strings.SplitSeq(r.ask("INFO commandstats"), "\r\n") {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		n, _, _ := strings.Cut(rest, ",")
		v, err := strconv.ParseUint(n, 10, 64)
		if err != nil {
			r.t.Fatalf("commandstats %q: %v", line, err)
		}
		out[name] = v
	}
	return out
}

// stat asks for a number of INFO.
func (r *redis) stat(name string) uint64 {
	r.t.Helper()
	_, rest, _ := strings.Cut(r.ask("INFO stats"), name+":")
	n, _, _ := strings.Cut(rest, "\r\n")
	v, err := strconv.ParseUint(n, 10, 64)
	if err != nil {
		r.t.Fatalf("INFO stats: %s: %v", name, err)
	}
	return v
}

// load runs redis-benchmark with n commands of each kind and gives commands a second.
func (r *redis) load(n int, args ...string) float64 {
	r.t.Helper()
	args = append([]string{"-h", "127.0.0.1", "-p", r.port, "-P", "16", "-n", strconv.Itoa(n), "-t", "set,get", "--csv"}, args...)
	o := run(r.t, exec.Command(tool(r.t, "redis-benchmark", "redis-tools"), args...))
	seconds := 0.0
	rows := 0
	for line := range strings.Lines(o.stdout) {
		f := strings.Split(line, ",")
		if len(f) < 2 || f[0] == `"test"` {
			continue
		}
		rps, err := strconv.ParseFloat(strings.Trim(f[1], `"`), 64)
		if err != nil || rps <= 0 {
			r.t.Fatalf("redis-benchmark: %v", o)
		}
		seconds += float64(n) / rps
		rows++
	}
	if o.code != 0 || rows != 2 {
		r.t.Fatalf("redis-benchmark: %v", o)
	}
	return float64(2*n) / seconds
}

// cpu is the time that the server's threads have run.
func (r *redis) cpu() time.Duration {
	r.t.Helper()
	var sum uint64
	for _, tid := range tasks(r.t, r.proc.PID) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/schedstat", r.proc.PID, tid))
		if err != nil {
			r.t.Fatal(err)
		}
		var ns uint64
		if _, err := fmt.Sscan(string(b), &ns); err != nil {
			r.t.Fatalf("schedstat %q: %v", b, err)
		}
		sum += ns
	}
	return time.Duration(sum)
}
