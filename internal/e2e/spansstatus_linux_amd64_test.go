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
// status error from 500 on; with --errors there are those alone. So by HTTP/1 and by HTTP/2.
func TestSpansStatus(t *testing.T) {
	for i, flags := range [][]string{nil, {"--errors"}, nil, {"--errors"}} {
		p := testprog.Start(t, testprog.Build(t, "goserver"))
		base := p.Line()
		c := newCollector(t)
		s := startSpans(t, p, append([]string{"--otlp", c.url, "--set", "net/http"}, flags...)...)
		protocols := new(http.Protocols)
		protocols.SetHTTP1(i < 2)
		protocols.SetUnencryptedHTTP2(i >= 2)
		client := &http.Client{Transport: &http.Transport{Protocols: protocols}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		for k := range 60 {
			resp, err := client.Get(fmt.Sprintf("http://%s/status?n=%d", base, []int{200, 204, 302, 404, 500, 503, 0, 599}[k%8]))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if want := 1 + i/2; resp.ProtoMajor != want {
				t.Fatalf("answered by HTTP/%d, want %d", resp.ProtoMajor, want)
			}
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
			t.Errorf("%d, %q: spans by their status %v, errors %v; the program answered %v; %v", i, flags, got, failed, n, r.outcome)
		}
	}
}
