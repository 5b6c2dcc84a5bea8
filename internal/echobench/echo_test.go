package echobench

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	trace "go.opentelemetry.io/proto/otlp/trace/v1"
)

// What the sets name: the spans of requests, and the path of one over HTTP.
const (
	httpServer = "net/http.serverHandler.ServeHTTP"
	grpcServer = "google.golang.org/grpc.(*Server).processRPC"
	pathAttr   = "url.path"
)

// sets are the probes of each protocol.
var sets = map[string][]string{"http": {"--set", "net/http"}, "grpc": {"--set", "grpc"}}

// named are spans by their names.
func named(all []*trace.Span) map[string][]*trace.Span {
	m := map[string][]*trace.Span{}
	for _, s := range all {
		m[s.Name] = append(m[s.Name], s)
	}
	return m
}

// attribute is an attribute of a span, as text.
func attribute(s *trace.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return strings.Trim(strings.TrimPrefix(strings.TrimPrefix(a.Value.String(), "int_value:"), "string_value:"), `"`)
		}
	}
	return ""
}

// TestEcho has spans of each request: as many as the client counts, with the numbers and goroutines that the program tells, each in its own request.
func TestEcho(t *testing.T) {
	const n, clients = 2000, 8
	s, c := serve(t, "-ids"), newSink(t, true)
	tr := s.traced(slices.Concat([]string{"--otlp", c.URL, "main.answer id"}, sets["http"], sets["grpc"])...)
	overHTTP := s.dial(clients, dialHTTP, s.http).load(t, n)
	overGRPC := s.dial(clients, dialGRPC, s.grpc).load(t, n)
	if h, g, _ := s.counts(); h != n || g != n {
		t.Fatalf("the server counted %d and %d", h, g)
	}
	tr.ended(t, 4*n)
	by := named(c.spans(t))
	parents := map[string]*trace.Span{}
	for _, name := range []string{httpServer, grpcServer} {
		if len(by[name]) != n {
			t.Errorf("%d spans of %s, not %d", len(by[name]), name, n)
		}
		for _, p := range by[name] {
			parents[string(p.SpanId)] = p
		}
	}
	seen := map[string]bool{}
	for _, a := range by["main.answer"] {
		id, err := strconv.Atoi(attribute(a, "id"))
		p := parents[string(a.ParentSpanId)]
		if err != nil || id < 1 || id > n || p == nil || !bytes.Equal(a.TraceId, p.TraceId) {
			t.Fatalf("request %d: %v in %v", id, a, p)
		}
		said := overHTTP[id-1]
		if p.Name == grpcServer {
			said = overGRPC[id-1]
		} else if path := attribute(p, pathAttr); path != fmt.Sprintf("/echo/%016x", id) {
			t.Errorf("request %d has the path %q", id, path)
		}
		_, g, _ := strings.Cut(said, " ")
		if attribute(a, "go.goroutine.id") != g || attribute(p, "go.goroutine.id") != g || seen[p.Name+said] {
			t.Errorf("request %d, on goroutine %s: %v in %v", id, g, a, p)
		}
		seen[p.Name+said] = true
		if p.ParentSpanId != nil || a.StartTimeUnixNano < p.StartTimeUnixNano || a.EndTimeUnixNano > p.EndTimeUnixNano {
			t.Errorf("request %d: parent %s, %v in %v", id, hex.EncodeToString(p.ParentSpanId), a, p)
		}
	}
	if len(seen) != 2*n {
		t.Errorf("%d requests, not %d", len(seen), 2*n)
	}
}
