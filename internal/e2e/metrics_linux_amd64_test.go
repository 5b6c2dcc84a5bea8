package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// httpToken is what requests to kprobe bear in these tests.
const httpToken = "a-token-of-sixteen-or-more"

// series is what a line of metrics tells.
var series = regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? (\S+)$`)

// metricsIn reads metrics in the text format, without the labels that name the process. promtool must find nothing wrong with them.
func metricsIn(t *testing.T, text string) map[string]float64 {
	t.Helper()
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = strings.NewReader(text)
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool: %v: %s", err, out)
	}
	all := map[string]float64{}
	for _, m := range series.FindAllStringSubmatch(text, -1) {
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			t.Fatalf("%q: %v", m[0], err)
		}
		labels := regexp.MustCompile(`,?pid="\d+",process="work"`).ReplaceAllString(m[2], "")
		all[m[1]+"{"+labels+"}"] = v
	}
	return all
}

// TestHistMetrics compares what kprobe hist writes for the node exporter with what the program's own definition says: bounds, sums, labels, and counts of events. While it is
// rewritten the file is always a whole one.
func TestHistMetrics(t *testing.T) {
	const threads, calls = 2, 30000
	file := filepath.Join(t.TempDir(), "kprobe.prom")
	s := &session{t: t}
	s.start(command(t, "hist", "--format", "prometheus", "-o", file, "-I", "10ms",
		"p:six f_six a=%di:u64", "keys=a.log2", "p:small f_small a=%di:s8 c=%dx:s32", "keys=a.buckets=16:vals=c", "r:str f_str n=$arg2:u32 ns=$duration s=+0($arg1):string", "keys=n,ns.log2 if n < 3",
		"--", testprog.Build(t, "work"), strconv.Itoa(threads), strconv.Itoa(calls)))
	for seen := false; !seen; {
		b, err := os.ReadFile(file)
		if err == nil && !strings.HasSuffix(string(b), "\n") {
			t.Fatalf("the file ends so: %q", b[max(0, len(b)-100):])
		}
		select {
		case <-s.done:
			seen = true
		default:
		}
	}
	r := s.wait()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: %v", err, r.outcome)
	}
	got := metricsIn(t, string(b))
	is := func(name string, want float64) {
		t.Helper()
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
	const total = threads * calls
	for _, event := range []string{"six", "small", "str"} {
		of := fmt.Sprintf(`{group="kprobes",event="%s"}`, event)
		is("kprobe_hits_total"+of, total)
		is("kprobe_missed_total"+of, 0)
		is("kprobe_lost_total"+of, 0)
		is("kprobe_hist_dropped_hits_total"+of, 0)
	}
	is(`kprobe_filtered_total{group="kprobes",event="str"}`, total-total/16*3)
	buckets, sum := map[int]float64{}, 0.0
	small, c := map[int64]float64{}, 0.0
	for th := range int64(threads) {
		for i := range int64(calls) {
			v := th<<32 | i
			buckets[log2(uint64(v))]++
			sum += float64(v)
			for bound := int64(-113); bound <= 0; bound += 16 { // of the ranges from -128 on
				if -(i & 127) <= bound {
					small[bound]++
				}
			}
			small[15]++
			c += float64(-i)
		}
	}
	n := 0.0
	for exp := range 64 {
		n += buckets[exp]
		is(fmt.Sprintf(`kprobe_a_bucket{group="kprobes",event="six",le="%d"}`, uint64(1)<<exp), n)
	}
	is(`kprobe_a_bucket{group="kprobes",event="six",le="+Inf"}`, total)
	is(`kprobe_a_count{group="kprobes",event="six"}`, total)
	is(`kprobe_a_sum{group="kprobes",event="six"}`, sum)
	for bound, n := range small {
		is(fmt.Sprintf(`kprobe_a_bucket{group="kprobes",event="small",le="%d"}`, bound), n)
	}
	is(`kprobe_sum_of_c{group="kprobes",event="small"}`, c)
	for n := range 3 {
		of := fmt.Sprintf(`{group="kprobes",event="str",n="%d"}`, n)
		is("kprobe_duration_seconds_count"+of, total/16)
		if s := got["kprobe_duration_seconds_sum"+of]; s <= 0 || s > 3600 {
			t.Errorf("calls with %d took %v seconds", n, s)
		}
	}
}

// listening starts a verb that answers requests, and gives its address when it does.
func listening(t *testing.T, args ...string) (*session, string) {
	t.Helper()
	cmd := command(t, args...)
	cmd.Env = append(os.Environ(), "KPROBES_HTTP_TOKEN="+httpToken)
	s := &session{t: t}
	s.start(cmd)
	at := regexp.MustCompile(`metrics are at http://(\S+)/metrics`)
	var addr string
	within(t, "the address of metrics", func() bool {
		select {
		case <-s.done:
			t.Fatalf("%s ended: %s", cmd, s.errs.String())
		default:
		}
		if m := at.FindStringSubmatch(s.errs.String()); m != nil {
			addr = m[1]
		}
		return addr != ""
	})
	return s, addr
}

// prometheus starts Prometheus on servers that it is to read, and gives a function that asks it.
func prometheus(t *testing.T, targets ...string) func(query string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n- job_name: kprobe\n  authorization: {credentials_file: token}\n  static_configs: [{targets: ['%s']}]\n",
		strings.Join(targets, "','"))
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte(httpToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close() // it listens there itself
	s := &session{t: t}
	s.start(exec.Command("prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr))
	return func(query string) map[string]string {
		select {
		case <-s.done:
			t.Fatalf("prometheus ended: %s", s.errs.String())
		default:
		}
		var answer struct {
			Data struct {
				Result []struct {
					Metric map[string]string
					Value  [2]any
				}
			}
		}
		resp, err := http.Get("http://" + addr + "/api/v1/query?query=" + url.QueryEscape(query))
		if err != nil {
			return nil // it does not listen yet
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK || json.NewDecoder(resp.Body).Decode(&answer) != nil {
			return nil
		}
		got := map[string]string{}
		for _, r := range answer.Data.Result {
			got[strings.Join([]string{r.Metric["__name__"], r.Metric["event"], r.Metric["pid"], r.Metric["le"]}, " ")] = r.Value[1].(string)
		}
		return got
	}
}

// TestPrometheusReads has Prometheus read the counts of kprobe stat and the histogram of kprobe hist, of one process at once: they are what the program has counted.
func TestPrometheusReads(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "work"), "2")
	pid := strconv.Itoa(prog.PID)
	stat, statAt := listening(t, "stat", "-p", pid, "-o", tempFile(t, "stat"), "--listen", "127.0.0.1:0", "p:push f_push", "r:str f_str")
	hist, histAt := listening(t, "hist", "-p", pid, "-o", tempFile(t, "hist"), "--listen", ":0", "p:six f_six a=%di:u64", "keys=a.log2")
	before := prog.Counts("count")
	counts := prog.Counts("go 5000")
	ask := prometheus(t, statAt, histAt)
	for event, fn := range map[string]string{"push": "f_push", "str": "f_str", "six": "f_six"} {
		want := strconv.FormatUint(counts[fn]-before[fn], 10)
		var got string
		within(t, "what Prometheus has of "+event, func() bool {
			got = ask(`kprobe_hits_total{event="` + event + `"}`)["kprobe_hits_total "+event+" "+pid+" "]
			return got != ""
		})
		if got != want {
			t.Errorf("Prometheus has %s hits of %s, the program has made %s", got, event, want)
		}
	}
	buckets := ask("kprobe_a_bucket")
	n := map[int]int{}
	for th := range 2 {
		for i := range 5000 {
			n[log2(uint64(th)<<32|uint64(i))]++
		}
	}
	sum := 0
	for exp := range 64 {
		sum += n[exp]
		le := strconv.FormatFloat(float64(uint64(1)<<exp), 'g', -1, 64)
		found := false
		for name, v := range buckets {
			f := strings.Fields(name)
			if bound, _ := strconv.ParseFloat(f[3], 64); strconv.FormatFloat(bound, 'g', -1, 64) == le {
				if found = true; v != strconv.Itoa(sum) {
					t.Errorf("up to 2^%d: %s, want %d", exp, v, sum)
				}
			}
		}
		if !found {
			t.Errorf("Prometheus has no bucket up to 2^%d: %v", exp, buckets)
		}
	}
	for _, s := range []*session{stat, hist} {
		s.interrupt()
		if r := s.wait(); r.code != 0 {
			t.Errorf("%v", r.outcome)
		}
	}
}

// TestListenAccess asks without the right to.
func TestListenAccess(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "work"), "1")
	_, at := listening(t, "stat", "-p", strconv.Itoa(prog.PID), "-o", tempFile(t, "stat"), "--listen", "127.0.0.1:0", "p:push f_push")
	for _, c := range []struct {
		method, host, path, token string
		status                    int
	}{
		{"GET", at, "/metrics", httpToken, 200},
		{"GET", at, "/metrics", "", 401},
		{"GET", at, "/metrics", httpToken + "x", 401},
		{"GET", "example.com", "/metrics", httpToken, 403},
		{"POST", at, "/metrics", httpToken, 405},
		{"GET", at, "/", httpToken, 404},
		{"GET", at, "/profile", httpToken, 404},
	} {
		r, err := http.NewRequest(c.method, "http://"+at+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = c.host
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s %s at %s with %q: status %d, want %d", c.method, c.path, c.host, c.token, resp.StatusCode, c.status)
		}
	}
}

// TestMetricsRefused has command lines refused that ask for what metrics can not be.
func TestMetricsRefused(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args  []string
		words string
	}{
		{[]string{"hist", "--format", "prometheus", "p:p f_push", "keys=common_stacktrace"}, "a stack is no label"},
		{[]string{"hist", "--format", "prometheus", "-I", "1s", "p:p f_push", "keys=common_pid"}, "-o FILE"},
		{[]string{"hist", "--format", "prometheus", "-I", "1ms", "-o", dir + "/x", "p:p f_push", "keys=common_pid"}, "at least 10ms"},
		{[]string{"hist", "--format", "prometheus", "-o", dir, "p:p f_push", "keys=common_pid"}, "this is none"},
		{[]string{"hist", "--series", "0", "p:p f_push", "keys=common_pid"}, "at least 1"},
		{[]string{"stat", "--listen", "127.0.0.1", "p:p f_push"}, "HOST:PORT"},
		{[]string{"stat", "--listen", "0.0.0.0:1234", "p:p f_push"}, "name one address"},
		{[]string{"stat", "--listen", "127.0.0.1:0", "p:p f_push"}, "without a token"},
	} {
		cmd := command(t, append(c.args, "--", testprog.Build(t, "work"))...)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.words) {
			t.Errorf("%q: %v: %s", c.args, err, out)
		}
	}
}

// TestListenProfile has go tool pprof read the callers of a function from kprobe hist while it counts.
func TestListenProfile(t *testing.T) {
	prog := testprog.Start(t, testprog.Build(t, "work"), "2")
	s, at := listening(t, "hist", "-p", strconv.Itoa(prog.PID), "-o", tempFile(t, "hist"), "--listen", "127.0.0.1:0", "p:push f_push", "keys=common_stacktrace", "p:lea f_lea", "keys=common_stacktrace")
	before := prog.Counts("count")
	n := prog.Counts("go 1000")["f_push"] - before["f_push"]
	pprof := func(path string) string {
		cmd := exec.Command("go", "tool", "pprof", "-raw", "http://kprobe:"+httpToken+"@"+at+path)
		cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir(), "NO_PROXY=127.0.0.1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	sum := uint64(0)
	for _, m := range regexp.MustCompile(`(?m)^ +(\d+): [\d ]+$`).FindAllStringSubmatch(pprof("/profile?event=push"), -1) {
		v, _ := strconv.ParseUint(m[1], 10, 64)
		sum += v
	}
	if sum != n {
		t.Errorf("the profile has %d hits, the program has made %d", sum, n)
	}
	if out := pprof("/profile?event=kprobes/push&seconds=0.1"); strings.Contains(out, "f_push") {
		t.Errorf("nothing was called meanwhile: %s", out)
	}
	s.interrupt()
	if r := s.wait(); r.code != 0 {
		t.Errorf("%v", r.outcome)
	}
}
