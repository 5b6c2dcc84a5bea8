package spans

import (
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/otlp"
)

// TestTree has the spans of two traces, in the order in which they end.
func TestTree(t *testing.T) {
	var out strings.Builder
	tree := Tree{Unix: 1_000_000_000_000, Write: func(b []byte) { out.Write(b) }}
	add := func(trace, id, parent byte, name string, from, to uint64, attrs ...otlp.Attr) *otlp.Span {
		s := &otlp.Span{
			Trace: otlp.TraceID{trace}, ID: otlp.SpanID{id}, Parent: otlp.SpanID{parent}, Name: name,
			Start: 1_000_000_000_000 + from, End: 1_000_000_000_000 + to, Attrs: append(attrs, otlp.Attr{Key: AttrThread, Value: int64(1)}),
		}
		if name == "bad" {
			s.Status, s.Message = otlp.StatusError, "it was left"
		}
		tree.Add(s)
		return s
	}
	add(1, 3, 2, "inner", 2_000_002_000, 2_000_002_500, otlp.Attr{Key: "s", Value: "a\"b\n"}, otlp.Attr{Key: "n", Value: int64(-1)})
	add(2, 9, 8, "open", 5_000, 6_000)
	add(1, 4, 1, "bad", 2_000_004_000, 2_000_005_001)
	add(1, 2, 1, "middle", 2_000_001_000, 2_000_003_000, otlp.Attr{Key: "list", Value: []any{uint64(1), "x"}})
	add(1, 1, 0, "outer", 2_000_000_000, 2_001_234_567)
	add(1, 5, 4, "late", 3_000_000_000, 3_000_000_001)
	add(3, 6, 7, "in one of ours", 4_000_000_000, 4_000_000_001)
	tree.Add(&otlp.Span{Trace: otlp.TraceID{3}, ID: otlp.SpanID{7}, Parent: otlp.SpanID{0xab}, Outside: true, Name: "in another", Start: 1_003_000_000_000, End: 1_003_000_000_001})
	tree.Close()
	const want = "" +
		"     2.000000      1234.567 us  outer\n" +
		"     2.000001         2.000 us    middle list={1,\"x\"}\n" +
		"     2.000002         0.500 us      inner s=\"a\\\"b\\n\" n=-1\n" +
		"     2.000004         1.001 us    bad  error: it was left\n" +
		"     3.000000         0.001 us  in another (in span ab00000000000000 of trace 03000000000000000000000000000000)\n" +
		"     4.000000         0.001 us    in one of ours\n" +
		"     0.000005         1.000 us  open (in a call that is not shown here)\n" +
		"     3.000000         0.001 us  late (in a call that is not shown here)\n"
	if got := out.String(); got != want {
		t.Errorf("%s\nnot\n%s", got, want)
	}
	if tree.n != 0 || len(tree.traces) != 0 {
		t.Errorf("%d spans, %d traces are left", tree.n, len(tree.traces))
	}
}

// TestTreeProcesses has spans with resources of their own: the first line of a trace names the process.
func TestTreeProcesses(t *testing.T) {
	var out strings.Builder
	tree := Tree{Write: func(b []byte) { out.Write(b) }}
	of := &otlp.Resource{Attrs: []otlp.Attr{{Key: "service.name", Value: "x"}, {Key: AttrProcess, Value: int64(4711)}}}
	n := otlp.Attr{Key: "n", Value: int64(1)}
	tree.Add(&otlp.Span{Trace: otlp.TraceID{1}, ID: otlp.SpanID{2}, Parent: otlp.SpanID{1}, Name: "inner", Attrs: []otlp.Attr{n}, Of: of})
	tree.Add(&otlp.Span{Trace: otlp.TraceID{1}, ID: otlp.SpanID{1}, Name: "outer", Attrs: []otlp.Attr{n}, Of: of})
	const want = "     0.000000         0.000 us  outer process.pid=4711 n=1\n     0.000000         0.000 us    inner n=1\n"
	if got := out.String(); got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

// TestTreeWaits has more spans than are held for a call that does not end.
func TestTreeWaits(t *testing.T) {
	lines := 0
	tree := Tree{Write: func(b []byte) { lines += strings.Count(string(b), "\n") }}
	for i := range maxWaiting + 1 {
		tree.Add(&otlp.Span{Trace: otlp.TraceID{1}, ID: otlp.SpanID{byte(i), byte(i >> 8), byte(i >> 16)}, Parent: otlp.SpanID{7: 1}})
	}
	if lines != maxWaiting+1 || tree.n != 0 {
		t.Errorf("%d lines, %d wait", lines, tree.n)
	}
}
