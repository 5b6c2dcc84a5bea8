package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLossesAreTold has more hits than the program's ring has room for: those that are lost are told of where they were, by lines of trace, by
// objects of JSON, by a recorded file, and make up all calls with those that came. A second user is told of its own alone.
func TestLossesAreTold(t *testing.T) {
	const burst = 100_000
	p := program(t, "rate")
	p.Counts("rate 100000000")
	other := trace(t, p.PID, "--buffer-size", "4096", "--format", "json", "p:never rate_call n=%di", "-f", "n == 0")
	var set unix.CPUSet
	set.Set(0)
	if err := unix.SchedSetaffinity(p.PID, &set); err != nil {
		t.Fatal(err)
	}
	var calls uint64
	calling := func(args ...string) result {
		t.Helper()
		before := right(t, p, "go 0")["calls"]
		s := joins(t, p, 1, append(args, "p:mine rate_call n=%di")...)
		seen := joins(t, p, 1, "trace", "p:seen rate_call n=%di", "-f", fmt.Sprintf("n > %d", before+burst))
		right(t, p, fmt.Sprintf("go %d", burst))
		within(t, "records of calls behind what was lost", func() bool {
			calls = right(t, p, "go 1")["calls"] - before
			return strings.Count(seen.out.String(), " seen: ") > 1
		})
		seen.interrupt()
		seen.wait()
		s.interrupt()
		return s.wait()
	}
	sum := func(text, pattern string) (n int) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			one, _ := strconv.Atoi(m[1])
			n += one
		}
		return n
	}
	check := func(what, stdout, stderr, line, lost string) {
		t.Helper()
		came, told := strings.Count(stdout, line), sum(stdout, lost)
		if counted := sum(stderr, `mine.*lost"?[=:](\d+)`); came+told != int(calls) || told == 0 || told != counted {
			t.Errorf("%s: %d calls: %d came, %d are told as lost, and %d in the summary: %s", what, calls, came, told, counted, stderr)
		}
	}
	for format, f := range map[string][2]string{
		"text": {" mine: (", `(?m)^CPU:\d+ \[LOST (\d+) EVENTS\]$`},
		"json": {`"event":"kprobes/mine"`, `(?m)^{"cpu":\d+,"lost":(\d+)}$`},
	} {
		r := calling("trace", "--format", format)
		check(format, r.stdout, r.stderr, f[0], f[1])
	}
	file := filepath.Join(t.TempDir(), "trace.dat")
	r := calling("record", "-o", file)
	report := run(t, command(t, "report", "-i", file))
	check("record", report.stdout, r.stderr, " mine: ", `(?m)^CPU:\d+ \[(\d+) EVENTS DROPPED\]$`)
	if r := other.end(); r.stdout != "" {
		t.Errorf("the user who has lost nothing is told %.200s", r.stdout)
	}
}
