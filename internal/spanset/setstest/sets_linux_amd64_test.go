package setstest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// command is kprobe, built from the tree that this module lies in.
var command string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "setstest-")
	if err == nil {
		defer os.RemoveAll(dir)
		command = filepath.Join(dir, "kprobe")
		err = build("-C", "../../..", "-o", command, "./cmd/kprobe")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build runs go build; a -C among the arguments must be the first.
func build(args ...string) error {
	if out, err := exec.Command("go", append([]string{"build"}, args...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("go build %q: %w\n%s", args, err, out)
	}
	return nil
}

// program builds a program of this module.
func program(t *testing.T, name string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	if err := build(append(flags, "-o", out, "./"+name)...); err != nil {
		t.Fatal(err)
	}
	return out
}

// span is a span as the file has it.
type span struct {
	TraceID, SpanID, ParentSpanID, Name string
	Kind                                int
	Status                              struct{ Code int }
	Attributes                          []struct {
		Key   string
		Value struct{ StringValue, IntValue *string }
	}
	attrs map[string]string
}

// clean is a summary in which nothing is lost.
var clean = regexp.MustCompile(`(?m)^spans=(\d+) errors=\d+ left=0 unsampled=0 unjoined=0 unfollowed=0 active=0 sent=(\d+) rejected=0 dropped=0 failed=0$`)

// lost is a sum of a probe whose records were lost.
var lost = regexp.MustCompile(`(missed|lost)=[1-9]`)

// spansOf runs a program under kprobe spans. It gives the spans by their ids, and what the program has counted.
func spansOf(t *testing.T, args []string, program ...string) (spans map[string]*span, counted map[string]uint64) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spans.json")
	c := exec.Command(command, append(append(append([]string{"spans", "-o", file}, args...), "--"), program...)...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", c, err, errs.String())
	}
	if err := json.Unmarshal(out.Bytes(), &counted); err != nil {
		t.Fatalf("%s: %v\n%s", out.String(), err, errs.String())
	}
	spans = read(t, file)
	if m := clean.FindStringSubmatch(errs.String()); m == nil || m[1] != strconv.Itoa(len(spans)) || m[2] != m[1] || lost.MatchString(errs.String()) {
		t.Errorf("%d spans; %s", len(spans), errs.String())
	}
	return spans, counted
}

// read reads a file of spans.
func read(t *testing.T, file string) map[string]*span {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	spans := map[string]*span{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var batch struct {
			ResourceSpans []struct{ ScopeSpans []struct{ Spans []*span } }
		}
		if err := json.Unmarshal(lines.Bytes(), &batch); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		for _, s := range batch.ResourceSpans[0].ScopeSpans[0].Spans {
			s.attrs = map[string]string{}
			for _, a := range s.Attributes {
				if v := a.Value; v.StringValue != nil {
					s.attrs[a.Key] = *v.StringValue
				} else if v.IntValue != nil {
					s.attrs[a.Key] = *v.IntValue
				}
			}
			if spans[s.SpanID] != nil {
				t.Errorf("two spans are %+v", s)
			}
			spans[s.SpanID] = s
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return spans
}

// The kinds of spans, by the numbers of OTLP.
const (
	internal = 1
	server   = 2
	client   = 3
)

// count counts spans by a key, and those that have failed.
func count(spans map[string]*span, key func(*span) string) (all, failed map[string]uint64) {
	all, failed = map[string]uint64{}, map[string]uint64{}
	for _, s := range spans {
		if k := key(s); k != "" {
			all[k]++
			if s.Status.Code == 2 {
				failed[k]++
			}
		}
	}
	return all, failed
}

const grpcPath = "google.golang.org/grpc."

// TestGRPC has the spans of clients and a server of gRPC, in the oldest and the newest version that the set names: their number is what the program
// has counted, and each is in the call that the program made it in.
func TestGRPC(t *testing.T) {
	for _, c := range []struct {
		name          string
		flags         []string
		unary, stream string
		stripped      bool
	}{
		{name: "v1.85.0", unary: "processRPC", stream: "processRPC"},
		{name: "v1.85.0 stripped", flags: []string{"-ldflags=-s -w"}, unary: "processRPC", stream: "processRPC", stripped: true},
		{name: "v1.60.0", flags: []string{"-modfile=grpc160.mod"}, unary: "processUnaryRPC", stream: "processStreamingRPC"},
	} {
		t.Run(c.name, func(t *testing.T) {
			probes := []string{"--set", "grpc", "main.Call n=$arg3:u64", "main.Follow n=$arg3:u64", "main.Answer n=$arg1:u64"}
			spans, n := spansOf(t, probes, program(t, "grpcecho", c.flags...), "150", "4")
			all, failed := count(spans, func(s *span) string {
				return strings.TrimPrefix(s.Name, grpcPath) + " " + strings.TrimPrefix(s.attrs["rpc.method"], "grpc.health.v1.Health/")
			})
			wantAll := map[string]uint64{"main.Call ": n["calls"], "main.Follow ": n["streams"], "main.Answer ": n["served"], "(*ClientConn).Invoke Check": n["calls"], "(*ClientConn).NewStream Watch": n["streams"]}
			wantFailed := map[string]uint64{"main.Call ": n["calls_failed"], "main.Follow ": n["streams_failed"], "main.Answer ": n["served_failed"], "(*ClientConn).Invoke Check": n["calls_failed"]}
			unary, stream := "(*Server)."+c.unary+" Check", "(*Server)."+c.stream+" Watch"
			if c.stripped { // what is an error, and which method the server handles, debug information tells
				unary, stream = "(*Server)."+c.unary+" ", "(*Server)."+c.stream+" "
				wantFailed = map[string]uint64{}
			}
			wantAll[unary] += n["served"]
			wantAll[stream] += n["followed"]
			if !c.stripped {
				wantFailed[unary] += n["served_failed"]
				wantFailed[stream] += n["followed_failed"]
			}
			if n["calls"] != 600 || n["served"] != 600 || n["calls_failed"] != 120 || n["streams"] != 60 || n["streams_failed"] != 30 || !maps.Equal(all, wantAll) || !maps.Equal(failed, wantFailed) {
				t.Errorf("spans %v, failed %v; the program counted %v", all, failed, n)
			}
			parents(t, spans, c.stripped)
		})
	}
}

// parents checks the spans of gRPC one by one.
func parents(t *testing.T, spans map[string]*span, stripped bool) {
	t.Helper()
	seen := map[int]bool{}
	for _, s := range spans {
		up := ""
		if p := spans[s.ParentSpanID]; p != nil {
			up = p.Name
		}
		kind, in := internal, ""
		switch name := strings.TrimPrefix(s.Name, grpcPath); name {
		case "(*ClientConn).Invoke", "(*ClientConn).NewStream":
			kind, in = client, map[string]string{"(*ClientConn).Invoke": "main.Call", "(*ClientConn).NewStream": "main.Follow"}[name]
			if !stripped && (s.attrs["server.address"] != "127.0.0.1" || s.attrs["server.port"] == "") {
				t.Fatalf("%+v", s)
			}
		case "main.Answer":
			n, err := strconv.Atoi(s.attrs["n"])
			if err != nil || seen[n] || !strings.HasPrefix(up, grpcPath+"(*Server).process") || !stripped && (s.Status.Code == 2) != (n%5 == 0) {
				t.Fatalf("%+v in %q", s, up)
			}
			seen[n], in = true, up
		case "main.Call", "main.Follow":
		default:
			kind = server
		}
		if s.Kind != kind || up != in || kind != internal && s.attrs["rpc.system.name"] != "grpc" {
			t.Fatalf("%+v in %q", s, up)
		}
	}
}

// TestRedis has the spans of clients of a Redis server: their number by the names of commands is what the server has counted.
func TestRedis(t *testing.T) {
	for _, flags := range [][]string{nil, {"-ldflags=-s -w"}} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			socket := startRedis(t)
			const rounds, clients = 100, 4
			spans, n := spansOf(t, []string{"--set", "redis", "main.Round"}, program(t, "redisload", flags...), socket, strconv.Itoa(rounds), strconv.Itoa(clients))
			all, failed := count(spans, func(s *span) string {
				switch name := s.attrs["db.operation.name"]; {
				case s.Name == "main.Round", name == "PIPELINE" && spans[s.ParentSpanID] != nil && s.attrs["db.operation.batch.size"] != "3":
					return "" // the pipelines that begin a connection are others
				default:
					return name
				}
			})
			total := uint64(rounds * clients)
			want := map[string]uint64{"set": total, "get": 2 * total, "incr": total, "PIPELINE": total, "MULTI": total}
			wantFailed := map[string]uint64{}
			if flags == nil {
				wantFailed["get"] = total
			}
			for _, counts := range []map[string]uint64{all, failed} { // a connection begins with commands of the package's own
				maps.DeleteFunc(counts, func(name string, _ uint64) bool { return want[name] == 0 })
			}
			if n["rounds"] != total || n["missing"] != total || n["failed"] != 0 || !maps.Equal(all, want) || !maps.Equal(failed, wantFailed) {
				t.Errorf("spans %v, failed %v; the program counted %v", all, failed, n)
			}
			server := calls(t, socket)
			if server["get"] != 3*total || server["set"] != 2*total || server["incr"] != 3*total || server["exec"] != total {
				t.Errorf("spans %v, the server has counted %v", all, server)
			}
			for _, s := range spans {
				if s.Name == "main.Round" {
					continue
				}
				if s.Kind != client || s.attrs["db.system.name"] != "redis" || flags == nil && s.attrs["server.address"] != socket {
					t.Fatalf("%+v", s)
				}
				if p := spans[s.ParentSpanID]; want[s.attrs["db.operation.name"]] != 0 && s.attrs["db.operation.batch.size"] != "2" && (p == nil || p.Name != "main.Round") {
					t.Fatalf("%+v in %+v", s, p)
				}
			}
		})
	}
}

// startRedis starts a server of its own for a test, and gives its socket.
func startRedis(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	c := exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", t.TempDir())
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatalf("%v (install redis-server)", err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "ready to accept connections") {
			return socket
		}
	}
	t.Fatalf("redis-server ended: %v", lines.Err())
	return ""
}

// oneCommand is a line of the server's counts.
var oneCommand = regexp.MustCompile(`cmdstat_([a-z]+):calls=(\d+),`)

// calls are the commands that a server has counted.
func calls(t *testing.T, socket string) map[string]uint64 {
	t.Helper()
	out, err := exec.Command("redis-cli", "-s", socket, "info", "commandstats").Output()
	if err != nil {
		t.Fatalf("%v (install redis-tools)", err)
	}
	n := map[string]uint64{}
	for _, m := range oneCommand.FindAllSubmatch(out, -1) {
		if n[string(m[1])], err = strconv.ParseUint(string(m[2]), 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	return n
}
