package debughttp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
	"kprobes.dev/kprobes/trace"
)

// patience bounds waits for what must come. Nothing measures it.
const patience = 60 * time.Second

const secret = "0123456789abcdef-secret"

// site is a server for a program of internal/testprog, as curl sees it.
type site struct {
	t    *testing.T
	url  string
	prog *testprog.Proc
}

func serve(t *testing.T) *site {
	t.Helper()
	prog := testprog.Start(t, testprog.Build(t, "work"), "2")
	p, err := process.OpenUnwaited(prog.PID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	tg, err := process.Attach(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	core, err := kprobes.Open(tg, nil)
	if err != nil {
		t.Fatal(err)
	}
	in := trace.New(core, nil)
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), core.Close(nil)); err != nil {
			t.Error(err)
		}
	})
	srv := httptest.NewServer(New(in, &Options{Token: secret, MaxBody: 64 << 10}))
	t.Cleanup(srv.Close)
	return &site{t: t, url: srv.URL + Prefix, prog: prog}
}

// ask makes a request and gives the answer's status and text.
func (s *site) ask(method, path, body string) (int, string) {
	s.t.Helper()
	resp := s.do(context.Background(), method, path, body)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// stream opens a file that has no end.
func (s *site) stream(ctx context.Context, path string) io.ReadCloser {
	s.t.Helper()
	resp := s.do(ctx, http.MethodGet, path, "") // it comes before any record does
	if resp.StatusCode != http.StatusOK {
		s.t.Fatalf("GET %s: status %d", path, resp.StatusCode)
	}
	return resp.Body
}

func (s *site) do(ctx context.Context, method, path, body string) *http.Response {
	s.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp
}

// get reads a file.
func (s *site) get(path string) string {
	s.t.Helper()
	status, text := s.ask(http.MethodGet, path, "")
	if status != http.StatusOK {
		s.t.Errorf("GET %s: status %d: %s", path, status, text)
	}
	return text
}

// post appends to a file, which must succeed.
func (s *site) post(path, body string) {
	s.t.Helper()
	if status, text := s.ask(http.MethodPost, path, body); status != http.StatusOK || text != "" {
		s.t.Errorf("POST %s: status %d: %s", path, status, text)
	}
}

// fails makes a request that must be refused with these words.
func (s *site) fails(method, path, body string, status int, words string) {
	s.t.Helper()
	if got, text := s.ask(method, path, body); got != status || !strings.Contains(text, words) {
		s.t.Errorf("%s %s %q: status %d, not %d with %q:\n%s", method, path, body, got, status, words, text)
	}
}

func (s *site) is(path, want string) {
	s.t.Helper()
	if got := s.get(path); got != want {
		s.t.Errorf("%s is\n%s\nnot\n%s", path, got, want)
	}
}

// The way of Documentation/trace/kprobetrace.rst: define, enable, look, disable, delete.
func TestSession(t *testing.T) {
	s := serve(t)
	s.is("kprobe_events", "")
	s.is("events", "enable\nftrace\nheader_event\nheader_page\n")
	s.is("events/enable", "?\n")
	s.post("kprobe_events", "p:look f_push v=%di # the first\nr:g/found f_push v=$retval\n")
	s.post("kprobe_events", "p f_lea")
	s.is("kprobe_events", "p:kprobes/look f_push v=%di\nr:g/found f_push v=$retval\np:kprobes/p_f_lea_0 f_lea\n")
	s.is("events", "enable\nftrace\ng\nheader_event\nheader_page\nkprobes\n")
	s.is("events/kprobes/", "enable\nfilter\nlook\np_f_lea_0\n")
	s.is("events/kprobes/look", "enable\nfilter\nformat\nhist\nid\ntrigger\n")
	s.is("events/kprobes/look/id", "20\n")
	if f := s.get("events/g/found/format"); !strings.HasPrefix(f, "name: found\nID: 21\nformat:\n") || !strings.Contains(f, "print fmt:") {
		t.Errorf("format:\n%s", f)
	}
	s.is("events/kprobes/look/enable", "0\n")
	s.post("events/kprobes/look/enable", "1\n")
	s.is("events/kprobes/look/enable", "1\n")
	s.is("events/kprobes/enable", "X\n")
	s.post("events/g/enable", "1")

	before := s.prog.Counts("count")
	n := s.prog.Counts("go 100")["f_push"] - before["f_push"]
	s.is("kprobe_profile", hit.ProfileLine("look", n, 0)+hit.ProfileLine("found", n, 0)+hit.ProfileLine("p_f_lea_0", 0, 0))
	out := s.get("trace")
	if !strings.HasPrefix(out, "# tracer: nop\n") || uint64(strings.Count(out, ": look: (f_push+0x0/0x")) != n || uint64(strings.Count(out, " <- f_push) v=")) != n {
		t.Errorf("trace of %d hits:\n%.2000s", n, out)
	}

	s.fails(http.MethodPost, "kprobe_events", "-:look", http.StatusConflict, "look is enabled")
	s.fails(http.MethodPut, "kprobe_events", "p:x f_nop5", http.StatusConflict, "enabled")
	s.post("events/enable", "0")
	s.is("events/enable", "0\n")
	s.post("kprobe_events", "-:look")
	s.is("trace", hit.Header(0, headerCPUs(out)))
	if status, text := s.ask(http.MethodPut, "kprobe_events", "p:x f_nop5"); status != http.StatusOK {
		t.Errorf("PUT: %d %s", status, text)
	}
	s.is("kprobe_events", "p:kprobes/x f_nop5\n")
	if status, text := s.ask(http.MethodPut, "kprobe_events", ""); status != http.StatusOK {
		t.Errorf("PUT of nothing: %d %s", status, text)
	}
	s.is("kprobe_events", "")
}

func headerCPUs(trace string) (n int) {
	_, rest, _ := strings.Cut(trace, "#P:")
	_, _ = fmt.Sscan(rest, &n)
	return n
}

func TestBadRequests(t *testing.T) {
	s := serve(t)
	s.post("kprobe_events", "p:ok f_push")
	s.fails(http.MethodPost, "kprobe_events", "p:first f_lea\np:bad f_push x=%rax\np:never f_nop5", http.StatusBadRequest,
		"trace_kprobe: error: Invalid register name\n  Command: p:bad f_push x=%rax\n                          ^\nline 2, column ")
	s.is("kprobe_events", "p:kprobes/ok f_push\np:kprobes/first f_lea\n")
	if log := s.get("error_log"); !strings.Contains(log, "] trace_kprobe: error: Invalid register name\n  Command: p:bad f_push x=%rax\n                          ^\n") {
		t.Errorf("error_log:\n%s", log)
	}
	if status, text := s.ask(http.MethodPut, "error_log", ""); status != http.StatusOK || text != "" {
		t.Errorf("PUT error_log: %d %s", status, text)
	}
	s.is("error_log", "")
	for _, tt := range []struct {
		method, path, body string
		status             int
		words              string
	}{
		{http.MethodPost, "kprobe_events", "-:nosuch", http.StatusNotFound, "matches no event"},
		{http.MethodPost, "kprobe_events", "p:a nosuchfunction", http.StatusBadRequest, "Invalid probed address or symbol"},
		{http.MethodPost, "kprobe_events", strings.Repeat("#", 64<<10+1), http.StatusRequestEntityTooLarge, "more than 65536 bytes"},
		{http.MethodPost, "kprobe_events", "p:a " + strings.Repeat("f", 5000), http.StatusBadRequest, "too long"},
		{http.MethodPost, "kprobe_events", "p:a f\x00g", http.StatusBadRequest, "Control character"},
		{http.MethodPost, "events/kprobes/ok/enable", "2", http.StatusBadRequest, "0 or 1"},
		{http.MethodPost, "events/kprobes/ok/enable", "", http.StatusBadRequest, "0 or 1"},
		{http.MethodPost, "events/kprobes/ok/filter", "(x == 1", http.StatusBadRequest, "Too many '('"},
		{http.MethodPost, "events/kprobes/nosuch/enable", "1", http.StatusNotFound, "no file"},
		{http.MethodPost, "events/nosuch/enable", "1", http.StatusNotFound, "no file"},
		{http.MethodPost, "tracing_on", "maybe", http.StatusBadRequest, "0 or 1"},
		{http.MethodPost, "enabled", "maybe", http.StatusBadRequest, "is taken"},
		{http.MethodPost, "kprobe_profile", "1", http.StatusMethodNotAllowed, "GET"},
		{http.MethodPost, "trace_pipe", "1", http.StatusMethodNotAllowed, "GET"},
		{http.MethodDelete, "kprobe_events", "", http.StatusMethodNotAllowed, "GET, POST, PUT"},
		{http.MethodHead, "trace_pipe", "", http.StatusMethodNotAllowed, ""},
		{http.MethodGet, "nosuch", "", http.StatusNotFound, "no file"},
		{http.MethodGet, "events/kprobes/ok/nosuch", "", http.StatusNotFound, "no file"},
		{http.MethodGet, "events/kprobes/nosuch/format", "", http.StatusNotFound, "no file"},
		{http.MethodGet, "events/kprobes/nosuch", "", http.StatusNotFound, "no file"},
		{http.MethodGet, "events/kprobes/ok/nosuch", "", http.StatusNotFound, "no file"},
		{http.MethodGet, "events/kprobes/ok/enable/more", "", http.StatusNotFound, "no file"},
		{http.MethodGet, "events//enable", "", http.StatusNotFound, "no file"},
		{http.MethodGet, "events/kprobes//enable", "", http.StatusNotFound, "no file"},
		{http.MethodGet, "kprobe_events?clear=1", "", http.StatusBadRequest, "none are taken"},
	} {
		s.fails(tt.method, tt.path, tt.body, tt.status, tt.words)
	}
	// Whatever a GET says, it changes nothing.
	s.ask(http.MethodGet, "tracing_on", "0")
	s.ask(http.MethodGet, "kprobe_events", "-:ok")
	s.ask(http.MethodGet, "events/kprobes/ok/enable", "1")
	s.is("tracing_on", "1\n")
	s.is("kprobe_events", "p:kprobes/ok f_push\np:kprobes/first f_lea\n")
	s.is("events/enable", "0\n")
}

func TestSwitches(t *testing.T) {
	s := serve(t)
	s.post("kprobe_events", "p:a f_push")
	s.post("events/enable", "1")
	s.post("tracing_on", "0")
	s.is("tracing_on", "0\n")
	s.prog.Counts("go 10")
	if out := s.get("trace"); strings.Contains(out, ": a: ") {
		t.Errorf("records with tracing_on 0:\n%s", out)
	}
	s.post("tracing_on", "1")
	s.prog.Counts("go 10")
	if out := s.get("trace"); !strings.Contains(out, ": a: ") {
		t.Errorf("no records with tracing_on 1:\n%s", out)
	}
	s.post("trace", "nothing happens")
	if out := s.get("trace"); !strings.Contains(out, ": a: ") {
		t.Errorf("an append emptied the trace:\n%s", out)
	}
	if status, text := s.ask(http.MethodPut, "trace", ""); status != http.StatusOK {
		t.Errorf("PUT trace: %d %s", status, text)
	}
	if out := s.get("trace"); strings.Contains(out, ": a: ") {
		t.Errorf("a truncation left the trace:\n%s", out)
	}
	if l := s.get("list"); !strings.Contains(l, "f_push+0x0") {
		t.Errorf("list:\n%s", l)
	}
	s.get("blacklist")
	profile := func() string { return s.get("kprobe_profile") }
	for _, word := range []string{"0", "off", "N"} {
		s.post("enabled", "1")
		s.is("enabled", "1\n")
		s.post("enabled", word)
		s.is("enabled", "0\n")
		before := profile()
		s.prog.Counts("go 10")
		if after := profile(); after != before {
			t.Errorf("hits while enabled is 0:\n%s%s", before, after)
		}
	}
	s.post("enabled", "on\n")
	before := profile()
	s.prog.Counts("go 10")
	if after := profile(); after == before {
		t.Errorf("no hits after enabled is 1 again:\n%s", after)
	}
	s.post("optimization", "0")
	s.is("optimization", "0\n")
	s.post("optimization", "1")
	s.is("optimization", "1\n")
}

// PUT makes an instance, with events and a buffer of its own, and DELETE removes it.
func TestInstances(t *testing.T) {
	s := serve(t)
	s.post("kprobe_events", "p:a f_push")
	change := func(method, path string) {
		t.Helper()
		if status, text := s.ask(method, path, ""); status != http.StatusOK || text != "" {
			t.Errorf("%s %s: %d %s", method, path, status, text)
		}
	}
	change(http.MethodPut, "instances/mine")
	change(http.MethodPut, "instances/other/")
	s.is("instances", "mine\nother\n")
	s.post("instances/mine/events/kprobes/a/enable", "1")
	before := s.prog.Counts("count")
	n := s.prog.Counts("go 50")["f_push"] - before["f_push"]
	for path, want := range map[string]uint64{"trace": 0, "instances/mine/trace": n, "instances/other/trace": 0} {
		if got := strings.Count(s.get(path), ": a: "); uint64(got) != want {
			t.Errorf("%s has %d records, want %d", path, got, want)
		}
	}
	for _, tt := range []struct {
		method, path, body string
		status             int
		words              string
	}{
		{http.MethodPut, "instances/mine", "", http.StatusConflict, "already"},
		{http.MethodPut, "instances/new", "1", http.StatusBadRequest, "takes no text"},
		{http.MethodPut, "instances/" + strings.Repeat("n", 300), "", http.StatusBadRequest, "at most 255 bytes"},
		{http.MethodPut, "instances/%0a", "", http.StatusBadRequest, "name of a directory"},
		{http.MethodPost, "instances/new", "", http.StatusMethodNotAllowed, "GET, PUT, DELETE"},
		{http.MethodPut, "instances/mine/instances/deeper", "", http.StatusNotFound, "no file"},
		{http.MethodPut, "instances", "", http.StatusMethodNotAllowed, "GET"},
		{http.MethodDelete, "instances/new", "", http.StatusNotFound, "no instance"},
		{http.MethodDelete, "instances/mine/events", "", http.StatusMethodNotAllowed, "GET"},
		{http.MethodDelete, "events/kprobes", "", http.StatusMethodNotAllowed, "GET"},
		{http.MethodGet, "instances/new", "", http.StatusNotFound, "no file"},
	} {
		s.fails(tt.method, tt.path, tt.body, tt.status, tt.words)
	}

	// One that a client reads stays.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream := s.stream(ctx, "instances/mine/trace_pipe")
	s.fails(http.MethodDelete, "instances/mine", "", http.StatusConflict, "open")
	cancel()
	stream.Close()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // the server hears later that the client went
		status, text := s.ask(http.MethodDelete, "instances/mine", "")
		if status == http.StatusOK {
			break
		}
		if status != http.StatusConflict || time.Now().After(end) {
			t.Fatalf("DELETE instances/mine: %d %s", status, text)
		}
	}
	s.is("instances", "other\n")
	profile := s.get("kprobe_profile")
	s.prog.Counts("go 10")
	if after := s.get("kprobe_profile"); after != profile {
		t.Errorf("a removed instance has left its probe:\n%s%s", profile, after)
	}
}

// The pipe streams what happens, to a client that may go at any time.
func TestPipe(t *testing.T) {
	s := serve(t)
	s.post("kprobe_events", "p:a f_push v=%di")
	s.post("events/enable", "1")
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		stream := s.stream(ctx, "trace_pipe")
		before := s.prog.Counts("count")
		n := s.prog.Counts("go 50")["f_push"] - before["f_push"]
		sc := bufio.NewScanner(stream)
		for i := uint64(0); i < n; i++ {
			if !sc.Scan() {
				t.Fatalf("the stream ended after %d lines of %d: %v", i, n, sc.Err())
			}
			if !strings.Contains(sc.Text(), ": a: (f_push+0x0/0x") {
				t.Errorf("line %q", sc.Text())
			}
		}
		cancel()
		stream.Close()
	}
}

// The index shows what there is, escaped, without a script.
func TestIndex(t *testing.T) {
	s := serve(t)
	s.post("kprobe_events", "p:g/look f_push")
	page := s.get("")
	for _, want := range []string{"<!DOCTYPE html>", `href="` + Prefix + `trace_pipe"`, `href="` + Prefix + `events/g/look/enable"`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %s:\n%s", want, page)
		}
	}
	if strings.Contains(page, "<script") {
		t.Error("the page has a script")
	}
	for _, d := range contents {
		status, _ := s.ask(http.MethodDelete, d.Path, "")
		if status != http.StatusMethodNotAllowed {
			t.Errorf("%s: status %d", d.Path, status)
		}
	}
}
