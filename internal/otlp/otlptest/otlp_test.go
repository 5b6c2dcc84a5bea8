package otlptest

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"kprobes.dev/kprobes/internal/otlp"
)

// batch has every kind of field.
func batch() *otlp.Batch {
	return &otlp.Batch{
		Resource: []otlp.Attr{{Key: "service.name", Value: "shop"}, {Key: "process.pid", Value: int64(4711)}},
		Scope:    otlp.Scope{Name: "kprobe", Version: "v1.2.3"},
		Spans: []*otlp.Span{
			{
				Trace: otlp.TraceID{1, 2, 3, 15: 0xff}, ID: otlp.SpanID{9, 7: 8}, Parent: otlp.SpanID{7: 1},
				Name: "main.(*Order).Place", Kind: otlp.KindInternal, Start: 1_700_000_000_123_456_789, End: 1_700_000_001_000_000_001,
				Status: otlp.StatusError, Message: "left by a panic", Remote: true,
				Attrs: []otlp.Attr{
					{Key: "text", Value: "größe \x00 \xff!"},
					{Key: "empty", Value: ""},
					{Key: "yes", Value: true},
					{Key: "no", Value: false},
					{Key: "zero", Value: int64(0)},
					{Key: "least", Value: int64(math.MinInt64)},
					{Key: "most", Value: uint64(math.MaxInt64)},
					{Key: "huge", Value: uint64(math.MaxUint64)},
					{Key: "half", Value: 0.5},
					{Key: "list", Value: []any{int64(1), "two", []any{}}},
					{Key: "other", Value: byte('a')},
				},
			},
			{Trace: otlp.TraceID{1}, ID: otlp.SpanID{2}, Name: "root", Kind: otlp.KindServer, Start: 1, End: 1},
		},
	}
}

// TestResources has spans of two processes, and one of the batch's own resource: each comes under its own.
func TestResources(t *testing.T) {
	of := []*otlp.Resource{{Attrs: []otlp.Attr{{Key: "process.pid", Value: int64(1)}}}, {Attrs: []otlp.Attr{{Key: "process.pid", Value: int64(2)}}}, nil}
	b := batch()
	b.Spans = nil
	for i, at := range []int{0, 1, 0, 2, 1} {
		b.Spans = append(b.Spans, &otlp.Span{Trace: otlp.TraceID{1}, ID: otlp.SpanID{byte(i + 1)}, Name: strconv.Itoa(i), Of: of[at]})
	}
	var fromProto, fromJSON collector.ExportTraceServiceRequest
	line, err := b.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(proto.Unmarshal(b.Proto(), &fromProto), protojson.Unmarshal(line, &fromJSON)); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*collector.ExportTraceServiceRequest{&fromProto, &fromJSON} {
		var got []string
		for _, rs := range r.ResourceSpans {
			attrs := rs.Resource.Attributes
			one := strconv.FormatInt(attrs[len(attrs)-1].Value.GetIntValue(), 10) + ":"
			for _, s := range rs.ScopeSpans[0].Spans {
				one += " " + s.Name
			}
			got = append(got, one)
		}
		if want := []string{"1: 0 2", "2: 1 4", "4711: 3"}; !slices.Equal(got, want) {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

func text(s string) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: s}}
}

func number(n int64) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: n}}
}

func truth(b bool) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_BoolValue{BoolValue: b}}
}

func list(vs ...*common.AnyValue) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_ArrayValue{ArrayValue: &common.ArrayValue{Values: vs}}}
}

func attr(key string, v *common.AnyValue) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: v}
}

// wanted checks what batch has become, by hand.
func wanted(t *testing.T, r *collector.ExportTraceServiceRequest) {
	t.Helper()
	if len(r.ResourceSpans) != 1 || len(r.ResourceSpans[0].ScopeSpans) != 1 || len(r.ResourceSpans[0].ScopeSpans[0].Spans) != 2 {
		t.Fatalf("not one resource with two spans: %v", r)
	}
	rs := r.ResourceSpans[0]
	all(t, rs.Resource.Attributes, []*common.KeyValue{attr("service.name", text("shop")), attr("process.pid", number(4711))})
	if s := rs.ScopeSpans[0].Scope; s.Name != "kprobe" || s.Version != "v1.2.3" {
		t.Errorf("scope %v", s)
	}
	s := rs.ScopeSpans[0].Spans[0]
	if hex.EncodeToString(s.TraceId) != "010203000000000000000000000000ff" || hex.EncodeToString(s.SpanId) != "0900000000000008" || hex.EncodeToString(s.ParentSpanId) != "0000000000000001" {
		t.Errorf("ids %x %x %x", s.TraceId, s.SpanId, s.ParentSpanId)
	}
	if s.Name != "main.(*Order).Place" || s.Kind != trace.Span_SPAN_KIND_INTERNAL || s.StartTimeUnixNano != 1_700_000_000_123_456_789 || s.EndTimeUnixNano != 1_700_000_001_000_000_001 {
		t.Errorf("span %v", s)
	}
	if s.Status.GetCode() != trace.Status_STATUS_CODE_ERROR || s.Status.GetMessage() != "left by a panic" {
		t.Errorf("status %v", s.Status)
	}
	all(t, s.Attributes, []*common.KeyValue{
		attr("text", text("größe \x00 \ufffd!")), attr("empty", text("")), attr("yes", truth(true)), attr("no", truth(false)),
		attr("zero", number(0)), attr("least", number(math.MinInt64)), attr("most", number(math.MaxInt64)), attr("huge", text("18446744073709551615")),
		attr("half", &common.AnyValue{Value: &common.AnyValue_DoubleValue{DoubleValue: 0.5}}),
		attr("list", list(number(1), text("two"), list())), attr("other", text("97")),
	})
	if s.Flags != uint32(trace.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK|trace.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)|1 {
		t.Errorf("flags %x", s.Flags)
	}
	root := rs.ScopeSpans[0].Spans[1]
	if len(root.ParentSpanId) != 0 || root.Status != nil || root.Kind != trace.Span_SPAN_KIND_SERVER || root.Flags != uint32(trace.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)|1 || len(root.Attributes) != 0 {
		t.Errorf("root %v", root)
	}
}

func all(t *testing.T, got, want []*common.KeyValue) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d attributes, not %d: %v", len(got), len(want), got)
	}
	for i := range want {
		if !proto.Equal(got[i], want[i]) {
			t.Errorf("attribute %v, not %v", got[i], want[i])
		}
	}
}

// TestProto has the published package decode what is sent. No field may be unknown to it.
func TestProto(t *testing.T) {
	var r collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(batch().Proto(), &r); err != nil {
		t.Fatal(err)
	}
	unknown(t, &r)
	wanted(t, &r)
}

// unknown fails if a message, or one in it, has fields that the published package does not know.
func unknown(t *testing.T, m proto.Message) {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	known := m.ProtoReflect().New().Interface()
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, known); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(m, known) {
		t.Errorf("there are fields that the protocol does not know: %v", m)
	}
}

// TestJSON has the published package decode a line of JSON. The JSON of protocol buffers has ids in base64, which is all that OTLP changes.
func TestJSON(t *testing.T) {
	line, err := batch().JSON()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.IndexByte(line, '\n') != len(line)-1 {
		t.Errorf("not one line: %q", line)
	}
	ids := regexp.MustCompile(`"(traceId|spanId|parentSpanId)":"([0-9a-f]*)"`)
	if n := len(ids.FindAll(line, -1)); n != 5 {
		t.Errorf("%d ids in hexadecimal, not 5", n)
	}
	line = ids.ReplaceAllFunc(line, func(b []byte) []byte {
		m := ids.FindSubmatch(b)
		id, err := hex.DecodeString(string(m[2]))
		if err != nil {
			t.Fatal(err)
		}
		return []byte(`"` + string(m[1]) + `":"` + base64.StdEncoding.EncodeToString(id) + `"`)
	})
	var r collector.ExportTraceServiceRequest
	if err := protojson.Unmarshal(line, &r); err != nil {
		t.Fatalf("%v\n%s", err, line)
	}
	wanted(t, &r)
	var plain struct {
		ResourceSpans []struct {
			ScopeSpans []struct {
				Spans []struct {
					Start any `json:"startTimeUnixNano"`
					Kind  any `json:"kind"`
				}
			}
		}
	}
	if err := json.Unmarshal(line, &plain); err != nil {
		t.Fatal(err)
	}
	s := plain.ResourceSpans[0].ScopeSpans[0].Spans[0]
	if s.Start != "1700000000123456789" || s.Kind != 1.0 {
		t.Errorf("start %v, kind %v: times are strings and enums numbers", s.Start, s.Kind)
	}
}

// answers has a server answer requests one after the other, and gives what it was sent.
func answers(t *testing.T, one ...func(http.ResponseWriter)) (url string, got *[]*collector.ExportTraceServiceRequest) {
	got = new([]*collector.ExportTraceServiceRequest)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "POST" || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" || r.Header.Get("Content-Encoding") != "gzip" || r.Header.Get("X-Key") != "secret" {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		b, err := io.ReadAll(z)
		if err != nil {
			t.Error(err)
		}
		m := new(collector.ExportTraceServiceRequest)
		if err := proto.Unmarshal(b, m); err != nil {
			t.Error(err)
		}
		n := len(*got)
		*got = append(*got, m)
		one[min(n, len(one)-1)](w)
	}))
	t.Cleanup(s.Close)
	return s.URL, got
}

func took(rejected int64, why string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		a := &collector.ExportTraceServiceResponse{}
		if rejected > 0 {
			a.PartialSuccess = &collector.ExportTracePartialSuccess{RejectedSpans: rejected, ErrorMessage: why}
		}
		b, err := proto.Marshal(a)
		if err != nil {
			panic(err)
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(b)
	}
}

func refuses(status int, after string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		if after != "" {
			w.Header().Set("Retry-After", after)
		}
		http.Error(w, "no room", status)
	}
}

// exported sends a batch's spans, and gives what has become of them.
func exported(t *testing.T, address string, o *otlp.Options) otlp.Stats {
	t.Helper()
	to, err := otlp.Dial(address, http.Header{"X-Key": {"secret"}})
	if err != nil {
		t.Fatal(err)
	}
	b := batch()
	o.Resource, o.Scope, o.Last = b.Resource, b.Scope, time.Minute
	e := otlp.NewExporter(to, o)
	for _, s := range b.Spans {
		e.Export(s)
	}
	st, err := e.Close()
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func TestHTTP(t *testing.T) {
	for _, tt := range []struct {
		name    string
		answers []func(http.ResponseWriter)
		want    otlp.Stats
		err     string
	}{
		{"taken", []func(http.ResponseWriter){took(0, "")}, otlp.Stats{Sent: 2}, ""},
		{"partly", []func(http.ResponseWriter){took(1, "too old")}, otlp.Stats{Sent: 1, Rejected: 1}, "too old"},
		{"too many rejected", []func(http.ResponseWriter){took(100, "")}, otlp.Stats{Rejected: 2}, "no reason"},
		{"throttled", []func(http.ResponseWriter){refuses(429, "0"), refuses(503, ""), refuses(502, ""), took(0, "")}, otlp.Stats{Sent: 2, Retries: 3}, ""},
		{"refused", []func(http.ResponseWriter){refuses(400, "")}, otlp.Stats{Failed: 2}, "400 Bad Request: no room"},
		{"long", []func(http.ResponseWriter){refuses(504, "3600")}, otlp.Stats{Failed: 2}, "504 Gateway Timeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url, got := answers(t, tt.answers...)
			st := exported(t, url, &otlp.Options{})
			err := st.Err
			if st.Err = nil; st != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%+v, %v", st, err)
			}
			for _, m := range *got {
				wanted(t, m)
			}
			if len(*got) != len(tt.answers) {
				t.Errorf("%d requests, not %d", len(*got), len(tt.answers))
			}
		})
	}
}
