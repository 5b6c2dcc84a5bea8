package e2e

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// The kinds of spans, by the numbers of OTLP.
const (
	kindInternal = 1
	kindServer   = 2
	kindClient   = 3
)

// TestSpansSet has the spans of a server and its clients by the functions of a set, which the program names by no argument.
func TestSpansSet(t *testing.T) {
	for _, flags := range [][]string{nil, {"-ldflags=-s -w"}} {
		p := hardGo(t, "goserver", flags)
		c := newCollector(t)
		s := startSpans(t, p, "--otlp", c.url, "--set", "net/http", "main.Handle")
		const calls = 120
		n := p.Counts("load " + strconv.Itoa(calls) + " 4")
		within(t, "spans", func() bool { return c.count() >= 4*calls })
		r := s.end()
		all, failed := byName(c.spans)
		if n["main.Handle"] != calls || len(failed) > 0 || !maps.Equal(all, map[string]uint64{"net/http.serverHandler.ServeHTTP": calls, "net/http.(*Client).do": calls, "net/http.(*Transport).roundTrip": calls, "main.Handle": calls}) {
			t.Errorf("%v, failed %v; the program counted %v; %v", all, failed, n, r.outcome)
		}
		of := map[string]*gotSpan{}
		for _, s := range c.spans {
			of[s.id] = s
		}
		paths := [2]map[string]uint64{{}, {}}
		for _, s := range c.spans {
			up := ""
			if of[s.parent] != nil {
				up = of[s.parent].name
			}
			want := map[string]string{"main.Handle": "net/http.serverHandler.ServeHTTP", "net/http.(*Transport).roundTrip": "net/http.(*Client).do"}[s.name]
			if up != want && want != "" {
				t.Fatalf("%+v in %q", s, up)
			}
			s.http(t, flags == nil)
			switch s.name {
			case "net/http.serverHandler.ServeHTTP":
				paths[0][s.attrs["url.path"]]++
			case "net/http.(*Transport).roundTrip":
				paths[1][s.attrs["url.path"]]++
			}
		}
		if len(paths[0]) != 3 || !maps.Equal(paths[0], paths[1]) {
			t.Errorf("the server has answered %v, the clients have asked for %v", paths[0], paths[1])
		}
	}
}

// http checks the kind and the attributes of a span of net/http.
func (s *gotSpan) http(t *testing.T, debugInfo bool) {
	t.Helper()
	want := map[string]string{"http.request.method": "GET", "server.address": "127.0.0.1"}
	kind := uint64(kindInternal)
	switch s.name {
	case "main.Handle":
		want = nil
	case "net/http.serverHandler.ServeHTTP":
		want["network.peer.address"], kind = "127.0.0.1", kindServer
		if debugInfo {
			want["http.response.status_code"] = "200"
		}
	case "net/http.(*Transport).roundTrip":
		want["http.response.status_code"], kind = "200", kindClient
	default:
		want["http.response.status_code"] = "200"
	}
	for key, value := range want {
		if s.attrs[key] != value {
			t.Fatalf("%s is %q: %+v", key, s.attrs[key], s)
		}
	}
	if s.kind != kind || want != nil && (s.attrs["server.port"] == "" || !strings.HasPrefix(s.attrs["url.path"], "/")) {
		t.Fatalf("%+v", s)
	}
}

// setSpans runs a program under kprobe spans with a set. It gives its spans, and the program's output.
func setSpans(t *testing.T, set, input string, program ...string) ([]*gotSpan, *result) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spans.json")
	c := command(t, append([]string{"spans", "-o", file, "--set", set, "--"}, program...)...)
	c.Stdin = strings.NewReader(input)
	r := &result{outcome: run(t, c)}
	if r.code != 0 {
		t.Fatalf("%s: %v", c, r.outcome)
	}
	spans := spansIn(t, file)
	if sum := r.sums(t); sum["spans"] != uint64(len(spans)) || sum["sent"] != sum["spans"] || sum["left"]+sum["unjoined"]+sum["unfollowed"]+sum["dropped"]+sum["failed"] != 0 {
		t.Errorf("%d spans: %v", len(spans), r.outcome)
	}
	return spans, r
}

// libraryCalls compares the spans of a program of C with what it says: of each function the calls, and those that have failed.
func libraryCalls(t *testing.T, set, input string, program ...string) []*gotSpan {
	t.Helper()
	spans, r := setSpans(t, set, input, program...)
	var n map[string]uint64
	if err := json.Unmarshal([]byte(r.stdout), &n); err != nil {
		t.Fatalf("%v: %s", err, r.stdout)
	}
	all, failed := byName(spans)
	n["posix_spawn"] += n["system"] // which calls it
	for name, count := range n {
		got := all[name]
		if of, ok := strings.CutSuffix(name, "_failed"); ok {
			got = failed[of]
		}
		if got != count {
			t.Errorf("%s: %d spans, the program counted %d", name, got, count)
		}
	}
	return spans
}

// TestSpansSetLibc has the spans of calls of the C library, as a shared object and linked into the program.
func TestSpansSetLibc(t *testing.T) {
	for _, flags := range [][]string{nil, {"-static"}} {
		const rounds = 20
		seen := map[string]uint64{}
		for _, s := range libraryCalls(t, "libc", "", testprog.Build(t, "waits", flags...), strconv.Itoa(rounds)) {
			for _, key := range []string{"file.path", "dns.question.name", "process.executable.path", "process.command_line"} {
				seen[s.attrs[key]]++
			}
			if s.kind == kindClient != (s.name == "connect") {
				t.Errorf("%+v", s)
			}
		}
		for text, n := range map[string]uint64{"/none/open": rounds, "/none/openat": rounds, "127.0.0.1": rounds, "no.address": rounds, "/none/spawn": 1, "true": 1, "exit 3": 1} {
			if seen[text] != n {
				t.Errorf("%v: %d spans with %q, want %d", flags, seen[text], text, n)
			}
		}
	}
}

// TestSpansSetOpenSSL has the spans of handshakes and messages, also where the library is linked into the program.
func TestSpansSetOpenSSL(t *testing.T) {
	for _, flags := range [][]string{{"-lssl", "-lcrypto"}, {"-l:libssl.a", "-l:libcrypto.a"}} {
		in := map[string]uint64{}
		of := map[string]*gotSpan{}
		spans := libraryCalls(t, "openssl", "", testprog.Build(t, "tls", flags...), "20")
		for _, s := range spans {
			of[s.id] = s
		}
		for _, s := range spans {
			if up := of[s.parent]; s.name == "SSL_do_handshake" && up != nil && up.attrs["ret"] == s.attrs["ret"] {
				in[up.name]++
			}
		}
		all, _ := byName(spans)
		if in["SSL_connect"] != all["SSL_connect"] || in["SSL_accept"] != all["SSL_accept"] || all["SSL_do_handshake"] != in["SSL_connect"]+in["SSL_accept"] {
			t.Errorf("%v: handshakes in %v, of %v", flags, in, all)
		}
	}
}

// TestSpansSetSQL has the spans of statements and transactions with their text, and of connections, also where the program has no debug information.
func TestSpansSetSQL(t *testing.T) {
	for _, flags := range [][]string{nil, {"-ldflags=-s -w"}} {
		const rounds = 30
		spans, r := setSpans(t, "database/sql,net", "", testprog.Build(t, "gosql", flags...), strconv.Itoa(rounds))
		n, got := map[string]uint64{}, map[string]uint64{}
		if err := json.Unmarshal([]byte(r.stdout), &n); err != nil {
			t.Fatal(err)
		}
		texts := map[string]uint64{}
		for _, s := range spans {
			of, method, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(s.name, "database/sql.(*"), "net.(*"), ").")
			got[of+"."+method]++
			if s.failed {
				got[of+"."+method+"_failed"]++
			}
			kind := uint64(kindInternal)
			if strings.HasPrefix(s.name, "database/sql.") {
				kind = kindClient
			}
			texts[s.attrs["db.query.text"]+s.attrs["db.operation.name"]+s.attrs["dns.question.name"]+s.attrs["network.transport"]+s.attrs["server.address"]]++
			if s.kind != kind || (s.attrs["db.system.name"] == "other_sql") != (kind == kindClient) || (s.attrs["server.port"] != "") != (s.name == "net.(*Dialer).DialContext") {
				t.Fatalf("%+v", s)
			}
		}
		delete(n, "Tx.Rollback")                                  // which is inlined
		n["Resolver.lookupIPAddr"] += n["Dialer.DialContext"] + 1 // they look up an address too, as Listen does
		if flags != nil {
			delete(n, "DB.ExecContext_failed") // debug information tells what is an error
		}
		want := map[string]uint64{"BEGIN": 2 * rounds, "COMMIT": rounds, "127.0.0.1": 2*rounds + 1, "tcp127.0.0.1": rounds}
		for i := range rounds {
			want["QUERY "+strconv.Itoa(i)], want["EXEC "+strconv.Itoa(i)], want["PREPARED "+strconv.Itoa(i)] = 3, 1, 2
		}
		if n["Tx.QueryContext"] != 2*rounds || !maps.Equal(got, n) || !maps.Equal(texts, want) {
			t.Errorf("%v: spans %v with %v; the program counted %v", flags, got, texts, n)
		}
	}
}

// cyclesLine is what gowork says of the collector.
var cyclesLine = regexp.MustCompile(`(?m)^{"cycles":(\d+)}$`)

// TestSpansSetRuntime has the spans of the garbage collector: as many cycles as the runtime has counted.
func TestSpansSetRuntime(t *testing.T) {
	t.Setenv("GOGC", "5")
	for _, program := range []string{testprog.Build(t, "gowork"), olderGo(t, "gowork")} {
		const asked = 5
		spans, r := setSpans(t, "runtime", "go 3000\n"+strings.Repeat("gc\n", asked)+"cycles\nquit\n", program)
		all, failed := byName(spans)
		m := cyclesLine.FindStringSubmatch(r.stdout)
		if m == nil {
			t.Fatal(r.outcome)
		}
		cycles, err := strconv.ParseUint(m[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		active := r.sums(t)["active"] // the program may end behind a cycle, before its functions have returned
		short := func(spans, want uint64) bool { return spans > want || spans+active < want }
		if len(failed) > 0 || all["runtime.GC"] != asked || cycles <= asked || short(all["runtime.gcMarkTermination"], cycles) || all["runtime.gcStart"] < cycles ||
			all["runtime.stopTheWorldWithSema"] < 2*cycles || short(all["runtime.startTheWorldWithSema"], all["runtime.stopTheWorldWithSema"]) {
			t.Errorf("%s: spans %v, %d active, failed %v; the runtime has counted %d cycles", program, all, active, failed, cycles)
		}
	}
}

// olderGo builds one of the Go programs by an older version of Go, outside of this module, which wants a newer one.
func olderGo(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile("../testprog/" + name + "/main.go")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "main.go"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("go", "build", "-o", name, "main.go")
	c.Dir, c.Env = dir, append(os.Environ(), "GOTOOLCHAIN=go1.25.14", "GOGC=")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(dir, name)
}
