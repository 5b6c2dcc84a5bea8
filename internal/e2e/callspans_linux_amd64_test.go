package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// sumLine is the summary of spans.
var sumLine = regexp.MustCompile(`(?m)^spans=\d+ .*$`)

// sums gives the numbers of the summary.
func (r *result) sums(t testing.TB) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for _, w := range strings.Fields(sumLine.FindString(r.stderr)) {
		name, n, _ := strings.Cut(w, "=")
		v, err := strconv.ParseUint(n, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", w, err)
		}
		out[name] = v
	}
	if len(out) == 0 {
		t.Fatalf("no summary: %v", r.outcome)
	}
	return out
}

// tree is spans by the numbers of their calls. in is, of each call, the one that it is in by what the program says; 0: none.
type tree struct {
	of map[uint64]*gotSpan
	in map[uint64]uint64
}

// treeOf checks that each call has one span.
func treeOf(t testing.TB, spans []*gotSpan) *tree {
	t.Helper()
	tr := &tree{map[uint64]*gotSpan{}, map[uint64]uint64{}}
	ids := map[string]bool{}
	for _, s := range spans {
		n := s.number(t, "id")
		if tr.of[n] != nil || ids[s.id] || len(s.id) != 16 || len(s.trace) != 32 || s.start > s.end {
			t.Fatalf("call %d: %+v, %+v", n, s, tr.of[n])
		}
		tr.of[n], tr.in[n], ids[s.id] = s, s.number(t, "in"), true
	}
	return tr
}

// nearest is the innermost call that a call is in, of those in others.
func (tr *tree) nearest(n uint64, others *tree) uint64 {
	for n = tr.in[n]; n != 0 && others.of[n] == nil; n = tr.in[n] {
	}
	return n
}

// parents checks that the parent of each span is the call that the program says, and its trace that of the parent.
func (tr *tree) parents(t testing.TB, all *tree) {
	t.Helper()
	bad := 0
	for n, s := range tr.of {
		up := all.nearest(n, tr)
		parent := tr.of[up]
		switch {
		case up == 0 && s.parent == "":
		case up != 0 && s.parent == parent.id && s.trace == parent.trace && s.start >= parent.start:
		default:
			if bad++; bad < 10 {
				t.Errorf("call %d is in %d: %+v, %+v", n, up, s, parent)
			}
		}
	}
}

// byName counts spans, and those that have failed.
func byName(spans []*gotSpan) (all, failed map[string]uint64) {
	all, failed = map[string]uint64{}, map[string]uint64{}
	for _, s := range spans {
		all[s.name]++
		if s.failed {
			failed[s.name]++
		}
	}
	return all, failed
}

// startSpans starts kprobe spans on a process that others may use, and waits until its probes stand there.
func startSpans(t testing.TB, p *testprog.Proc, args ...string) *session {
	t.Helper()
	s := &session{t: t, pid: p.PID, before: stateOf(t, p.PID)}
	s.start(command(t, append([]string{"spans", "-v", "-p", pid(p)}, args...)...))
	within(t, fmt.Sprintf("%q", args), func() bool {
		select {
		case <-s.done:
			t.Fatalf("%s ended early: %v", s.cmd, outcomeOf(t, s.err, s.out.String(), s.errs.String()))
		default:
		}
		return strings.Contains(s.errs.String(), "kprobe: the probes are in place\n") && standing(p.PID) && field(t, p.PID, p.PID, "TracerPid") == "0"
	})
	return s
}

// nestProbes are the functions of the program nests.
var nestProbes = []string{
	"nest_work id=$arg1:u64 in=$arg2:u64 ret=$retval:s64", "--error", "ret < 0", "nest_leaf id=$arg1:u64 in=$arg2:u64", "r:jump nest_tail id=$arg1:u64 in=$arg2:u64",
	"nest_try id=$arg1:u64 in=$arg2:u64", "nest_throw id=$arg1:u64 in=$arg2:u64",
}

// TestSpansC has a collector get the spans of threads whose calls nest, jump to one another, and are left by longjmp.
func TestSpansC(t *testing.T) {
	p := program(t, "nests")
	c := newCollector(t)
	s := startSpans(t, p, append([]string{"--otlp", c.url, "--service", "nests of C"}, nestProbes...)...)
	n := p.Counts("go 400")
	r := s.end()
	all, failed := byName(c.spans)
	want := map[string]uint64{"nest_work": n["work"], "nest_leaf": n["leaf"], "jump": n["tail"], "nest_try": n["try"], "nest_throw": n["throw"]}
	if !maps.Equal(all, want) || !maps.Equal(failed, map[string]uint64{"nest_work": n["failed"], "nest_throw": n["throw"]}) {
		t.Errorf("spans %v, failed %v; the program counted %v", all, failed, n)
	}
	total := n["work"] + n["leaf"] + n["tail"] + n["try"] + n["throw"]
	sum := r.sums(t)
	if sum["spans"] != total || sum["sent"] != total || sum["left"] != n["throw"] || sum["errors"] != n["failed"]+n["throw"] ||
		sum["unsampled"]+sum["unjoined"]+sum["unfollowed"]+sum["active"]+sum["rejected"]+sum["dropped"]+sum["failed"] != 0 {
		t.Errorf("%v; the program counted %v", sum, n)
	}
	tr := treeOf(t, c.spans)
	tr.parents(t, tr)
	roots := uint64(0)
	for _, s := range c.spans {
		if s.parent == "" {
			roots++
		}
		fn := s.name
		if fn == "jump" {
			fn = "nest_tail"
		}
		if s.attrs["code.function.name"] != fn || s.attrs["thread.id"] == "" || s.failed != (s.message != "") {
			t.Fatalf("%+v", s)
		}
	}
	if roots != n["roots"] || c.about["service.name"] != "nests of C" || c.about["process.pid"] != pid(p) {
		t.Errorf("%d traces, the program counted %v; %v", roots, n, c.about)
	}
}

// TestSpansGo has the spans of goroutines whose stacks move, which create others, panic, recover and end in their calls.
func TestSpansGo(t *testing.T) {
	p := hardGo(t, "gonests", nil)
	c := newCollector(t)
	s := startSpans(t, p, "--otlp", c.url, "main.Handle id in", "main.Query id in text size", "main.Grow id in", "main.Climb id in", "main.Guard id in recovered", "main.Quit id in")
	var n, want map[string]uint64
	total := uint64(0)
	for range 8 { // the ring holds less of a Go program than all of them make
		n, want, total = p.Counts("go 15"), map[string]uint64{}, 0
		for _, name := range []string{"Handle", "Query", "Grow", "Climb", "Guard", "Quit"} {
			want["main."+name] = n[strings.ToLower(name)]
			total += n[strings.ToLower(name)]
		}
		within(t, fmt.Sprintf("%d spans", total), func() bool { return c.count() >= total })
	}
	r := s.end()
	all, failed := byName(c.spans)
	if !maps.Equal(all, want) || failed["main.Handle"]+failed["main.Query"] != n["failed"] || failed["main.Climb"]+failed["main.Quit"] != n["left"] || failed["main.Grow"]+failed["main.Guard"] != 0 {
		t.Errorf("spans %v, failed %v; the program counted %v", all, failed, n)
	}
	sum := r.sums(t)
	if sum["spans"] != total || sum["sent"] != total || sum["left"] != n["left"] || sum["unjoined"]+sum["unfollowed"]+sum["active"]+sum["dropped"] != 0 {
		t.Errorf("%v; the program counted %v", sum, n)
	}
	tr := treeOf(t, c.spans)
	tr.parents(t, tr)
	for _, s := range c.spans {
		if text := "query " + s.attrs["id"]; s.name == "main.Query" && (s.attrs["text"] != text || s.attrs["size"] != strconv.Itoa(len(text))) || s.name == "main.Guard" && s.attrs["recovered"] != "1" {
			t.Fatalf("%+v", s)
		}
		if s.attrs["go.goroutine.id"] == "" {
			t.Fatalf("%+v", s)
		}
	}
}

// TestSpansGoChosen has the spans of calls that are told to be chosen when they return, and of those that panics leave, which never do: one command has
// the calls that have failed, and another all that take time, but for those that end with their goroutine.
func TestSpansGoChosen(t *testing.T) {
	p := hardGo(t, "gonests", nil)
	c := newCollector(t)
	dir := t.TempDir() + "/"
	full := startSpans(t, p, "--otlp", c.url, "main.Handle id in", "main.Query id in", "main.Grow id in", "main.Climb id in", "main.Guard id in", "main.Quit id in")
	errs := startSpans(t, p, "--errors", "-o", dir+"errors", "main.Handle id in", "main.Query id in text", "main.Climb id in at=%sp", "--error", "id == 0")
	slow := startSpans(t, p, "--slower", "1ns", "-o", dir+"slow", "main.Handle id in", "main.Query id in", "main.Grow id in", "main.Climb id in", "main.Guard id in recovered", "main.Quit id in")
	n, total := map[string]uint64{}, uint64(0)
	for range 4 {
		n, total = p.Counts("go 15"), 0
		for _, name := range []string{"handle", "query", "grow", "climb", "guard", "quit"} {
			total += n[name]
		}
		within(t, fmt.Sprintf("%d spans", total), func() bool { return c.count() >= total })
	}
	for name, s := range map[string]*session{"errors": errs, "slow": slow} {
		s.interrupt()
		r := s.wait()
		sum := r.sums(t)
		if r.code != 0 || sum["unjoined"]+sum["split"]+sum["dropped"] != 0 || sum["left"] != n["climb"] {
			t.Errorf("%s: %v; the program counted %v", name, r.outcome, n)
		}
	}
	full.end()
	all := treeOf(t, c.spans)
	for name, chosen := range map[string]func(s *gotSpan) bool{
		"errors": func(s *gotSpan) bool { return s.failed && s.name != "main.Quit" },
		"slow":   func(s *gotSpan) bool { return s.name != "main.Quit" },
	} {
		got, left := treeOf(t, spansIn(t, dir+name)), uint64(0)
		for id, s := range all.of {
			one := got.of[id]
			if chosen(s) != (one != nil) {
				t.Fatalf("%s: call %d: %+v, span %+v", name, id, s, one)
			}
			if one == nil {
				continue
			}
			if one.failed != s.failed || one.attrs["error.type"] != s.attrs["error.type"] || one.attrs["go.goroutine.id"] != s.attrs["go.goroutine.id"] || one.attrs["at"] != "" && s.name == "main.Climb" {
				t.Fatalf("%s: call %d: %+v, and %+v", name, id, one, s)
			}
			if s.attrs["error.type"] == "panic" {
				left++
			}
		}
		if left != n["climb"] || left == 0 {
			t.Errorf("%s: %d calls were left by a panic, the program counted %v", name, left, n)
		}
		for id, s := range all.of { // nobody records who has created a goroutine
			if up := all.of[all.in[id]]; up != nil && up.attrs["go.goroutine.id"] != s.attrs["go.goroutine.id"] {
				all.in[id] = 0
			}
		}
		got.parents(t, all)
	}
}

// TestSpansChosen has several commands make spans of the same calls: one of all, others of those that they are told to choose. All of a
// choice have spans, and their parents are the nearest calls that are chosen too.
func TestSpansChosen(t *testing.T) {
	p := program(t, "nests")
	c := newCollector(t)
	dir := t.TempDir() + "/"
	full := startSpans(t, p, append([]string{"--otlp", c.url}, nestProbes...)...)
	failing := startSpans(t, p, "--errors", "-o", dir+"errors", nestProbes[0], nestProbes[1], nestProbes[2])
	slow := startSpans(t, p, "--slower", "20us", "-o", dir+"slow", "nest_work id=$arg1:u64 in=$arg2:u64", "nest_try id=$arg1:u64 in=$arg2:u64")
	some := startSpans(t, p, "-o", dir+"some", "nest_work id=$arg1:u64 in=$arg2:u64 ret=$retval:s64", "--if", "id & 1", "nest_leaf id=$arg1:u64 in=$arg2:u64", "-f", "id & 2")
	sampled := startSpans(t, p, append([]string{"--sample", "7", "-o", dir + "sampled"}, nestProbes...)...)
	n := p.Counts("go 200")
	sums := map[string]map[string]uint64{}
	for name, s := range map[string]*session{"errors": failing, "slow": slow, "some": some, "sampled": sampled} {
		s.interrupt()
		r := s.wait()
		if r.code != 0 {
			t.Fatalf("%s: %v", s.cmd, r.outcome)
		}
		if sums[name] = r.sums(t); sums[name]["unjoined"]+sums[name]["split"]+sums[name]["dropped"]+sums[name]["failed"] != 0 {
			t.Errorf("%s: %v", name, sums[name])
		}
	}
	full.end()
	all := treeOf(t, c.spans)
	for name, chosen := range map[string]func(s *gotSpan, n uint64) bool{
		"errors": func(s *gotSpan, n uint64) bool { return s.name == "nest_work" && n%5 == 0 },
		"some": func(s *gotSpan, n uint64) bool {
			return s.name == "nest_work" && n&1 != 0 || s.name == "nest_leaf" && n&2 != 0
		},
	} {
		got := treeOf(t, spansIn(t, dir+name))
		want := 0
		for n, s := range all.of {
			if is := chosen(s, n); is != (got.of[n] != nil) {
				t.Fatalf("%s: call %d: chosen %v, span %+v", name, n, is, got.of[n])
			} else if is {
				want++
			}
		}
		if len(got.of) != want || want == 0 {
			t.Errorf("%s: %d spans, %d calls are chosen", name, len(got.of), want)
		}
		got.parents(t, all)
	}
	slower := treeOf(t, spansIn(t, dir+"slow"))
	slower.parents(t, all)
	for n, s := range slower.of {
		if s.end-s.start < 20_000 || all.of[n] == nil {
			t.Fatalf("call %d took %d ns", n, s.end-s.start)
		}
	}
	kept := treeOf(t, spansIn(t, dir+"sampled"))
	kept.parents(t, all)
	roots := kept.wholes(t, all)
	if len(slower.of) == 0 || roots != (n["roots"]+6)/7 || sums["sampled"]["spans"]+sums["sampled"]["unsampled"] != uint64(len(all.of)) {
		t.Errorf("%d slow calls; %d traces kept of %d: %v, of %d calls", len(slower.of), roots, n["roots"], sums["sampled"], len(all.of))
	}
}

// wholes checks that of each trace all spans are there, or none, and counts the traces.
func (tr *tree) wholes(t testing.TB, all *tree) (traces uint64) {
	t.Helper()
	for n := range all.of {
		root := n
		for up := all.nearest(root, all); up != 0; up = all.nearest(root, all) {
			root = up
		}
		if (tr.of[n] != nil) != (tr.of[root] != nil) {
			t.Fatalf("a part of the trace of call %d is there", root)
		}
		if root == n && tr.of[n] != nil {
			traces++
		}
	}
	return traces
}

// TestSpansRemote has calls that are in spans of another program, by a header that they are given: those of traces that are kept there have
// spans, all in the trace that the header says.
func TestSpansRemote(t *testing.T) {
	p := program(t, "nests")
	c := newCollector(t)
	s := startSpans(t, p, "--otlp", c.url, "--sample", "1000000", "nest_serve id=$arg1:u64 in=$arg2:u64 traceparent=+0($arg3):string", "nest_work id=$arg1:u64 in=$arg2:u64")
	n := p.Counts("serve 300")
	r := s.end()
	all, _ := byName(c.spans)
	sum := r.sums(t)
	if all["nest_serve"] != n["kept"] || n["kept"] == n["serve"] || sum["spans"]+sum["unsampled"] != n["serve"]+n["work"] || sum["unjoined"] != 0 {
		t.Errorf("spans %v, %v; the program counted %v", all, sum, n)
	}
	tr := treeOf(t, c.spans)
	for id, s := range tr.of {
		root := id
		for tr.in[root] != 0 {
			root = tr.in[root]
		}
		of, parent := fmt.Sprintf("%016x%016x", root, root+1), fmt.Sprintf("%016x", root+2)
		if root != id {
			parent = tr.of[tr.in[id]].id
		}
		if s.trace != of || s.parent != parent || root%3 == 0 {
			t.Fatalf("call %d of %d: %+v", id, root, s)
		}
	}
}

// TestSpansLost has far more calls than the ring has room for. What is lost is counted, and no call is taken for one that was left because its
// return is missing.
func TestSpansLost(t *testing.T) {
	p := program(t, "nests")
	c := newCollector(t)
	s := startSpans(t, p, append([]string{"--buffer-size", "8192", "--otlp", c.url}, nestProbes...)...)
	n := p.Counts("go 4000")
	r := s.end()
	lost, returns := uint64(0), uint64(0)
	for name, one := range r.totals {
		lost += one.lost
		if strings.HasPrefix(name, "r_") || name == "jump" {
			returns += one.hits - one.lost
		}
	}
	sum := r.sums(t)
	_, failed := byName(c.spans)
	delete(failed, "nest_work")
	delete(failed, "nest_throw")
	left := uint64(0)
	for _, s := range c.spans {
		if s.attrs["error.type"] != "" {
			left++
		}
		if s.name == "nest_work" && s.failed != (s.attrs["ret"] == "-1") {
			t.Fatalf("%+v", s)
		}
	}
	if lost == 0 || len(failed) > 0 || left != sum["left"] || left > n["throw"] || sum["spans"]-sum["left"] > returns || sum["spans"]-sum["left"]+sum["unjoined"] < returns {
		t.Errorf("%d records lost, failed %v, %d left of %d; %v, %d returns read", lost, failed, left, n["throw"], sum, returns)
	}
}

// TestSpansCollectorFails has a collector that is busy at first, takes a part of a batch, and refuses the others.
func TestSpansCollectorFails(t *testing.T) {
	p := program(t, "nests")
	c := newCollector(t)
	c.answer = func(w http.ResponseWriter, post int) bool {
		switch post {
		case 0:
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
		case 1:
			w.Header().Set("Content-Type", "application/x-protobuf")
			_, _ = w.Write([]byte("\x0a\x09\x08\x05\x12\x05stale"))
			return false
		default:
			http.Error(w, "no more", http.StatusBadRequest)
		}
		return true
	}
	s := startSpans(t, p, append([]string{"--otlp", c.url}, nestProbes...)...)
	n := p.Counts("go 50")
	total := n["work"] + n["leaf"] + n["tail"] + n["try"] + n["throw"]
	s.interrupt()
	r := s.wait()
	sum := r.sums(t)
	if r.code != 1 || sum["spans"] != total || sum["rejected"] != 5 || sum["sent"]+5 != uint64(len(c.spans)) || sum["sent"]+sum["rejected"]+sum["failed"] != total || sum["failed"] == 0 || !strings.Contains(r.stderr, "400 Bad Request: no more") {
		t.Errorf("%v, %d spans taken of %d; %v", sum, len(c.spans), total, r.outcome)
	}
}
