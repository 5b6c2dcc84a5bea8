package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/testprog"
)

// tellings are the numbers of the last line of a log, NAME=NUMBER.
func tellings(t testing.TB, out string) map[string]uint64 {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	n := map[string]uint64{}
	for _, m := range regexp.MustCompile(`(\w+)=(\d+)`).FindAllStringSubmatch(lines[len(lines)-1], -1) {
		v, err := strconv.ParseUint(m[2], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		n[m[1]] = v
	}
	if len(n) == 0 {
		t.Fatalf("no numbers in %q", out)
	}
	return n
}

// object compiles a module of testdata by kprobe cc, for tests that load it often.
func object(t testing.TB, name string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name+".o")
	if o := run(t, command(t, "cc", "testdata/"+name+".c", "-o", out)); o.code != 0 || o.stderr != "" {
		t.Fatal(o)
	}
	return out
}

// hitCounts checks what the module hits tells of a program's calls since before: each is counted or missed, by the kprobe and by the kretprobe.
func hitCounts(t testing.TB, out string, before, after map[string]uint64) (told map[string]uint64) {
	t.Helper()
	n := tellings(t, out)
	calls := after["hit"] - before["hit"]
	if n["counted"]+n["missed"] != calls || n["entered"]+n["unentered"] != calls || n["returned"] != n["entered"] || n["uncalled"] != 0 || n["wrong"] != 0 {
		t.Errorf("%d calls, and the module tells of %v", calls, n)
	}
	return n
}

// TestInsmodManyHits has eight threads call a function with a kprobe and a kretprobe of a module, whose handlers call it too, or have a signal
// handler on top of them call it: each hit is counted once, and those within handlers, which the program counts too, are missed.
func TestInsmodManyHits(t *testing.T) {
	t.Parallel()
	const threads = 8
	each := uint64(200_000)
	if long {
		each = 10_000_000
	}
	hits := object(t, "hits")
	p := program(t, "hits", strconv.Itoa(threads))

	module(t, p, "insmod", hits)
	before := right(t, p, "count")
	start := time.Now()
	after := right(t, p, fmt.Sprint("go ", each))
	took := time.Since(start)
	n := hitCounts(t, module(t, p, "rmmod", "hits"), before, after)
	if n["counted"] != threads*each || n["missed"] != 0 || n["unentered"] != 0 {
		t.Errorf("%d calls of %d threads, and the module tells of %v", each, threads, n)
	}
	t.Logf("%d calls in %v: %v", threads*each, took, n)

	module(t, p, "insmod", hits, "recurse=64", "signals=1000")
	before = after
	after = right(t, p, fmt.Sprint("go ", each))
	n = hitCounts(t, module(t, p, "rmmod", "hits"), before, after)
	nested := after["nested"] - before["nested"]
	if n["missed"] != nested || n["unentered"] != nested || nested < threads*each/64/2 {
		t.Errorf("%d hits within handlers, and the module tells of %v", nested, n)
	}
	t.Logf("%d hits within handlers: %v", nested, n)
}

// TestInsmodSignals has signals come while threads run handlers of a module, whose handlers hit the same probes: each hit is counted or missed.
func TestInsmodSignals(t *testing.T) {
	t.Parallel()
	p := program(t, "hits", "4")
	module(t, p, "insmod", object(t, "hits"), "recurse=1000")
	before := right(t, p, "count")
	after := before
	for after["stormed"]-before["stormed"] < 500 {
		after = right(t, p, "storm 100000")
	}
	n := hitCounts(t, module(t, p, "rmmod", "hits"), before, after)
	if nested := after["nested"] - before["nested"]; n["missed"] < nested {
		t.Errorf("%d hits within handlers, and the module tells of %v", nested, n)
	}
	t.Logf("%d signals: %v", after["stormed"]-before["stormed"], n)
}

// mapping is a piece of a process's memory, and its bytes, if it holds code.
type mapping struct {
	procfs.Map
	code string
}

// memoryMap is the list of a process's mappings, without how far its stack has grown. Pages of one file that lie side by side are one mapping, as they
// were before a copy of some was given back to the file. pieces are how many there are in the kernel's list.
func memoryMap(t testing.TB, p *testprog.Proc) (list []mapping, pieces int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", p.PID)
	maps, err := procfs.MapsOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open(dir + "mem")
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	for _, m := range maps {
		one := mapping{Map: m}
		if m.Perm&procfs.PermExec != 0 && m.Path != "[vsyscall]" {
			text := make([]byte, m.Size())
			if _, err := mem.ReadAt(text, int64(m.Start)); err != nil {
				t.Fatal(m.Path, err)
			}
			one.code = string(text)
		}
		if m.Path == "[stack]" {
			one.Start = 0
		}
		if n := len(list) - 1; n >= 0 && one.code != "" && list[n].code != "" && list[n].End == m.Start && list[n].Path == m.Path && list[n].Offset+list[n].Size() == m.Offset {
			list[n].End, list[n].code = m.End, list[n].code+one.code
			continue
		}
		list = append(list, one)
	}
	return list, len(maps)
}

// TestInsmodToggles loads and removes a module again and again while threads hit: in the end the program is as before, its mappings, its code,
// its threads and what it computes. Each time something is counted.
func TestInsmodToggles(t *testing.T) {
	t.Parallel()
	const workers = 8
	times := 8
	if long {
		times = 1000
	}
	hits := object(t, "hits")
	p := program(t, "hits", strconv.Itoa(workers))
	right(t, p, "go 1000") // what it needs once it has
	state, threads := stateOf(t, p.PID), tasks(t, p.PID)
	before, _ := memoryMap(t, p)
	right(t, p, "run")
	first, start := 0, time.Now()
	for i := range times {
		module(t, p, "insmod", hits)
		from := right(t, p, "count")
		within(t, "the program goes on", func() bool { return right(t, p, "count")["hit"] > from["hit"] })
		n := tellings(t, module(t, p, "rmmod", "hits"))
		if n["counted"] == 0 || n["returned"] > n["entered"] || n["entered"]-n["returned"] > workers || n["wrong"] != 0 { // a call of each thread may return later
			t.Fatalf("load %d: %v", i, n)
		}
		if i%100 == 99 {
			t.Logf("%d times in %v", i+1, time.Since(start))
		}
		if i == 0 {
			within(t, "nothing is left in the program", func() bool { return len(ours(t, p)) == 0 })
			_, first = memoryMap(t, p)
		}
	}
	t.Logf("%d times in %v", times, time.Since(start))
	right(t, p, "stop")
	within(t, "nothing is left in the program", func() bool { return len(ours(t, p)) == 0 })
	state.same(t)
	if now := tasks(t, p.PID); !slices.Equal(now, threads) {
		t.Errorf("threads %v, %v before", now, threads)
	}
	after, pieces := memoryMap(t, p)
	if pieces > first {
		t.Errorf("%d mappings, and %d after the first load", pieces, first)
	}
	bounds := func(list []mapping) (lines []string) {
		for _, m := range list {
			lines = append(lines, fmt.Sprintf("%x-%x %v %x %s", m.Start, m.End, m.Perm, m.Offset, m.Path))
		}
		return lines
	}
	if diff := cmp.Diff(bounds(before), bounds(after)); diff != "" {
		t.Errorf("mappings (-before +after):\n%s", diff)
	}
	if !slices.EqualFunc(before, after, func(a, b mapping) bool { return a.code == b.code }) {
		t.Error("the code is another than before")
	}
	right(t, p, "go 1000")
}
