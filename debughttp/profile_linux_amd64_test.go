package debughttp

import (
	"net/http"
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
	rawLocation = regexp.MustCompile(`(?m)^ +(\d+): 0x[0-9a-f]+ M=\d+ (\w+) `)
)

// TestProfile has go tool pprof read who calls a function while the program makes calls. The profile's time ends by itself: if it was too short for the calls, a longer
// one is asked for.
func TestProfile(t *testing.T) {
	s := serve(t)
	s.post("kprobe_events", "r:g/found f_push v=$retval n=$arg1")
	for seconds := 1; ; seconds *= 2 {
		before := s.prog.Counts("count")
		url := strings.Replace(s.url, "://", "://any:"+secret+"@", 1) + "profile?event=g/found&seconds=" + strconv.Itoa(seconds)
		cmd := exec.Command("go", "tool", "pprof", "-raw", url)
		cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir(), "NO_PROXY=127.0.0.1")
		var out []byte
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			out, err = cmd.CombinedOutput()
		}()
		for !s.armed("f_push") {
			select {
			case <-done:
				t.Fatalf("%v: %s", err, out)
			default:
			}
		}
		n := s.prog.Counts("go 100")["f_push"] - before["f_push"]
		standing := s.armed("f_push")
		<-done
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if !standing && seconds < int(patience/time.Second) {
			continue
		}
		raw := string(out)
		if !strings.Contains(raw, "hits/count duration/nanoseconds[dflt]") {
			t.Errorf("values: %s", raw)
		}
		names := map[string]string{}
		for _, m := range rawLocation.FindAllStringSubmatch(raw, -1) {
			names[m[1]] = m[2]
		}
		hits, took := uint64(0), uint64(0)
		for _, m := range rawSample.FindAllStringSubmatch(raw, -1) {
			h, _ := strconv.ParseUint(m[1], 10, 64)
			d, _ := strconv.ParseUint(m[2], 10, 64)
			hits, took = hits+h, took+d
			if ids := strings.Fields(m[3]); names[ids[0]] != "f_push" || len(ids) < 2 {
				t.Errorf("the innermost function is %s: %s", names[ids[0]], m[0])
			}
		}
		if hits != n || took == 0 {
			t.Errorf("%d hits in %d ns, the program has made %d", hits, took, n)
		}
		break
	}
	s.is("events/g/found/enable", "0\n")
	if s.armed("f_push") {
		t.Errorf("a probe is left: %s", s.get("list"))
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
