package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// spansSaid is what the program spans has counted.
type spansSaid struct{ Begins, Finishes, Spans, Handled, Jumps uint64 }

// spansOf runs kprobe hist on the program spans, and reads its three histograms.
func spansOf(t *testing.T, in, out, traced string, cmd ...string) (hs []histogram, r result, said spansSaid) {
	t.Helper()
	file := tempFile(t, "hist")
	s := &session{t: t}
	s.start(command(t, append([]string{
		"hist", "-o", file, "--buffer-size", "4194304", "p:in span_begin id=$arg1:u64 n=$arg2:u32", in,
		"p:out span_finish id=$arg1:u64 m=$arg2:u64", out, "s:gap u64 d; u64 id", traced, "--", testprog.Build(t, "spans"),
	}, cmd...)...))
	r = s.wait()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(s.out.String()), &said); err != nil {
		t.Fatalf("%q: %v", s.out.String(), err)
	}
	if hs = histogramsIn(t, string(b)); len(hs) != 3 {
		t.Fatalf("%s", b)
	}
	return hs, r, said
}

// byReader says whether the summary names those of events whose hits kprobe counts.
func byReader(r result, event string) bool {
	return regexp.MustCompile(`(?m)^` + event + ` hits=.* aggregated=reader$`).MatchString(r.stderr)
}

// TestSpansAtHit has the code at the hit read variables of another event's histogram, in four threads with signal handlers, and compares its
// histograms with those of whoever reads the records of another run, entry for entry, and with the program's own counts.
func TestSpansAtHit(t *testing.T) {
	const threads, rounds, keys = 4, 6000, 25
	handlers := regexp.MustCompile(`id: 115292150460684697[6-9]`) // how often they come differs
	for _, c := range []struct{ name, in, out, traced string }{
		{"difference", "keys=id:n0=n", "keys=id:vals=m-$n0:d=m-$n0:onmatch(kprobes.in).trace(gap,$d,id)", "keys=d:sort=d:vals=id"},
		{"two keys, named", "keys=id,id.log2:n0=n,ts0=common_timestamp", "keys=id,id.log2:d=m-kprobes.in.$n0:onmatch(kprobes.in).gap($d,id)", "keys=id.buckets=5,d.log2:vals=d"},
		{"filters", "keys=id:vals=n:n0=n if n != 0", "keys=id:d=m-$n0:onmatch(kprobes.in).trace(gap,$d,id) if id >= 3", "keys=d.buckets=8:vals=id"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all [2][3]histogram
			for i, also := range []string{"", "CPU >= 0"} { // a filter that whoever reads has to run
				in := c.in
				if also != "" {
					if strings.Contains(in, " if ") {
						also = " && " + also
					} else {
						also = " if " + also
					}
				}
				hs, r, said := spansOf(t, in+also, c.out, c.traced, strconv.Itoa(threads), strconv.Itoa(rounds), strconv.Itoa(keys), "own")
				if byReader(r, "in") != (i == 1) || byReader(r, "out") != (i == 1) {
					t.Errorf("who counts: %s", r.stderr)
				}
				if n := r.totals["in"]; n.hits != said.Begins || n.lost != 0 || n.missed != 0 {
					t.Errorf("%+v, want %d", n, said.Begins)
				}
				if n := r.totals["out"]; n.hits != said.Finishes || n.lost != 0 || n.missed != 0 {
					t.Errorf("%+v, want %d", n, said.Finishes)
				}
				if c.name != "filters" && (hs[0].total != said.Begins || hs[1].total != said.Spans || hs[2].total != said.Spans) {
					t.Errorf("%d, %d and %d hits, want %+v", hs[0].total, hs[1].total, hs[2].total, said)
				}
				for j := range hs {
					if hs[j].dropped != 0 {
						t.Errorf("histogram %d: %d dropped", j, hs[j].dropped)
					}
					for k := range hs[j].hits {
						if handlers.MatchString(k) || k == "d:       1000" || strings.HasPrefix(k, "d: ~ 1000-") || strings.Contains(k, "d: ~ 2^10") {
							delete(hs[j].hits, k)
							delete(hs[j].sums, k)
						}
					}
				}
				all[i] = [3]histogram(hs)
			}
			for j := range all[0] {
				a, b := all[0][j], all[1][j]
				if len(a.hits) == 0 || !maps.Equal(a.hits, b.hits) || !maps.Equal(a.sums, b.sums) {
					t.Errorf("histogram %d: %v, %v\nof records:\n%v, %v", j, a.hits, a.sums, b.hits, b.sums)
				}
			}
		})
	}
}

// TestSpansHammer has four threads use the same few, or too many, keys, and signal handlers that come back, or leave the code at the hit where
// it is. No variable is read at another key's hit, each hit is in an entry, dropped, or has found no variable, and what was left in the middle
// is in nobody's way.
func TestSpansHammer(t *testing.T) {
	for _, c := range []struct {
		keys, size int
		mode       string
	}{{3, 2048, "shared"}, {5000, 128, "shared"}, {3, 2048, "jump"}, {1000, 4096, "jump"}} {
		t.Run(fmt.Sprint(c.keys, c.mode), func(t *testing.T) {
			size := fmt.Sprint(":size=", c.size)
			hs, r, said := spansOf(t, "keys=id:n0=n"+size, "keys=id:d=m-$n0:onmatch(kprobes.in).trace(gap,$d,id)"+size, "keys=d:sort=d", "4", "60000", strconv.Itoa(c.keys), c.mode)
			if byReader(r, "in") || byReader(r, "out") {
				t.Fatal(r.stderr)
			}
			in, out, gap := hs[0], hs[1], hs[2]
			ins, outs := r.totals["in"].hits, r.totals["out"].hits
			if c.mode == "shared" && (ins != said.Begins || outs != said.Finishes) || ins > said.Begins || outs > said.Finishes ||
				ins+said.Jumps < said.Begins || outs+said.Jumps < said.Finishes {
				t.Errorf("%d and %d hits, the program counted %+v", ins, outs, said)
			}
			if in.total+in.dropped != ins || out.total+out.dropped > outs || out.total+out.dropped > in.total {
				t.Errorf("%+v and %+v of %d and %d hits", in, out, ins, outs)
			}
			if gap.dropped != 0 || gap.total > out.total || gap.total+said.Jumps < out.total {
				t.Errorf("%+v are traced of %+v", gap, out)
			}
			for k, n := range gap.hits {
				switch k {
				case "d:          7":
				case "d:          9": // at the end, of ids that have an entry
					if c.size > c.keys && n != uint64(c.keys) || c.size < c.keys && n > uint64(c.size) {
						t.Errorf("%d of %d ids at the end", n, c.keys)
					}
				case "d:       1000":
					if n > said.Handled {
						t.Errorf("%d handlers, of %d", n, said.Handled)
					}
				default:
					t.Errorf("%s: %d times", k, n)
				}
			}
			if c.size < c.keys && (in.dropped == 0 || in.entries > uint64(c.size) || in.entries < uint64(c.size)-8) {
				t.Errorf("%d entries, %d dropped", in.entries, in.dropped)
			}
			if c.mode == "jump" && said.Jumps == 0 {
				t.Error("no handler has jumped")
			}
			t.Logf("%+v; %d and %d hits, %d and %d in entries, %d and %d dropped", said, ins, outs, in.total, out.total, in.dropped, out.dropped)
		})
	}
}

// spanSums reads the entries by id, with a sum.
var spanSums = regexp.MustCompile(`(?m)^\{ id: +(\d+) \} hitcount: +1  common_timestamp-\$ts0: +(\d+)$`)

// TestLatencyAtHit measures the time between two probes by the calls' numbers, as TestLatencyByKey does, in the code at the hit. The powers of
// two are those of the times themselves.
func TestLatencyAtHit(t *testing.T) {
	for _, c := range []struct {
		unit string
		ns   uint64
	}{{"", 1}, {".usecs", 1000}} {
		t.Run("unit "+c.unit, func(t *testing.T) {
			p := program(t, "timed")
			out := tempFile(t, "hist")
			s := &session{t: t, pid: p.PID, before: stateOf(t, p.PID)}
			now := "common_timestamp" + c.unit
			s.start(command(t, "hist", "-p", strconv.Itoa(p.PID), "-o", out, "p:in timed_jump id=$arg1:u64", "keys=id:size=8192:ts0="+now,
				"r:done timed_rest id=$arg1:u64", "keys=id:size=8192:vals="+now+"-$ts0:lat="+now+"-$ts0:onmatch(kprobes.in).trace(span,$lat,id)",
				"s:span u64 lat; u64 id", "keys=lat.log2:vals=lat"))
			s.armed()
			calls := goTimed(t, p, 500)
			r := s.end()
			b, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			if byReader(r, "in") || byReader(r, "done") {
				t.Error(r.stderr)
			}
			want, sum := map[string]uint64{}, uint64(0)
			text := strings.ReplaceAll(string(b), now, "common_timestamp")
			all := numbers(t, spanSums, text)
			for _, l := range all {
				id, n := l[0], l[1]
				if id >= uint64(len(calls.Inner)) || id&1 == 0 {
					t.Fatalf("call %d", id)
				}
				if in, all := calls.Inner[id], calls.Outer[id]; (n+1)*c.ns+slack(n*c.ns) < in || n*c.ns > all+slack(n*c.ns) {
					t.Errorf("call %d: %d of %d ns, by the program's clock %d to %d", id, n, c.ns, in, all)
				}
				want[fmt.Sprintf("lat: ~ 2^%d", log2(n))]++
				sum += n
			}
			if len(all) != len(calls.Inner)/2 {
				t.Errorf("%d calls, want %d", len(all), len(calls.Inner)/2)
			}
			hs := histogramsIn(t, string(b))
			got := hs[len(hs)-1]
			if !maps.Equal(got.hits, want) {
				t.Errorf("%v, want %v", got.hits, want)
			}
			for _, n := range got.sums {
				sum -= n
			}
			if sum != 0 {
				t.Errorf("the sums differ by %d", int64(sum))
			}
		})
	}
}

// TestSpansBesideUprobe has a probe that the kernel holds, for no code can stand there, read another's variable: whoever reads the records makes
// all histograms that refer to each other, also where the code for the others had been made.
func TestSpansBesideUprobe(t *testing.T) {
	path := testprog.Copy(t, testprog.Build(t, "gohard"))
	calls := slices.DeleteFunc((&inside{path: path, starts: true}).instructions(t), func(a insn) bool {
		return a.fn != "main.Twice" || !strings.HasPrefix(a.text, "call")
	})
	p := testprog.Start(t, path, "1")
	out := tempFile(t, "hist")
	s := &session{t: t, pid: p.PID, before: stateOf(t, p.PID)}
	s.start(command(t, "hist", "-v", "-p", strconv.Itoa(p.PID), "-o", out, "p:in main.Once n=$arg1:u32", "keys=common_pid:n0=n",
		fmt.Sprintf("p:out main.Twice+%d v=\\7:u64", calls[1].off), "keys=common_pid:v=v:d=v-$n0:onmatch(kprobes.in).trace(gap,$d)", "s:gap u64 d", "keys=d",
		"p:alone main.Twice", "keys=common_pid"))
	s.armed()
	before := right(t, p, "count")
	n := grown(before, right(t, p, "go 250"))
	r := s.end()
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	hs := histogramsIn(t, string(b))
	if !byReader(r, "in") || !byReader(r, "out") || byReader(r, "alone") || r.totals["out"].tactic != "uprobe" || r.totals["in"].tactic != "jump" {
		t.Error(r.stderr)
	}
	times := n["main.Twice"]
	if times == 0 || r.totals["in"].hits < 2*times || r.totals["out"].hits != times || hs[0].total != r.totals["in"].hits || hs[1].total == 0 || hs[1].total != hs[2].total {
		t.Errorf("%d calls; %+v\n%s", times, r.totals, b)
	}
}
