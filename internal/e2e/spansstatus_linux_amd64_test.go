package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// TestSpansStatus has the spans of a server with the status of each answer, and compares their numbers with the server's own. A span has the
// status error from 500 on; with --errors there are those alone.
func TestSpansStatus(t *testing.T) {
	for _, flags := range [][]string{nil, {"--errors"}} {
		p := testprog.Start(t, testprog.Build(t, "goserver"))
		base := p.Line()
		c := newCollector(t)
		s := startSpans(t, p, append([]string{"--otlp", c.url, "--set", "net/http"}, flags...)...)
		client := &http.Client{Transport: &http.Transport{}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		for i := range 60 {
			resp, err := client.Get(fmt.Sprintf("http://%s/status?n=%d", base, []int{200, 204, 302, 404, 500, 503, 0, 599}[i%8]))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		client.CloseIdleConnections()
		n := p.Counts("gc")
		r := s.end()
		want, wrong := map[string]uint64{}, map[string]uint64{}
		for name, k := range n {
			status, ok := strings.CutPrefix(name, "status ")
			if !ok {
				continue
			}
			if status >= "500" {
				wrong[status] = k
			} else if flags != nil {
				continue
			}
			if status == "0" {
				status = ""
			}
			want[status] = k
		}
		got, failed := map[string]uint64{}, map[string]uint64{}
		for _, s := range c.spans {
			got[s.attrs["http.response.status_code"]]++
			if s.failed {
				failed[s.attrs["http.response.status_code"]]++
			}
		}
		if len(wrong) != 3 || !maps.Equal(got, want) || !maps.Equal(failed, wrong) {
			t.Errorf("%q: spans by their status %v, errors %v; the program answered %v; %v", flags, got, failed, n, r.outcome)
		}
	}
}
