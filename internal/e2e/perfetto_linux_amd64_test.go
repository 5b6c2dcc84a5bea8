package e2e

import (
	"bufio"
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// node is a message as protoc shows it.
type node struct {
	values map[string][]string // of fields that are no messages
	subs   map[string][]*node
}

// first is a field's value; "": it has none.
func (n *node) first(field string) string {
	if vs := n.values[field]; len(vs) > 0 {
		return vs[0]
	}
	return ""
}

// sub is a field's message; nil: it has none.
func (n *node) sub(field string) *node {
	if all := n.subs[field]; len(all) > 0 {
		return all[0]
	}
	return nil
}

// perfettoTrace is a trace for Perfetto as protoc, and these tests, read it.
type perfettoTrace struct {
	t      *testing.T
	tracks map[string]*node // descriptors, by uuid
	slices map[string][]*perfettoSlice
	flows  [2][]string // numbers of flows that begin, and end
	clocks map[string]string
}

// perfettoSlice is a slice, or an instant.
type perfettoSlice struct {
	name, category, track string
	begin, end            uint64
	instant               bool
	depth                 int
	args                  map[string]string // with those of the end, behind a dot
}

// readPerfetto has protoc decode a trace, and puts slices together as Perfetto does: an end belongs to the innermost slice of its track.
func readPerfetto(t *testing.T, file string) *perfettoTrace {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	protoc := exec.Command("protoc", "--decode=perfetto.protos.Trace", "--proto_path=testdata", "testdata/perfetto.proto")
	protoc.Stdin, protoc.Stderr = in, os.Stderr
	out, err := protoc.StdoutPipe()
	if err == nil {
		err = protoc.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	root := parseNode(t, lines)
	if err := protoc.Wait(); err != nil {
		t.Fatalf("protoc: %v", err)
	}
	p := &perfettoTrace{t: t, tracks: map[string]*node{}, slices: map[string][]*perfettoSlice{}, clocks: map[string]string{}}
	p.read(root.subs["packet"])
	return p
}

// parseNode reads protobuf's text format up to the end of a message.
func parseNode(t *testing.T, lines *bufio.Scanner) *node {
	n := &node{values: map[string][]string{}, subs: map[string][]*node{}}
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "}" {
			break
		}
		if name, ok := strings.CutSuffix(line, " {"); ok {
			n.subs[name] = append(n.subs[name], parseNode(t, lines))
			continue
		}
		name, value, ok := strings.Cut(line, ": ")
		if name[0] >= '0' && name[0] <= '9' || !ok {
			t.Fatalf("the published format has no field %q", line)
		}
		if s, err := strconv.Unquote(value); err == nil {
			value = s
		}
		n.values[name] = append(n.values[name], value)
	}
	return n
}

func (p *perfettoTrace) read(packets []*node) {
	interned := map[string]map[string]string{"event_names": {}, "event_categories": {}, "debug_annotation_names": {}}
	open := map[string][]*perfettoSlice{}
	// Perfetto sorts packets by time.
	var events []*node
	for i, k := range packets {
		if k.first("trusted_packet_sequence_id") != "1" || i == 0 != (k.first("sequence_flags") == "1") {
			p.t.Fatalf("packet %d: sequence %q, flags %q", i, k.first("trusted_packet_sequence_id"), k.first("sequence_flags"))
		}
		if d := k.sub("track_descriptor"); d != nil {
			if p.tracks[d.first("uuid")] != nil {
				p.t.Errorf("track %s is described twice", d.first("uuid"))
			}
			p.tracks[d.first("uuid")] = d
		}
		if c := k.sub("clock_snapshot"); c != nil {
			p.clocks["primary"] = c.first("primary_trace_clock")
			for _, one := range c.subs["clocks"] {
				p.clocks[one.first("clock_id")] = one.first("timestamp")
			}
		}
		if d := k.sub("interned_data"); d != nil {
			for table, of := range interned {
				for _, one := range d.subs[table] {
					of[one.first("iid")] = one.first("name")
				}
			}
		}
		if e := k.sub("track_event"); e != nil {
			e.values["timestamp"] = k.values["timestamp"]
			e.values["name"] = []string{interned["event_names"][e.first("name_iid")]}
			e.values["category"] = []string{interned["event_categories"][e.first("category_iids")]}
			events = append(events, e)
		}
	}
	slices.SortStableFunc(events, func(a, b *node) int {
		return int(int64(number(p.t, a.first("timestamp"))) - int64(number(p.t, b.first("timestamp"))))
	})
	for _, e := range events {
		p.event(e, open, interned["debug_annotation_names"])
	}
	for track, left := range open {
		if len(left) > 0 {
			p.t.Logf("%d slices of track %s have no end", len(left), track)
		}
	}
}

func (p *perfettoTrace) event(e *node, open map[string][]*perfettoSlice, names map[string]string) {
	track, at := e.first("track_uuid"), number(p.t, e.first("timestamp"))
	if p.tracks[track] == nil {
		p.t.Fatalf("track %s has no descriptor", track)
	}
	s := &perfettoSlice{name: e.first("name"), category: e.first("category"), track: track, begin: at, depth: len(open[track]), args: map[string]string{}}
	kind := e.first("type")
	if kind == "TYPE_SLICE_END" {
		if len(open[track]) == 0 {
			p.t.Fatalf("an end without a begin on track %s", track)
		}
		s = open[track][len(open[track])-1]
		s.end, open[track] = at, open[track][:len(open[track])-1]
	} else {
		if s.name == "" || s.category == "" {
			p.t.Fatalf("an event without a name, or a category: %v", e.values)
		}
		p.slices[s.name] = append(p.slices[s.name], s)
	}
	if kind == "TYPE_SLICE_BEGIN" {
		open[track] = append(open[track], s)
	}
	s.instant = s.instant || kind == "TYPE_INSTANT"
	annotate(s.args, "", e.subs["debug_annotations"], names)
	p.flows[0] = append(p.flows[0], e.values["flow_ids"]...)
	p.flows[1] = append(p.flows[1], e.values["terminating_flow_ids"]...)
}

func annotate(to map[string]string, prefix string, all []*node, names map[string]string) {
	for _, a := range all {
		name := prefix + names[a.first("name_iid")] + a.first("name")
		annotate(to, name+".", a.subs["dict_entries"], names)
		for _, kind := range []string{"uint_value", "int_value", "string_value"} {
			for _, v := range a.values[kind] {
				to[name] = v
			}
		}
		for _, one := range a.subs["array_values"] {
			to[name] += one.first("string_value") + "\n"
		}
	}
}

// on gives the slices of a name that stand on tracks of their own, and how many instants there are of them on others.
func (p *perfettoTrace) on(name string) (own []*perfettoSlice, shadows map[string]int) {
	shadows = map[string]int{}
	for _, s := range p.slices[name] {
		if strings.HasPrefix(s.category, "kprobe.") {
			shadows[s.category]++
		} else {
			own = append(own, s)
		}
	}
	return own, shadows
}

func number(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%q is no number", s)
	}
	return n
}

// TestPerfetto compares a trace for Perfetto with what the program has done, one that kprobe record has written and one that kprobe report has made of a trace.dat file: calls are slices, nested
// as the calls are, with the arguments of entry and return; each hit stands on a CPU's track too.
func TestPerfetto(t *testing.T) {
	const threads, calls = 2, 300
	probes := []string{"p:push f_push a=%di:u64", "r:pushed f_push v=$retval:u64", "p:lea f_lea a=%di:u64 b=%si:u64", "r:lea_end f_lea", "p:str f_str s=+0($arg1):string", "r:small f_small v=$retval:s64 ns=$duration"}
	run := func(t *testing.T, args ...string) {
		t.Helper()
		s := &session{t: t}
		s.start(command(t, slices.Concat(args, probes, []string{"--", testprog.Build(t, "work"), strconv.Itoa(threads), strconv.Itoa(calls)})...))
		if r := s.wait(); r.code != 0 {
			t.Fatalf("%v", r.outcome)
		}
	}
	t.Run("record", func(t *testing.T) {
		file := tempFile(t, "trace")
		run(t, "record", "--format", "perfetto", "-o", file)
		p := readPerfetto(t, file)
		checkWork(t, p, threads, calls)
		if p.clocks["primary"] != "BUILTIN_CLOCK_MONOTONIC" || len(p.clocks) != 4 {
			t.Errorf("clocks: %v", p.clocks)
		}
		found, pid := 0, ""
		for _, d := range p.tracks {
			if th := d.sub("thread"); th != nil && th.first("thread_name") == "work" {
				found++
				pid = th.first("pid")
			}
		}
		if found != threads || pid == "" {
			t.Errorf("%d threads of process %s", found, pid)
		}
		own, _ := p.on("small")
		for _, s := range own {
			if s.instant || s.end-s.begin != number(t, s.args["ns"]) {
				t.Fatalf("a call of f_small that took %s ns: %+v", s.args["ns"], s)
			}
		}
	})
	t.Run("report", func(t *testing.T) {
		dat, file := tempFile(t, "trace.dat"), tempFile(t, "trace")
		run(t, "record", "-o", dat)
		if out, err := command(t, "report", "-i", dat, "--format", "perfetto", "-o", file).CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("%v: %s", err, out)
		}
		checkWork(t, readPerfetto(t, file), threads, calls)
	})
}

// checkWork compares the slices of f_push, f_lea and f_str with the definition of the program work.
func checkWork(t *testing.T, p *perfettoTrace, threads, calls uint64) {
	t.Helper()
	total := int(threads * calls)
	push, shadows := p.on("push")
	if len(push) != total || shadows["kprobe.cpu"] != total || shadows["kprobe.thread"] != 0 {
		t.Fatalf("%d slices of f_push, %v on other tracks, want %d", len(push), shadows, total)
	}
	seen := map[uint64]bool{}
	for _, s := range push {
		a := number(t, s.args["a"])
		if s.instant || s.end < s.begin || s.depth != 0 || seen[a] || number(t, s.args["pushed.v"]) != 2*a+2 || a>>32 >= threads || a&(1<<32-1) >= calls {
			t.Fatalf("f_push: %+v", s)
		}
		seen[a] = true
	}
	lea, _ := p.on("lea")
	inner := 0
	for _, s := range lea {
		if s.instant || s.end < s.begin || s.depth > 1 || s.depth == 1 && s.args["b"] != "1" || s.depth == 0 && number(t, s.args["b"]) != number(t, s.args["a"])+1 {
			t.Fatalf("f_lea: %+v", s)
		}
		inner += s.depth
	}
	if len(lea) != 2*total || inner < total {
		t.Errorf("%d slices of f_lea, %d of them in f_push, want %d and %d", len(lea), inner, 2*total, total)
	}
	str, _ := p.on("str")
	texts := map[string]bool{}
	for _, s := range str {
		texts[s.args["s"]] = s.instant
	}
	if len(str) != total || len(texts) != total || !texts["call-1-7"] {
		t.Errorf("%d hits of f_str with %d strings, want %d", len(str), len(texts), total)
	}
}

// goidOffset is where a goroutine's number lies in what the runtime keeps of it.
func goidOffset(t *testing.T, exe string) int64 {
	t.Helper()
	f, err := elf.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := f.DWARF()
	if err != nil {
		t.Fatal(err)
	}
	for r := d.Reader(); ; {
		e, err := r.Next()
		if err != nil || e == nil {
			t.Fatalf("no struct runtime.g: %v", err)
		}
		if e.Tag != dwarf.TagStructType || e.Val(dwarf.AttrName) != "runtime.g" {
			continue
		}
		g, err := d.Type(e.Offset)
		if err != nil {
			t.Fatal(err)
		}
		for _, field := range g.(*dwarf.StructType).Field {
			if field.Name == "goid" {
				return field.ByteOffset
			}
		}
	}
}

// TestPerfettoGoroutines compares the slices of a recursive Go function with what the program has counted. They stand on the tracks of goroutines, and arrows lead there from where
// the goroutines were made.
func TestPerfettoGoroutines(t *testing.T) {
	exe := testprog.Build(t, "gowork")
	prog := testprog.Start(t, exe, "3")
	file := filepath.Join(t.TempDir(), "trace")
	s := &session{t: t, pid: prog.PID, before: stateOf(t, prog.PID)}
	s.start(command(t, "record", "--format", "perfetto", "-o", file, "--stacktrace=4", "-p", strconv.Itoa(prog.PID),
		"p:sum main.(*Tree).Sum depth=$arg2:u64", "r:summed main.(*Tree).Sum v=$retval:u64", fmt.Sprintf("r:made runtime.newproc1 newgoid=+%d($retval):u64", goidOffset(t, exe))))
	s.armed()
	before := prog.Counts("count")
	after := prog.Counts("go 200")
	if r := s.end(); r.code != 0 {
		t.Fatalf("%v", r.outcome)
	}
	p := readPerfetto(t, file)
	own, shadows := p.on("sum")
	want := int(after["main.(*Tree).Sum"] - before["main.(*Tree).Sum"])
	if len(own) != want || shadows["kprobe.cpu"] != want || shadows["kprobe.thread"] != want {
		t.Fatalf("%d slices, %v on other tracks, want %d", len(own), shadows, want)
	}
	tracks, deepest := map[string]bool{}, 0
	for _, s := range own {
		tracks[s.track] = true
		deepest = max(deepest, s.depth)
		if s.instant || s.end < s.begin || !strings.HasPrefix(p.tracks[s.track].first("name"), "goroutine ") || s.args["summed.v"] == "" || !strings.Contains(s.args["callers"], "main.step") && s.depth == 0 {
			t.Fatalf("%+v on track %v", s, p.tracks[s.track])
		}
	}
	if len(tracks) != 3 || deepest != 7 {
		t.Errorf("%d goroutines, %d deep", len(tracks), deepest)
	}
	for _, id := range p.flows[1] {
		if !slices.Contains(p.flows[0], id) {
			t.Errorf("flow %s ends and does not begin", id)
		}
	}
	if len(p.flows[1]) != 3 || len(p.flows[0]) < 3 {
		t.Errorf("flows %v", p.flows)
	}
}
