package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// histLine is a line of a histogram: its key as it is shown, hitcount, and a value.
var histLine = regexp.MustCompile(`(?m)^\{ (.*?) +\} hitcount: +(\d+)(?:  [^: ]+: +(\d+))?$`)

var histTotals = regexp.MustCompile(`Hits: (\d+)\s+Entries: (\d+)\s+Dropped: (\d+)`)

// histogram is what kprobe hist has printed.
type histogram struct {
	hits, sums              map[string]uint64
	total, entries, dropped uint64
}

// histogramOf runs kprobe hist on the program work and reads its only histogram.
func histogramOf(t *testing.T, probe, spec string, flags []string, threads, calls int) (histogram, result) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "hist")
	s := &session{t: t}
	args := append([]string{"hist", "-o", out}, flags...)
	exe := testprog.Copy(t, testprog.Build(t, "work")) // uprobes belong to a file
	s.start(command(t, append(args, probe, spec, "--", exe, strconv.Itoa(threads), strconv.Itoa(calls))...))
	r := s.wait()
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return histogramsIn(t, string(b))[0], r
}

// histogramsIn reads what kprobe hist has printed.
func histogramsIn(t *testing.T, text string) (hs []histogram) {
	t.Helper()
	for _, m := range histTotals.FindAllStringSubmatchIndex(text, -1) {
		h := histogram{hits: map[string]uint64{}, sums: map[string]uint64{}}
		part := text[:m[0]]
		for _, l := range histLine.FindAllStringSubmatch(part[strings.LastIndex(part, "# event histogram"):], -1) {
			h.hits[l[1]], _ = strconv.ParseUint(l[2], 10, 64)
			h.sums[l[1]], _ = strconv.ParseUint(l[3], 10, 64)
		}
		for i, v := range []*uint64{&h.total, &h.entries, &h.dropped} {
			*v, _ = strconv.ParseUint(text[m[2*i+2]:m[2*i+3]], 10, 64)
		}
		hs = append(hs, h)
	}
	if hs == nil {
		t.Fatalf("no histogram: %s", text)
	}
	return hs
}

// TestHistograms compares histograms that the code at the hit makes, those of whoever reads records, and those of the kernel's
// uprobe with what the program's own definition says: each key's hits, and each sum.
func TestHistograms(t *testing.T) {
	const threads = 4
	for _, c := range []struct {
		probe, spec string
		key         func(t, i int64) string
		value       func(t, i int64) uint64
		holds       func(t, i int64) bool
	}{
		{"p:e f_small a=%di:s8 b=%si:u16 c=%dx:s32 d=%cx:s64", "keys=a", func(_, i int64) string { return fmt.Sprintf("a: %10d", uint64(-(i & 127))) }, nil, nil},
		{"p:e f_small a=%di:s8 c=%dx:s32", "keys=a.buckets=16:vals=c", func(_, i int64) string {
			v := uint64(-(i & 127))
			return fmt.Sprintf("a: ~ %d-%d", v-v%16, v-v%16+15)
		}, func(_, i int64) uint64 { return uint64(int64(int32(-i))) }, nil},
		{"p:e f_six a=%di:u64", "keys=a.log2:vals=a:sort=a", func(t, i int64) string { return "a: ~ 2^" + strconv.Itoa(log2(uint64(t<<32|i))) }, func(t, i int64) uint64 { return uint64(t<<32 | i) }, nil},
		{"p:e f_ptr id=+0(%di):u64 low=+0(%di):u8", "keys=low,low.hex if low < 32", func(_, i int64) string { return fmt.Sprintf("low: %10d, low: %x", i&255, i&255) }, nil, func(_, i int64) bool { return i&255 < 32 }},
		{"p:e f_str s=+0(%di):string n=%si:u32", "keys=s:size=16384:vals=n if n == 3", func(t, i int64) string { return fmt.Sprintf("s: call-%d-%d", t, i) }, func(_, i int64) uint64 { return 3 }, func(_, i int64) bool { return i&15 == 3 }},
		{"p:e f_str s=$arg1:gostring n=%si:u32", "keys=n.hex,s:vals=n if n < 8", func(t, i int64) string {
			return strings.TrimSpace(fmt.Sprintf("n: %x, s: %s", i&15, fmt.Sprintf("call-%d-", t)[:i&15]))
		}, func(_, i int64) uint64 { return uint64(i & 15) }, func(_, i int64) bool { return i&15 < 8 }},
		{"r:e f_six v=$retval:u64 a=$arg1:u64", "keys=a.buckets=0x100000000:vals=a", func(t, _ int64) string { return fmt.Sprintf("a: ~ %d-%d", t<<32, (t+1)<<32-1) }, func(t, i int64) uint64 { return uint64(t<<32 | i) }, nil},
	} {
		for _, mode := range []struct {
			name  string
			calls int64
			flags []string
			also  string
		}{
			{"code", 50000, nil, ""},
			{"reader", 600, []string{"--buffer-size", "1048576"}, " && CPU >= 0"},
			{"uprobe", 600, []string{"--buffer-size", "1048576", "--tactic", "uprobe"}, ""},
		} {
			if mode.name == "uprobe" && (strings.HasPrefix(c.probe, "r") || strings.Contains(c.probe, "+0(") || strings.Contains(c.probe, "string")) {
				continue
			}
			t.Run(c.spec+" "+mode.name, func(t *testing.T) {
				spec := c.spec
				switch {
				case mode.also == "":
				case strings.Contains(spec, " if "):
					spec += mode.also
				default:
					spec += " if " + strings.TrimPrefix(mode.also, " && ")
				}
				h, r := histogramOf(t, c.probe, spec, mode.flags, threads, int(mode.calls))
				hits, sums, total := map[string]uint64{}, map[string]uint64{}, uint64(0)
				for th := range int64(threads) {
					for i := range mode.calls {
						if c.holds != nil && !c.holds(th, i) {
							continue
						}
						total++
						hits[strings.TrimSpace(c.key(th, i))]++
						if c.value != nil {
							sums[strings.TrimSpace(c.key(th, i))] += c.value(th, i)
						}
					}
				}
				if h.total != total || h.dropped != 0 || h.entries != uint64(len(hits)) || len(h.hits) != len(hits) {
					t.Errorf("%d hits, %d dropped, %d entries, want %d and %d: %v", h.total, h.dropped, h.entries, total, len(hits), h.hits)
				}
				for k, n := range hits {
					if h.hits[k] != n || c.value != nil && h.sums[k] != sums[k] {
						t.Errorf("%q: %d hits, sum %d, want %d and %d", k, h.hits[k], h.sums[k], n, sums[k])
					}
				}
				if n := r.totals["e"]; n.hits != uint64(threads*mode.calls) || n.hits-n.filtered != total {
					t.Errorf("%+v, want %d of %d", n, total, threads*mode.calls)
				}
			})
		}
	}
}

// log2 is the exponent of the smallest power of two that is not below v.
func log2(v uint64) (n int) {
	for ; n < 64 && 1<<n < v; n++ {
	}
	return n
}

// TestHistogramFull has more keys than there is room for: nothing is lost uncounted.
func TestHistogramFull(t *testing.T) {
	const threads, calls = 4, 20000
	h, r := histogramOf(t, "p:e f_six a=%di:u64", "keys=a:size=128", nil, threads, calls)
	sum := uint64(0)
	for _, n := range h.hits {
		sum += n
	}
	if sum != h.total || h.total+h.dropped != threads*calls || h.entries > 128 || h.entries < 120 || uint64(len(h.hits)) != h.entries {
		t.Errorf("%d hits, %d in entries, %d dropped, %d entries", h.total, sum, h.dropped, h.entries)
	}
	if n := r.totals["e"]; n.hits != threads*calls {
		t.Errorf("%+v", n)
	}
}

// TestHistogramsOfOneProbe has probes of which each stands for several events: a pattern's, and those at the inlined calls of a function.
// Each event has a histogram, and together they have the program's own counts.
func TestHistogramsOfOneProbe(t *testing.T) {
	p := program(t, "lines")
	out := tempFile(t, "hist")
	s := &session{t: t, pid: p.PID, before: stateOf(t, p.PID)}
	s.start(command(t, "hist", "-p", fmt.Sprint(p.PID), "-o", out, "p:of/ [om][na][nc][ey] v=%di:u64", "keys=v:size=2048", "p:in inlined", "keys=common_pid"))
	s.armed()
	n := p.Counts("go 1000")
	s.end()
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	hits := map[string]uint64{}
	names := regexp.MustCompile(`(?m)^# (of/|kprobes/in)\w*$`).FindAllStringSubmatch(string(b), -1)
	for i, h := range histogramsIn(t, string(b)) {
		hits[names[i][1]] += h.total
	}
	if n["inlined"] == 0 || hits["of/"] != 2*1000 || hits["kprobes/in"] != n["inlined"] {
		t.Errorf("%v, the program counted %v:\n%s", hits, n, b)
	}
}
