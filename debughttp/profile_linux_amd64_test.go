package debughttp

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Lines of go tool pprof -raw: a sample with two values, and a location.
var (
	rawSample   = regexp.MustCompile(`(?m)^ +(\d+) +(\d+): ([\d ]+)$`)
	rawLocation = regexp.MustCompile(`(?m)^ +(\d+): 0x[0-9a-f]+ M=\d+ (\S+) `)
)

// profile has go tool pprof read a profile of an event of a function while calls makes calls of it. The profile's time ends by itself: if it was too short for the calls, a
// longer one is asked for.
func (s *site) profile(event, fn string, calls func()) string {
	s.t.Helper()
	for seconds := 1; ; seconds *= 2 {
		url := strings.Replace(s.url, "://", "://any:"+secret+"@", 1) + "profile?event=" + event + "&seconds=" + strconv.Itoa(seconds)
		cmd := exec.Command("go", "tool", "pprof", "-raw", url)
		cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+s.t.TempDir(), "NO_PROXY=127.0.0.1")
		var out []byte
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			out, err = cmd.CombinedOutput()
		}()
		for !s.armed(fn) {
			select {
			case <-done:
				s.t.Fatalf("%v: %s", err, out)
			default:
			}
		}
		calls()
		standing := s.armed(fn)
		<-done
		if err != nil {
			s.t.Fatalf("%v: %s", err, out)
		}
		if standing || seconds > int(patience/time.Second) {
			if s.armed(fn) {
				s.t.Errorf("a probe is left: %s", s.get("list"))
			}
			return string(out)
		}
	}
}

// sums adds up the values of a profile, whose innermost function must be fn.
func sums(t *testing.T, raw, fn string) (hits, second uint64) {
	t.Helper()
	names := map[string]string{}
	for _, m := range rawLocation.FindAllStringSubmatch(raw, -1) {
		names[m[1]] = m[2]
	}
	for _, m := range rawSample.FindAllStringSubmatch(raw, -1) {
		h, _ := strconv.ParseUint(m[1], 10, 64)
		v, _ := strconv.ParseUint(m[2], 10, 64)
		hits, second = hits+h, second+v
		if ids := strings.Fields(m[3]); names[ids[0]] != fn || len(ids) < 2 {
			t.Errorf("the innermost function is %s: %s", names[ids[0]], m[0])
		}
	}
	return hits, second
}

// TestProfile has go tool pprof read who calls a function while the program makes calls.
func TestProfile(t *testing.T) {
	s := serve(t)
	s.post("kprobe_events", "r:g/found f_push v=$retval n=$arg1")
	var n uint64
	raw := s.profile("g/found", "f_push", func() {
		before := s.prog.Counts("count")
		n = s.prog.Counts("go 100")["f_push"] - before["f_push"]
	})
	if !strings.Contains(raw, "hits/count duration/nanoseconds[dflt]") {
		t.Errorf("values: %s", raw)
	}
	if hits, took := sums(t, raw, "f_push"); hits != n || took == 0 {
		t.Errorf("%d hits in %d ns, the program has made %d", hits, took, n)
	}
	s.is("events/g/found/enable", "0\n")
}

// TestOwnProfile has go tool pprof read who calls a function of the process that answers, and what an argument sums up to.
func TestOwnProfile(t *testing.T) {
	t.Setenv(TokenVar, secret)
	srv := httptest.NewServer(Handler())
	t.Cleanup(srv.Close)
	s := &site{t: t, url: srv.URL + Prefix}
	s.post("kprobe_events", "p:calls kprobes.dev/kprobes/debughttp.probed n=$arg1")
	t.Cleanup(func() { s.post("kprobe_events", "-:calls") })
	const calls = 1000
	raw := s.profile("calls&vals=n", "debughttp.probed", func() {
		for i := range calls {
			if probed(i) != i+1 {
				t.Fatalf("probed(%d) is wrong", i)
			}
		}
	})
	if hits, sum := sums(t, raw, "kprobes.dev/kprobes/debughttp.probed"); hits != calls || sum != calls*(calls-1)/2 || !strings.Contains(raw, "hits/count n/count[dflt]") {
		t.Errorf("%d hits, arguments sum up to %d: %s", hits, sum, raw)
	}
}

// armed says whether a probe stands in a function.
func (s *site) armed(fn string) bool {
	for line := range strings.Lines(s.get("list")) {
		if strings.Contains(line, fn) && !strings.Contains(line, "[DISABLED]") {
			return true
		}
	}
	return false
}

// TestProfileRefused asks for profiles that can not be had.
func TestProfileRefused(t *testing.T) {
	s := serve(t)
	s.post("kprobe_events", "p:look f_push v=%di")
	for _, c := range []struct {
		method, query string
		status        int
		words         string
	}{
		{http.MethodGet, "", http.StatusBadRequest, "event="},
		{http.MethodGet, "?event=nosuch", http.StatusNotFound, "nosuch"},
		{http.MethodGet, "?event=look&seconds=0", http.StatusBadRequest, "seconds"},
		{http.MethodGet, "?event=look&seconds=1e9", http.StatusBadRequest, "3600"},
		{http.MethodGet, "?event=look&vals=x", http.StatusBadRequest, "which has: v"},
		{http.MethodGet, "?event=look&vals=v:name=x", http.StatusBadRequest, "is no argument"},
		{http.MethodGet, "?event=look&debug=1", http.StatusBadRequest, "event, seconds and vals"},
		{http.MethodPost, "?event=look", http.StatusMethodNotAllowed, "GET"},
	} {
		s.fails(c.method, "profile"+c.query, "", c.status, c.words)
	}
	for path, want := range map[string]int{"profile?event=nosuch": http.StatusNotFound, "kprobe_events": http.StatusUnauthorized} {
		r, err := http.NewRequest(http.MethodGet, s.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth("any", secret)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s with the token as a password: status %d, want %d", path, resp.StatusCode, want)
		}
	}
}
