package setstest

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// carryingCall is a call as otelcalls tells of it.
type carryingCall struct {
	N               int
	Outer           []int
	Created         bool
	Trace, Span     string
	Sampled, Remote bool
	Unread          bool
}

// otelVersions are versions of OpenTelemetry for Go, and the flags that build a program with them.
var otelVersions = []struct {
	name  string
	flags []string
}{
	{"v1.47.0", nil},
	{"v1.47.0 pie", []string{"-buildmode=pie"}},
	{"v1.20.0", []string{"-modfile=otel120.mod"}},
}

// runContexts runs otelcalls under kprobe spans. It gives the calls, the spans by the numbers of their calls, and the summary.
func runContexts(t *testing.T, bin string, flags []string, args ...string) (calls []carryingCall, spans map[int]*span, sums map[string]int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spans.json")
	all := append([]string{"spans", "-q", "-o", file, "main.With traceparent=ctx n", "main.Serve traceparent=r.ctx n", "main.Without n"}, flags...)
	c := exec.Command(command, append(append(all, "--", bin), args...)...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", c, err, errs.String())
	}
	for d := json.NewDecoder(&out); d.More(); {
		var one carryingCall
		if err := d.Decode(&one); err != nil {
			t.Fatal(err)
		}
		calls = append(calls, one)
	}
	spans = map[int]*span{}
	for _, s := range read(t, file) {
		n, err := strconv.Atoi(s.attrs["n"])
		if err != nil || spans[n] != nil {
			t.Fatalf("%+v, %v, %+v", s, err, spans[n])
		}
		spans[n] = s
	}
	sums = map[string]int{}
	for _, m := range regexp.MustCompile(`(\w+)=(\d+)`).FindAllStringSubmatch(errs.String()[strings.LastIndex(errs.String(), "spans="):], -1) {
		sums[m[1]], _ = strconv.Atoi(m[2])
	}
	t.Log(errs.String())
	return calls, spans, sums
}

// place is what a call is in, by what the program knows: a call of its own, or a span of OpenTelemetry.
type place struct {
	call        int // 0: none
	trace, span string
	sampled     bool
	carried     string // what the innermost call around with a context carries
}

// placeOf finds it.
func placeOf(c *carryingCall, in []place) place {
	if c.Span == "" {
		if len(c.Outer) == 0 {
			return place{sampled: true}
		}
		return in[c.Outer[len(c.Outer)-1]]
	}
	for _, n := range slices.Backward(c.Outer) {
		if in[n].carried == c.Trace+c.Span {
			return in[n]
		}
	}
	return place{trace: c.Trace, span: c.Span, sampled: c.Sampled, carried: c.Trace + c.Span}
}

// ways counts calls by what was to be found out of their contexts.
type ways struct{ calls, carried, remote, unsampled, unread int }

// enough fails a test whose programs have not called in all ways.
func (w *ways) enough(t *testing.T) {
	t.Helper()
	t.Logf("%d calls: %d in spans of OpenTelemetry, %d of these of others, %d not kept, %d with contexts that are not gone through", w.calls, w.carried, w.remote, w.unsampled, w.unread)
	if w.remote < 10 || w.carried < 50 || w.unread < 20 || w.unsampled < 50 {
		t.Error("the programs have not called in all ways")
	}
}

// check compares the spans with what the program says of its calls: each whose trace is kept is a span, in the trace, and in the span of
// OpenTelemetry, or the call, that it says.
func (w *ways) check(t *testing.T, calls []carryingCall, spans map[int]*span, sums map[string]int) {
	t.Helper()
	in := make([]place, len(calls)+1) // of what a call does
	unread, unsampled := 0, 0
	for i := range calls {
		c := &calls[i]
		at := placeOf(c, in)
		in[c.N] = at
		in[c.N].call = c.N
		if c.Unread {
			unread++
		}
		s := spans[c.N]
		if (s != nil) != at.sampled {
			t.Fatalf("call %+v in %+v has the span %+v", c, at, s)
		}
		if s == nil {
			unsampled++
			continue
		}
		in[c.N].trace = s.TraceID
		parent, ofOther := at.span, c.Remote && at.call == 0
		if at.call != 0 {
			parent = spans[at.call].SpanID
		}
		if s.ParentSpanID != parent || at.trace != "" && s.TraceID != at.trace || (s.Kind == server) != ofOther {
			t.Fatalf("call %+v in %+v has the span %+v, and not the parent %q", c, at, s, parent)
		}
		if ofOther {
			w.remote++
		}
		if at.call == 0 && at.span != "" {
			w.carried++
		}
	}
	want := map[string]int{"spans": len(spans), "sent": len(spans), "unread": unread, "unsampled": unsampled}
	for name, n := range sums {
		if n != want[name] {
			t.Errorf("%s=%d, want %d", name, n, want[name])
		}
	}
	w.calls, w.unread, w.unsampled = w.calls+len(calls), w.unread+unread, w.unsampled+unsampled
}

// seeds have otelcalls make some 1,000 calls, whose records find room whatever the machine does.
var seeds = []string{"1", "2", "3"}

// rounds goes with seeds.
const rounds = "4"

// TestContexts has a program make spans by OpenTelemetry, and call with contexts that carry them.
func TestContexts(t *testing.T) {
	for _, v := range otelVersions {
		t.Run(v.name, func(t *testing.T) {
			bin := program(t, "otelcalls", v.flags...)
			var w ways
			for _, seed := range seeds {
				calls, spans, sums := runContexts(t, bin, nil, seed, rounds)
				w.check(t, calls, spans, sums)
			}
			w.enough(t)
		})
	}
}

// TestContextsAtReturns has the contexts read at the entries, for records at the returns of calls that took long: all do here. When they return
// the garbage collector has taken contexts. What goroutines were created in is not known.
func TestContextsAtReturns(t *testing.T) {
	bin := program(t, "otelcalls")
	t.Setenv("GOGC", "1")
	var w ways
	for _, seed := range seeds {
		calls, spans, sums := runContexts(t, bin, []string{"--slower", "1ns", "--wait", "1h"}, seed, rounds)
		for i := range calls {
			if c := &calls[i]; c.Created {
				c.Outer = c.Outer[1:]
			}
		}
		w.check(t, calls, spans, sums)
	}
	w.enough(t)
}

// TestContextsOfAll has the program be one of all processes of its file.
func TestContextsOfAll(t *testing.T) {
	bin := program(t, "otelcalls")
	calls, spans, sums := runContexts(t, bin, []string{"-x", bin}, "6", rounds)
	new(ways).check(t, calls, spans, sums)
}

// TestContextsSampled has one trace in many kept: of those that the program has begun itself, it decides.
func TestContextsSampled(t *testing.T) {
	calls, spans, _ := runContexts(t, program(t, "otelcalls"), []string{"--sample", "1000000"}, "3", rounds)
	in := make([]place, len(calls)+1)
	first := map[string]bool{}
	for i := range calls {
		c := &calls[i]
		at := placeOf(c, in)
		in[c.N] = at
		in[c.N].call = c.N
		s := spans[c.N]
		switch {
		case at.carried == "" && s != nil:
			first[s.TraceID] = true
		case at.carried != "" && (s != nil) != at.sampled, s != nil && at.carried != "" && s.TraceID != at.trace:
			t.Fatalf("call %+v in %+v has the span %+v", c, at, s)
		}
	}
	if len(first) != 1 {
		t.Errorf("%d traces that begin with a call are kept, not the first", len(first))
	}
}

// TestContextsRefused has programs that can not tell of contexts: a probe is refused with the reason, and a set goes without.
func TestContextsRefused(t *testing.T) {
	stripped, without := program(t, "otelcalls", "-ldflags=-w"), program(t, "redisload")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"main.With traceparent=ctx", "--", stripped, "1", "1"}, "debug info"},
		{[]string{"github.com/redis/go-redis/v9.(*Client).Process traceparent=ctx", "--", without}, "the program has no spans of OpenTelemetry for Go"},
	} {
		out, err := exec.Command(command, append([]string{"spans"}, c.args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%q: %v\n%s", c.args, err, out)
		}
	}
	set := filepath.Join(t.TempDir(), "my.txt")
	if err := os.WriteFile(set, []byte("format 1\nmain.With traceparent=ctx\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for bin, without := range map[string]bool{stripped: true, program(t, "otelcalls"): false} {
		out, err := exec.Command(command, "spans", "-v", "--set", set, "-o", os.DevNull, "--", bin, "1", "1").CombinedOutput()
		if err != nil || strings.Contains(string(out), "main.With goes without traceparent: ") != without {
			t.Errorf("%v %v\n%s", without, err, out)
		}
	}
}
