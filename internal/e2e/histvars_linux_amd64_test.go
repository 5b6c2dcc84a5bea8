package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// latLine is a line of the synthetic event lat.
var latLine = regexp.MustCompile(`(?m)^ +\S+-\d+ +\[\d+\] \S+ +[0-9.]+: lat: ns=(\d+) id=(\d+)$`)

// maxLine is what onmax has kept in an entry: its maximum, and a saved field.
var maxLine = regexp.MustCompile(`(?m)^\{ .*\} hitcount: +(\d+)\n\tmax: +(\d+)  id: +(\d+)$`)

// numbers are those of all that a pattern matches.
func numbers(t *testing.T, re *regexp.Regexp, text string) (all [][]uint64) {
	t.Helper()
	for _, m := range re.FindAllStringSubmatch(text, -1) {
		var ns []uint64
		for _, s := range m[1:] {
			n, err := strconv.ParseUint(s, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			ns = append(ns, n)
		}
		all = append(all, ns)
	}
	return all
}

// TestLatencyByKey measures the time between two probes by the calls' numbers, in four threads: from the entry of a function to the return
// of the one that it goes on in. Each time is compared with what the program's own clock says inside and around its call. A histogram of
// all keeps the largest, and which call it was.
func TestLatencyByKey(t *testing.T) {
	p := program(t, "timed")
	out := tempFile(t, "hist")
	s := &session{t: t, pid: p.PID, before: stateOf(t, p.PID)}
	s.start(command(t, "hist", "-p", strconv.Itoa(p.PID), "-o", out, "--buffer-size", "1048576",
		"p:in timed_jump id=$arg1:u64", "keys=id:size=8192:ts0=common_timestamp",
		"r:done timed_rest id=$arg1:u64", "keys=id:size=8192:ns=common_timestamp-$ts0:onmatch(kprobes.in).trace(lat,$ns,id):onmatch(kprobes.in).span($ns,id)",
		"s:lat u64 ns; u64 id", "s:span u64 ns; u64 id", "keys=0:ns=ns:onmax($ns).save(id)"))
	s.armed()
	c := goTimed(t, p, 500)
	r := s.end()
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	seen := make([]int, len(c.Inner))
	longest, longestID := uint64(0), uint64(0)
	for _, l := range numbers(t, latLine, string(b)) {
		ns, id := l[0], l[1]
		if id >= uint64(len(seen)) || id&1 == 0 {
			t.Fatalf("call %d", id)
		}
		seen[id]++
		if in, all := c.Inner[id], c.Outer[id]; ns+slack(ns) < in || ns > all+slack(all) {
			t.Errorf("call %d: %d ns, by the program's clock %d to %d", id, ns, in, all)
		}
		if ns > longest {
			longest, longestID = ns, id
		}
	}
	for id, n := range seen {
		if n != id&1 {
			t.Errorf("call %d: %d times", id, n)
		}
	}
	most := numbers(t, maxLine, string(b))
	if len(most) != 1 || most[0][0] != uint64(len(seen)/2) || most[0][1] != longest || most[0][2] != longestID {
		t.Errorf("the largest: %d, by the lines %d of call %d", most, longest, longestID)
	}
	for i, h := range histogramsIn(t, string(b)) {
		if h.total != uint64(len(seen)/2) || h.dropped != 0 {
			t.Errorf("histogram %d: %d hits, %d dropped, want %d", i, h.total, h.dropped, len(seen)/2)
		}
	}
	for _, e := range []string{"in", "done"} {
		r.counted(t, e, uint64(len(seen)/2), "jump")
	}
}

// TestOnMax compares the largest argument of each thread's calls, and how often it grew, with what the program has passed.
func TestOnMax(t *testing.T) {
	const threads, calls = 3, 400
	out := filepath.Join(t.TempDir(), "hist")
	s := &session{t: t}
	s.start(command(t, "hist", "-o", out, "--buffer-size", "1048576", "p:e f_six id=%di:u64",
		"keys=id.buckets=0x100000000:sort=id:id2=id:onmax($id2).save(id):onmax($id2).trace(grown,$id2)",
		"s:grown u64 id", "keys=id.buckets=0x100000000:sort=id", "--", testprog.Build(t, "work"), strconv.Itoa(threads), strconv.Itoa(calls)))
	s.wait()
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	most := numbers(t, regexp.MustCompile(`hitcount: +(\d+)\n\tmax: +(\d+)  id: +(\d+)\n\tmax: +(\d+)  id: +(\d+)\n`), string(b))
	if len(most) != threads {
		t.Fatalf("%s", b)
	}
	for i, m := range most {
		last := uint64(i)<<32 | calls - 1
		if m[0] != calls || m[1] != last || m[2] != last || m[3] != last || m[4] != last {
			t.Errorf("thread %d: %d, want %d calls, %d", i, m, calls, last)
		}
	}
	// Each call of a thread passes more than the one before; the first of the first thread passes 0, which is not more than nothing.
	if hs := histogramsIn(t, string(b)); len(hs) != 2 || hs[1].total != threads*calls-1 {
		t.Errorf("%+v", hs)
	}
}
