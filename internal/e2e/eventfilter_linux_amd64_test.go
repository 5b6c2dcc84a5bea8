package e2e

import (
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// filterCase is a probe with a filter, and what the filter says of call number i of thread t of the program work.
type filterCase struct {
	probe, filter string
	holds         func(t, i int64) bool
}

func filterCases() []filterCase {
	small := "f_small a=%di:s8 b=%si:u16 c=%dx:s32 d=%cx:s64"
	return []filterCase{
		{"p:EVENT f_six a=%di:u64 b=%si:x64", "a >= 0x100000010 && b < 4294967330", func(t, i int64) bool { return t == 1 && i >= 16 && i < 33 }},
		{"p:EVENT " + small, "a < 0 && a > -5", func(_, i int64) bool { return -(i&127) < 0 && -(i&127) > -5 }},
		{"p:EVENT " + small, "!(c <= -100 || b & 1) && d != 2", func(t, i int64) bool { return -i > -100 && i&1 == 0 && (t<<32|i) != 2 }},
		{"p:EVENT " + small, "a == 200 || a == -1", func(_, i int64) bool { return i&127 == 56 || i&127 == 1 }},
		{"p:EVENT f_ptr id=+0(%di):u64 low=+0(%di):u8", "low == 7 || id & 0x100000000 && low > 250", func(t, i int64) bool { return i&255 == 7 || t == 1 && i&255 > 250 }},
		{"p:EVENT f_str s=+0(%di):string", `s ~ "call-0-*9" && s != "call-0-99"`, func(t, i int64) bool { return t == 0 && i%10 == 9 && i != 99 }},
		{"p:EVENT f_str s=+0(%di):string n=%si:u32", `s == "call-1-17" || n == 3`, func(t, i int64) bool { return t == 1 && i == 17 || i&15 == 3 }},
		{"p:EVENT f_str s=+0(%di):string", `s ~ "call-?-[1-35]*7" || s == "call-0-0"`, func(t, i int64) bool {
			d := strconv.FormatInt(i, 10)
			return len(d) > 1 && strings.ContainsAny(d[:1], "1235") && i%10 == 7 || t == 0 && i == 0
		}},
		{"p:EVENT f_str s=+0(%di):string", `!(s ~ "!*-1-*2*[!0-6]*") && s ~ "*"`, func(t, i int64) bool {
			d := strconv.FormatInt(i, 10)
			n := strings.IndexByte(d, '2')
			return t == 1 && n >= 0 && strings.ContainsAny(d[n+1:], "789")
		}},
		{"p:EVENT f_str s=$arg1:gostring n=%si:u8", `n < 8 && (s == "call-1-" || s ~ "c?l" || s ~ "*-[1]" || s != "" && s ~ "!c*")`, func(t, i int64) bool {
			n := i & 15
			return n == 3 || t == 1 && (n == 6 || n == 7)
		}},
		{"r:EVENT f_six v=$retval:s64 a=$arg1:u64", "v > 315 && a <= 100", func(t, i int64) bool { return t == 0 && 6*i+15 > 315 && i <= 100 }},
	}
}

// TestEventFilters compares what passes a filter with what the program's own definition says of each call: where generated
// code runs the filter, where whoever reads the records does, and where the kernel holds the probe.
func TestEventFilters(t *testing.T) {
	const threads, calls = 2, 600
	for _, mode := range []struct {
		name, also string
		flags      []string
	}{
		{"code", "", nil},
		{"reader", " && CPU >= 0", nil},
		{"uprobe", "", []string{"--tactic", "uprobe"}},
	} {
		t.Run(mode.name, func(t *testing.T) {
			args := append([]string{"trace", "--buffer-size", "1048576"}, mode.flags...)
			cases := map[string]filterCase{}
			for i, c := range filterCases() {
				if mode.name == "uprobe" && (strings.Contains(c.probe, "string") || strings.HasPrefix(c.probe, "r") || strings.Contains(c.probe, "+0(")) {
					continue
				}
				name := "e" + strconv.Itoa(i)
				cases[name] = c
				args = append(args, strings.Replace(c.probe, "EVENT", name, 1), "-f", "("+c.filter+")"+mode.also)
			}
			exe := testprog.Copy(t, testprog.Build(t, "work")) // uprobes belong to a file
			s := &session{t: t}
			s.start(command(t, append(args, "--", exe, strconv.Itoa(threads), strconv.Itoa(calls))...))
			r := s.wait()
			r.whole(t)
			for name, c := range cases {
				want := uint64(0)
				for th := range int64(threads) {
					for i := range int64(calls) {
						if c.holds(th, i) {
							want++
						}
					}
				}
				if want == 0 || want == threads*calls {
					t.Errorf("%s: %d pass, which shows nothing", c.filter, want)
				}
				n := r.totals[name]
				if got := uint64(len(r.of(name))); got != want || n.filtered != threads*calls-want || n.hits != threads*calls {
					t.Errorf("%s: %d lines, want %d; %+v", c.filter, got, want, n)
				}
			}
		})
	}
}
