package otlptest

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/spans"
)

// outer and inner are called by the test, which is the program that is probed.
//
//go:noinline
func outer(id int) int { return inner(id, 0) + inner(id, 1) }

//go:noinline
func inner(id, n int) int { return id + n }

// taking is a collector that decodes what it is sent by the published package.
type taking struct {
	t  *testing.T
	mu sync.Mutex
	of []*trace.ResourceSpans
}

func (c *taking) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	unpacked, err := gzip.NewReader(r.Body)
	var b []byte
	if err == nil {
		b, err = io.ReadAll(unpacked)
	}
	var all collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(b, &all)
	}
	if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("X-Team") != "shop" {
		c.t.Errorf("%s %v: %v", r.URL, r.Header, err)
	}
	unknown(c.t, &all)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of = append(c.of, all.ResourceSpans...)
}

// ofAttr is an attribute of a span.
func ofAttr(as []*common.KeyValue, key string) *common.AnyValue {
	for _, a := range as {
		if a.Key == key {
			return a.Value
		}
	}
	return nil
}

// TestOwnProcess has a program send spans of its own calls, from many goroutines, and reads them with the published package: as many as it has called, each in
// the call that it was made in, by the program's own numbers.
func TestOwnProcess(t *testing.T) {
	c := &taking{t: t}
	to := httptest.NewServer(c)
	t.Cleanup(to.Close)
	core, err := kprobes.Self()
	if err != nil {
		t.Fatal(err)
	}
	const path = "kprobes.dev/kprobes/internal/otlp/otlptest."
	s, err := spans.Start(core, &spans.Options{Endpoint: to.URL, Headers: map[string]string{"X-Team": "shop"}, Service: "shop"},
		path+"outer id=$arg1:s64 --kind server", path+"inner id=$arg1:s64 n=$arg2:s64")
	if err != nil {
		t.Fatal(err)
	}
	const goroutines, calls = 8, 100
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range calls {
				if id := g*calls + i; outer(id) != 2*id+1 {
					t.Errorf("outer(%d) is wrong", id)
				}
			}
		})
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := s.Stats(); n.Sent != 3*goroutines*calls || n.Spans != n.Sent {
		t.Errorf("%+v", n)
	}
	outers, inners := map[string]*trace.Span{}, map[string]*trace.Span{}
	for _, rs := range c.of {
		if got := ofAttr(rs.Resource.Attributes, "service.name").GetStringValue(); got != "shop" {
			t.Errorf("service.name %q", got)
		}
		for _, sp := range rs.ScopeSpans[0].Spans {
			if sp.Kind == trace.Span_SPAN_KIND_SERVER {
				outers[string(sp.SpanId)] = sp
			} else {
				inners[fmt.Sprint(ofAttr(sp.Attributes, "id").GetIntValue(), " ", ofAttr(sp.Attributes, "n").GetIntValue())] = sp
			}
		}
	}
	if len(outers) != goroutines*calls || len(inners) != 2*goroutines*calls {
		t.Fatalf("%d outer calls, %d inner ones", len(outers), len(inners))
	}
	for of, sp := range inners {
		in := outers[string(sp.ParentSpanId)]
		if in == nil || string(in.TraceId) != string(sp.TraceId) || !proto.Equal(ofAttr(in.Attributes, "id"), ofAttr(sp.Attributes, "id")) {
			t.Errorf("%s is in %v", of, in)
		}
	}
}
