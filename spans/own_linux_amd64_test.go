package spans_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/spans"
)

// path is that of the test's functions.
const path = "kprobes.dev/kprobes/spans_test."

// The program that the tests probe: an order asks its queries by itself, and has a goroutine of its own deliver.

var delivered, asked atomic.Int64

//go:noinline
func order(id, queries int) int {
	sum := 0
	for i := range queries {
		sum += query(id, i)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		deliver(id)
	}()
	<-done
	return sum
}

//go:noinline
func query(id, n int) int {
	asked.Add(1)
	return id*1000 + n
}

//go:noinline
func deliver(id int) { delivered.Add(int64(id)) }

// probes of these functions.
var (
	ofOrder   = path + "order shop.order=$arg1:s64 --kind server"
	ofQuery   = path + "query shop.order=$arg1:s64 n=$arg2:s64 v=$retval:s64 --error 'n == 2'"
	ofDeliver = path + "deliver shop.order=$arg1:s64"
)

// collected are spans that Options.Export was given.
type collected struct {
	mu  sync.Mutex
	all []*spans.Span
}

func (c *collected) export(more []*spans.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, more...)
}

// start starts spans of the own process.
func start(t testing.TB, o *spans.Options, probes ...string) *spans.Spans {
	t.Helper()
	core, err := kprobes.Self()
	if err != nil {
		t.Fatal(err)
	}
	s, err := spans.Start(core, o, probes...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func end(t testing.TB, s *spans.Spans) spans.Stats {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return s.Stats()
}

// attr is an attribute of a span.
func attr(s *spans.Span, key string) any {
	for _, a := range s.Attrs {
		if a.Key == key {
			return a.Value
		}
	}
	return nil
}

// TestOwn has many goroutines order, and compares the spans with what the program has done: how often each function was called, with what, in
// which call, and with which result.
func TestOwn(t *testing.T) {
	const goroutines, orders, queries = 8, 50, 3
	var c collected
	s := start(t, &spans.Options{Export: c.export}, ofOrder, ofQuery, ofDeliver)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range orders {
				order(g*orders+i, queries)
			}
		})
	}
	wg.Wait()
	n := end(t, s)
	const total = goroutines * orders
	if n.Spans != total*(2+queries) || n.Errors != total || n.Unjoined+n.Left+n.Active+n.Lost+n.Hidden != 0 {
		t.Fatalf("%+v", n)
	}
	roots := map[spans.SpanID]*spans.Span{}
	byName := map[string]int{}
	for _, sp := range c.all {
		byName[sp.Name]++
		if sp.Name == path+"order" {
			roots[sp.ID] = sp
			if sp.Parent != (spans.SpanID{}) || sp.Kind != spans.KindServer || sp.Status != spans.StatusUnset {
				t.Errorf("%+v", sp)
			}
		}
	}
	if byName[path+"order"] != total || byName[path+"query"] != total*queries || byName[path+"deliver"] != total || len(roots) != total {
		t.Errorf("%v", byName)
	}
	for _, sp := range c.all {
		if roots[sp.ID] != nil {
			continue
		}
		in := roots[sp.Parent]
		if in == nil || in.Trace != sp.Trace || attr(in, "shop.order") != attr(sp, "shop.order") || in.Start > sp.Start || in.End < sp.End {
			t.Fatalf("%+v is in %+v", sp, in)
		}
		if sp.Name != path+"query" {
			continue
		}
		id, i, v := attr(sp, "shop.order").(int64), attr(sp, "n").(int64), attr(sp, "v").(int64)
		if v != id*1000+i || (sp.Status == spans.StatusError) != (i == 2) {
			t.Errorf("%+v", sp)
		}
	}
}

// climb panics, behind a number of calls of itself.
//
//go:noinline
func climb(id, n int) int {
	if n == 0 {
		panic("climb")
	}
	return climb(id, n-1) + 1
}

// guard recovers.
func guard(id, n int) {
	defer func() { _ = recover() }()
	climb(id, n)
}

// TestOwnFiltered keeps failed calls alone, those too that a panic leaves, and one trace in three.
func TestOwnFiltered(t *testing.T) {
	var c collected
	s := start(t, &spans.Options{Export: c.export, Errors: true}, ofQuery)
	for i := range 100 {
		order(i, 3)
	}
	if n := end(t, s); n.Spans != 100 || n.Errors != 100 || len(c.all) != 100 {
		t.Errorf("Errors: %+v, %d spans", n, len(c.all))
	}
	c.all = nil
	s = start(t, &spans.Options{Export: c.export, Errors: true}, path+"climb id=$arg1:s64 n=$arg2:s64 --error 'id < 0'")
	for i := range 50 {
		guard(i, 3)
	}
	if n := end(t, s); n.Spans != 200 || n.Left != 200 || n.Errors != 200 || n.Split != 0 || len(c.all) != 200 {
		t.Errorf("Errors: %+v, %d spans", n, len(c.all))
	}
	within := map[any]any{nil: int64(4)} // the number of the call whose span has an id
	for _, sp := range c.all {
		within[sp.ID] = attr(sp, "n")
	}
	for _, sp := range c.all {
		up := any(sp.Parent)
		if attr(sp, "n") == int64(3) {
			up = nil
		}
		if within[up] != attr(sp, "n").(int64)+1 || attr(sp, "error.type") != "panic" || sp.Status != spans.StatusError {
			t.Errorf("%+v, in that of %v", sp, within[up])
		}
	}
	c.all = nil
	s = start(t, &spans.Options{Export: c.export, Sample: 3}, ofOrder, ofQuery, ofDeliver)
	for i := range 99 {
		order(i, 3)
	}
	if n := end(t, s); n.Spans != 33*5 || n.Unsampled != 66*5 || len(c.all) != 33*5 {
		t.Errorf("Sample: %+v, %d spans", n, len(c.all))
	}
}

// TestOwnSending makes spans of net/http's client in a program that sends its spans by that client: they are those of its own requests alone.
func TestOwnSending(t *testing.T) {
	for _, o := range []spans.Options{{}, {Errors: true, Wait: time.Millisecond}} {
		var posts atomic.Int64
		to := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { posts.Add(1) }))
		t.Cleanup(to.Close)
		shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "cake") }))
		t.Cleanup(shop.Close)
		probes := []string{"net/http.(*Transport).roundTrip one=\\1 --kind client", "net.(*Dialer).DialContext one=\\1"}
		if o.Errors { // no call fails: so the condition is one that all meet
			for i := range probes {
				probes[i] += " --error 'one == 1'"
			}
		}
		o.Endpoint, o.Service = to.URL, "shop"
		s := start(t, &o, probes...)
		const requests = 20
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		for range requests {
			resp, err := client.Get(shop.URL)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		for deadline := time.Now().Add(time.Minute); s.Stats().Sent < 1; {
			if time.Now().After(deadline) {
				t.Fatalf("nothing is sent: %+v", s.Stats())
			}
			time.Sleep(time.Millisecond)
		}
		n := end(t, s)
		if n.Spans != 2*requests || n.Sent != n.Spans || n.Unjoined+n.Lost != 0 || posts.Load() == 0 {
			t.Errorf("Errors %t: %d posts, %+v", o.Errors, posts.Load(), n)
		}
		if n.Hidden == 0 {
			t.Errorf("Errors %t: no call of the sender was left out: %+v", o.Errors, n)
		}
	}
}

// TestOwnClose closes while calls go on, again and again: each span is one call, and nothing is left.
func TestOwnClose(t *testing.T) {
	var stop atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	for g := range 4 {
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				order(g, 2)
			}
		})
	}
	for range 2 {
		var c collected
		s := start(t, &spans.Options{Export: c.export}, ofOrder, ofQuery, ofDeliver)
		for s.Stats().Spans < 200 {
			time.Sleep(time.Millisecond)
		}
		n := end(t, s)
		if n.Spans != uint64(len(c.all)) || n.Errors+n.Left+n.Damaged != 0 {
			t.Errorf("%d spans, %+v", len(c.all), n)
		}
		ids := map[spans.SpanID]bool{}
		for _, sp := range c.all {
			if ids[sp.ID] || sp.Start == 0 || sp.End < sp.Start {
				t.Fatalf("%+v", sp)
			}
			ids[sp.ID] = true
		}
		if err := s.Close(); err != nil {
			t.Errorf("the second Close: %v", err)
		}
	}
}

// TestOwnJSON writes spans to a writer.
func TestOwnJSON(t *testing.T) {
	var out bytes.Buffer
	s := start(t, &spans.Options{JSON: &out, Service: "shop"}, ofOrder)
	for i := range 10 {
		order(i, 0)
	}
	if n := end(t, s); n.Sent != 10 {
		t.Errorf("%+v", n)
	}
	names := 0
	for line := range bytes.Lines(out.Bytes()) {
		var batch struct {
			ResourceSpans []struct {
				Resource   struct{ Attributes []struct{ Key string } }
				ScopeSpans []struct {
					Scope struct{ Name string }
					Spans []struct{ Name string }
				}
			}
		}
		if err := json.Unmarshal(line, &batch); err != nil {
			t.Fatal(err)
		}
		of := batch.ResourceSpans[0]
		if of.Resource.Attributes[0].Key != "service.name" || of.ScopeSpans[0].Scope.Name != "kprobes.dev/kprobes/spans" {
			t.Errorf("%s", line)
		}
		for _, sp := range of.ScopeSpans[0].Spans {
			if sp.Name == path+"order" {
				names++
			}
		}
	}
	if names != 10 {
		t.Errorf("%d spans:\n%s", names, out.Bytes())
	}
}

// TestOwnUnsent has a collector that takes nothing: Close says so, and all is counted.
func TestOwnUnsent(t *testing.T) {
	to := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no room here", http.StatusForbidden) }))
	t.Cleanup(to.Close)
	var told []string
	s := start(t, &spans.Options{Endpoint: to.URL, Log: func(line string) { told = append(told, line) }}, ofOrder)
	for i := range 10 {
		order(i, 0)
	}
	err := s.Close()
	if n := s.Stats(); err == nil || !strings.HasPrefix(err.Error(), "spans: 10 spans could not be sent: ") || !strings.Contains(err.Error(), "no room here") || n.Failed != 10 || n.Spans != 10 {
		t.Errorf("%v, %+v", err, n)
	}
	if len(told) == 0 || !strings.HasPrefix(told[len(told)-1], "10 spans are lost: ") {
		t.Errorf("%q", told)
	}
}

// TestRefused has what is wrong refused, with what to do instead, and nothing left of it.
func TestRefused(t *testing.T) {
	core, err := kprobes.Self()
	if err != nil {
		t.Fatal(err)
	}
	to := func([]*spans.Span) {}
	for _, c := range []struct {
		o      *spans.Options
		probes []string
		want   string
	}{
		{nil, []string{ofOrder}, "spans: spans have nowhere to go: give Options.Endpoint"},
		{&spans.Options{Export: to}, nil, "spans: no function is given"},
		{&spans.Options{Endpoint: "localhost:4318"}, []string{ofOrder}, "spans: Options.Endpoint: address of a collector"},
		{&spans.Options{Endpoint: "http://localhost", JSON: io.Discard}, []string{ofOrder}, "exclude each other"},
		{&spans.Options{Export: to, Headers: map[string]string{"a": "b"}}, []string{ofOrder}, "Options.Headers are for Endpoint"},
		{&spans.Options{Endpoint: "http://localhost", Headers: map[string]string{"a b": "c"}}, []string{ofOrder}, `Options.Headers: "a b" is no name of a header`},
		{&spans.Options{Export: to, Slower: -1}, []string{ofOrder}, "Options.Slower is -1ns"},
		{&spans.Options{Export: to, Wait: 1}, []string{ofOrder}, "Options.Wait is for Slower and Errors"},
		{&spans.Options{Export: to, Sets: []string{"none"}}, nil, `spans: Options.Sets: no set is called "none"`},
		{&spans.Options{Export: to, Sets: []string{"redis"}}, nil, "spans: set redis: the program has none of its functions: "},
		{&spans.Options{Export: to}, []string{"p:x main.x"}, "a span is a call of a function"},
		{&spans.Options{Export: to}, []string{path + "order a=$arg1 a=$arg2"}, "argument a stands twice"},
		{&spans.Options{Export: to}, []string{path + "order --loud yes"}, "option --loud is not known"},
		{&spans.Options{Export: to}, []string{path + "none"}, path + "none"},
		{&spans.Options{Export: to}, []string{path + "order v=$retval:s64 --error 'w < 0'"}, `--error "w < 0"`},
		{&spans.Options{Export: to, Errors: true}, []string{ofOrder}, "Options.Errors: it is not known when a call of " + path + "order has failed"},
	} {
		s, err := spans.Start(core, c.o, c.probes...)
		if err == nil {
			t.Errorf("%q: no error", c.want)
			_ = s.Close()
			continue
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, not %q", err, c.want)
		}
	}
	if _, err := spans.Start(nil, nil); err == nil || !strings.Contains(err.Error(), "the Core is nil") {
		t.Errorf("%v", err)
	}
	s := start(t, &spans.Options{Export: to}, ofOrder)
	if _, err := spans.Start(core, &spans.Options{Export: to}, ofQuery); err == nil || !strings.Contains(err.Error(), "the Core has spans already") {
		t.Errorf("%v", err)
	}
	end(t, s)
	end(t, start(t, &spans.Options{Export: to}, ofQuery))
}

// TestOwnOthers has functions by a pattern, and an event beside: its hits go to Options.Hit, or are counted.
func TestOwnOthers(t *testing.T) {
	core, err := kprobes.Self()
	if err != nil {
		t.Fatal(err)
	}
	d, err := event.Parse("p:other " + path + "deliver id=$arg1:s64")
	if err != nil {
		t.Fatal(err)
	}
	evs, err := core.Add([]*event.Def{d}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, taken := range []bool{false, true} {
		var c collected
		var others int64
		o := &spans.Options{Export: c.export}
		if taken {
			o.Hit = func(h *kprobes.Hit) { others += h.Value("id").(int64) }
		}
		s := start(t, o, path+"quer* n=$arg2:s64", path+"delive*")
		for i := range 20 {
			order(i, 2)
		}
		n := end(t, s)
		if n.Spans != 20*3 || len(c.all) != 20*3 {
			t.Errorf("%d spans, %+v", len(c.all), n)
		}
		if taken && (others != 190 || n.Others != 0) || !taken && n.Others != 20 {
			t.Errorf("the sum of the other event's hits is %d, %d were counted", others, n.Others)
		}
	}
	if err := core.Remove(evs); err != nil {
		t.Error(err)
	}
}
