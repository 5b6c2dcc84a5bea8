package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/oracle"
)

// A shellStep is a command of testdata/conform.sh, with what it has printed.
type shellStep struct{ section, command, text string }

// name is what a row of testdata/conform-differences.txt has of it.
func (s *shellStep) name() string { return s.section + ": " + s.command }

var section = regexp.MustCompile(`^## [a-z]+\n$`)

// steps reads a transcript.
func steps(transcript string) (out []shellStep) {
	var in string
	for line := range strings.Lines(transcript) {
		command, ok := strings.CutPrefix(line, "$ ")
		switch {
		case ok:
			out = append(out, shellStep{section: in, command: strings.TrimSuffix(command, "\n")})
		case section.MatchString(line):
			in = strings.TrimSpace(line[3:])
		case len(out) > 0:
			out[len(out)-1].text += line
		}
	}
	return out
}

// byChance has what is another in each run: addresses, offsets of probe points, tasks, CPUs, times. A return probe that was given no number of
// instances has one in the kernel's listing, by the number of its CPUs.
var byChance = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`(?m)^ *\S+-\d+ +(?:\( *[-\d]+\) +)?\[\d{3}\] `), "TASK-PID [CPU] "},
	{regexp.MustCompile(`(?m)^(TASK-PID \[CPU\] (?:[.\w]{5})? *)\d+(?:\.\d{6})?: `), "${1}TIME: "},
	{regexp.MustCompile(`(?m)^(TASK-PID \[CPU\]) +(\S{5})? +TIME`), "$1 $2 TIME"},
	{regexp.MustCompile(`(?m)^(TASK-PID \[CPU\] .)[nNpPbBlL](... TIME)`), "$1.$2"}, // a tick may want to schedule
	{regexp.MustCompile(`\+0x[0-9a-f]+/0x[0-9a-f]+`), "+OFF"},
	{regexp.MustCompile(`\(\S+\+OFF <- `), "(CALLER <- "},
	{regexp.MustCompile(`0x(ffffffff[0-9a-f]{8}|[5-7][0-9a-f]{11})( \(-?\d+\))?`), "ADDR"},
	{regexp.MustCompile(`#P:\d+`), "#P:N"},
	{regexp.MustCompile(`(?m)^r10:`), "r:"},
	{regexp.MustCompile(`(?m)^0[0,]*([01])$`), "$1"},                 // a mask of CPUs has a digit for each four
	{regexp.MustCompile(`(?m)^((?:oldest event|now) ts:) +`), "$1 "}, // as many as the number leaves of five digits
	{regexp.MustCompile(`(?m)^(now ts: )[\d.]+$`), "${1}TIME"},
	{regexp.MustCompile(`(?m)^\d+ \d \d+ type: \d+$`), "PID CPU TIME type: ID"},
	{regexp.MustCompile(`(?m)^ID: \d+$`), "ID: N"},
	{regexp.MustCompile(`latency trace v1.1.5 on .*`), "latency trace v1.1.5 on RELEASE"},
}

// normal makes transcripts of different runs comparable.
func normal(transcript string) string {
	for _, a := range byChance {
		transcript = a.what.ReplaceAllString(transcript, a.with)
	}
	return transcript
}

// conform compares a transcript of a side with the kernel's. Each difference has its reason in a table, for this side or for "any"; a row
// that explains none fails too.
func conform(t *testing.T, side, kernel, ours string) {
	t.Helper()
	table, err := oracle.ReadTable("testdata/conform-differences.txt")
	if err != nil {
		t.Fatal(err)
	}
	table = slices.DeleteFunc(table, func(r *oracle.Row) bool { return r.Field != side && r.Field != "any" })
	k, o := steps(kernel), steps(ours)
	if len(k) != len(o) {
		t.Errorf("%d steps, the kernel has %d; the last is %q", len(o), len(k), o[len(o)-1].name())
	}
	equal, explained := 0, 0
	for i := range min(len(k), len(o)) {
		if k[i] == o[i] {
			equal++
			continue
		}
		d := &oracle.Difference{Case: &oracle.Case{File: "conform.sh", Steps: []oracle.Step{{Shown: k[i].name()}}}, Kernel: shown(k[i].text), Ours: shown(o[i].text)}
		if explain(table, side, d) {
			explained++
			continue
		}
		d.Field = side
		t.Error(d)
	}
	for _, r := range table {
		if r.Uses == 0 {
			t.Errorf("conform-differences.txt:%d: explains nothing: %s | %s", r.Line, r.Field, r.Step)
		}
	}
	t.Logf("%d steps, %d equal, %d differences explained", len(k), equal, explained)
}

func explain(table oracle.Table, side string, d *oracle.Difference) bool {
	for _, d.Field = range []string{side, "any"} {
		if table.Explain(d) != nil {
			return true
		}
	}
	return false
}

// shown makes one line of what a command has printed; - is nothing.
func shown(text string) string {
	if text == "" {
		return "-"
	}
	return strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "¶")
}

// TestTranscript reads a transcript, and takes out of it what differs by chance.
func TestTranscript(t *testing.T) {
	got := steps(normal(`## one
$ lines
             hit-3135    [000] .N...   533.939825: e: (do_fchownat+0x4/0x110) u=7
          chowns-17   (-----) [001] d.h1.   533.939826: r: (main+0x4/0x110 <- do_fchownat) p=0xffffffff81000010
## two
$ cat kprobe_events
r10:g/r do_fchownat
`))
	want := []shellStep{
		{"one", "lines", "TASK-PID [CPU] ..... TIME: e: (do_fchownat+OFF) u=7\nTASK-PID [CPU] d.h1. TIME: r: (CALLER <- do_fchownat) p=ADDR\n"},
		{"two", "cat kprobe_events", "r:g/r do_fchownat\n"},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
