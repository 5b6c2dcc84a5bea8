package debughttp

import (
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestMetrics compares the metrics of events, and of a histogram that a trigger makes, with what the program has counted; promtool finds nothing wrong with them.
func TestMetrics(t *testing.T) {
	s := serve(t)
	s.post("kprobe_events", "p:look f_push v=%di:u64\nr:g/found f_str n=$arg2:u32 ns=$duration\np:off f_lea")
	s.post("events/g/found/trigger", "hist:keys=n,ns.log2:vals=ns if n < 2")
	s.post("events/kprobes/look/enable", "1")
	s.post("events/g/found/enable", "1")
	before := s.prog.Counts("count")
	now := s.prog.Counts("go 320")
	text := s.get("metrics")
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = strings.NewReader(text)
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool: %v: %s", err, out)
	}
	str := now["f_str"] - before["f_str"]
	for series, want := range map[string]uint64{
		`kprobe_hits_total{group="kprobes",event="look"}`:              now["f_push"] - before["f_push"],
		`kprobe_hits_total{group="g",event="found"}`:                   str,
		`kprobe_hits_total{group="kprobes",event="off"}`:               0,
		`kprobe_lost_total{group="g",event="found"}`:                   0,
		`kprobe_missed_total{group="g",event="found"}`:                 0,
		`kprobe_duration_seconds_count{group="g",event="found",n="0"}`: str / 16,
		`kprobe_duration_seconds_count{group="g",event="found",n="1"}`: str / 16,
		`kprobe_hist_dropped_hits_total{group="g",event="found"}`:      0,
		`kprobe_series_left_out_hits_total{group="g",event="found"}`:   0,
	} {
		if line := "\n" + series + " " + strconv.FormatUint(want, 10) + "\n"; !strings.Contains(text, line) {
			t.Errorf("no line %s in\n%s", strings.TrimSpace(line), text)
		}
	}
	r, err := http.NewRequest(http.MethodGet, s.url+"metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if kind := resp.Header.Get("Content-Type"); !strings.HasPrefix(kind, "application/openmetrics-text; version=1.0.0") {
		t.Errorf("OpenMetrics is asked for, and the answer is %s", kind)
	}
	s.fails(http.MethodPost, "metrics", "1", http.StatusMethodNotAllowed, "GET")
}
