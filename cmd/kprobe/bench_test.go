package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/kuprobe"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{
		{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 100}, 3.5},
	} {
		before := slices.Clone(c.in)
		if got := median(c.in); got != c.want || !slices.Equal(c.in, before) {
			t.Errorf("median(%v) = %v, want %v and its argument as it was", before, got, c.want)
		}
	}
}

// One round in which the machine did something else moves the range and not the cost.
func TestCellSum(t *testing.T) {
	var c cell
	c.sum([]round{{1, 9}, {1.25, 9.5}, {1, 900}, {50, 9}, {1, 9}})
	if c.Rounds != 5 || c.Call != 1 || c.NS != 8 || c.Low != -41 || c.High != 899 {
		t.Errorf("cell %+v", c)
	}
}

func TestRatios(t *testing.T) {
	cells := []cell{
		{Row: rowCount, Class: "lea", Where: whereProcess, Threads: 1, NS: 10.5},
		{Row: rowFiltered, Class: "lea", Where: whereProcess, Threads: 1, NS: 21},
		{Row: rowBoth, Class: "lea", Where: whereProcess, Threads: 1, NS: 100},
		{Row: rowRecord, Class: "lea", Where: whereProcess, Threads: 1, NS: 10},
		{Row: rowRecord, Class: "lea", Where: whereProcess, Threads: 2, NS: 99},
		{Row: rowTracepoint, Class: "lea", Where: whereProcess, Threads: 1, NS: 5},
		{Row: rowUprobe, Class: "lea", Where: whereProcess, Threads: 1, NS: 999},
		{Row: rowRecord, Class: "push", Where: whereProcess, Threads: 1, NS: 10},
		{Row: rowUprobe, Class: "push", Where: whereProcess, Threads: 1, NS: 250},
		{Row: rowTracepoint, Class: "push", Where: whereProcess, Threads: 1, Why: "none"},
		{Row: rowRecord, Class: "ret", Where: whereProcess, Threads: 1, NS: 10, Failed: "lost"},
		{Row: rowString, Class: "push", Where: whereProcess, Threads: 1, NS: 110},
		{Row: rowQuestion, Class: "push", Where: whereProcess, Threads: 1, NS: 90},
		{Row: rowString, Class: "ret", Where: whereProcess, Threads: 1, NS: 31},
		{Row: rowGoString, Class: "ret", Where: whereProcess, Threads: 1, NS: 30},
		{Row: rowQuestion, Class: "ret", Where: whereProcess, Threads: 1, Why: "nothing is asked"},
		{Row: rowUprobe, Class: "ret", Where: whereProcess, Threads: 1, NS: 9999},
	}
	want := []ratio{
		{"counter, ns", "lea", 10.5, barCount, true, false},
		{"filtered / counter", "lea", 2, barFiltered, true, false},
		{"entry and return, ns", "lea", 100, barBoth, true, true},
		{"record / tracepoint", "lea", 2, barTracepoint, true, false},
		{"uprobe / record", "lea", 99.9, 100, false, false},
		{"o string - question, ns", "push", 20, barStringAsks, true, true},
		{"uprobe / record", "push", 25, 25, false, true},
		{"o string, ns", "ret", 31, barString, true, false},
		{"o gostring, ns", "ret", 30, barString, true, true},
	}
	if got := ratios(cells); !slices.Equal(got, want) {
		t.Errorf("ratios %+v\nwant %+v", got, want)
	}
}

func TestThreadSteps(t *testing.T) {
	for cpus, want := range map[int][]int{
		1: {1}, 2: {1, 2}, 3: {1, 2, 3}, 8: {1, 2, 3, 4, 5, 6, 7, 8}, 12: {1, 2, 3, 4, 5, 6, 7, 8, 12},
		40: {1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 40},
	} {
		if got := threadSteps(cpus); !slices.Equal(got, want) {
			t.Errorf("%d CPUs: %v, want %v", cpus, got, want)
		}
	}
}

// Every row and every class stands in the table; a reason is told once however often it
// applies, and places do not tell reasons apart.
func TestTextTables(t *testing.T) {
	var cells []cell
	for _, r := range rows {
		for i, cl := range classes {
			c := cell{Row: r.name, Class: cl.name, Where: whereProcess, Threads: 1, NS: 123.4}
			if r.name == "k" {
				c.Why = []string{"column 7: main+0x4: at 0x10 (48 8d): taken", "column 8: f+0x0: at 0x20 (c3): taken"}[i%2]
			}
			cells = append(cells, c)
		}
	}
	for _, r := range ownRows {
		for _, tactic := range r.tactics {
			c := r.cell(tactic)
			c.NS = 67.8
			cells = append(cells, c)
		}
	}
	fast, slow := figure{What: "speed", Where: whereSelf, Unit: "probes/s", Bar: 1000}, figure{What: "stop", Where: whereProcess, Unit: "ms", Bar: 5, AtMost: true}
	fast.set(1234.5)
	slow.set(5.25)
	var out bytes.Buffer
	p := &textPrinter{w: &out}
	p.machine(machine{CPU: "box", CPUs: 1, Workload: "C"})
	if err := p.end(cells, []figure{fast, slow}, ratios(cells)); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, r := range rows {
		if !strings.Contains(text, r.name+" ") || !strings.Contains(text, r.what) {
			t.Errorf("no row %q in\n%s", r.name, text)
		}
	}
	for _, want := range []string{"endbr64", "nop5", "123 ", "[1]", "only one CPU", "1.0! (>=100)", "1.0+ (<=1.5)", "1234 probes/s+", ">=1000", "5.25 ms!", "<=5.00", "kprobe and kretprobe", "67.8", "1400"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "[2]") {
		t.Errorf("one reason told twice in\n%s", text)
	}
}

// command builds the command with more of an environment.
func command(t *testing.T, env ...string) string {
	t.Helper()
	if len(env) == 0 {
		return build(t)
	}
	path := filepath.Join(t.TempDir(), "kprobe")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	return path
}

// report is what a run of bench wrote.
type benchReport struct {
	machine machine
	cells   map[[2]string]cell // by row and class
	own     map[[2]string]cell // by row and tactic
	scaled  []cell
	figures map[[2]string]figure // by what and where
	ratios  []ratio
}

func runBench(t *testing.T, path string, args ...string) benchReport {
	t.Helper()
	cmd := exec.Command(path, append([]string{"bench", "--quick", "--format", "json"}, args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("bench: %v: %s", err, errs.String())
	}
	rep := benchReport{cells: map[[2]string]cell{}, own: map[[2]string]cell{}, figures: map[[2]string]figure{}}
	for line := range bytes.Lines(out) {
		rep.add(t, line)
	}
	return rep
}

func (rep *benchReport) add(t *testing.T, line []byte) {
	t.Helper()
	var any struct {
		Machine *machine `json:"machine"`
		Row     string   `json:"row"`
		Ratio   string   `json:"ratio"`
		Figure  string   `json:"figure"`
	}
	if err := json.Unmarshal(line, &any); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	var err error
	switch {
	case any.Machine != nil:
		rep.machine = *any.Machine
	case any.Row != "":
		var c cell
		err = json.Unmarshal(line, &c)
		switch {
		case c.Where == whereSelf:
			rep.own[[2]string{c.Row, c.Tactic}] = c
		case c.Threads > 1:
			rep.scaled = append(rep.scaled, c)
		default:
			rep.cells[[2]string{c.Row, c.Class}] = c
		}
	case any.Figure != "":
		var f figure
		err = json.Unmarshal(line, &f)
		rep.figures[[2]string{f.What, f.Where}] = f
	case any.Ratio != "":
		var r ratio
		err = json.Unmarshal(line, &r)
		rep.ratios = append(rep.ratios, r)
	default:
		t.Fatalf("%s: neither machine, cell, figure nor ratio", line)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// others holds what does not hang on the workload: the own process's handlers are counted
// exactly by each tactic, and every figure has a value, good or bad.
func (rep *benchReport) others(t *testing.T) {
	t.Helper()
	for _, r := range ownRows {
		for _, tactic := range r.tactics {
			c, ok := rep.own[[2]string{r.name, string(tactic)}]
			if !ok || c.Why != "" {
				t.Errorf("%s by %s in the own process: there %v, %s", r.name, tactic, ok, c.Why)
				continue
			}
			c.check(t, fewRounds)
		}
	}
	want := handlerFigures([]cell{{Row: "k", Where: whereSelf, Tactic: "jump"}, {Row: rowSleepable, Where: whereSelf, Tactic: "jump"}})
	want = append(append(want, batchFigures(whereSelf, barBatchSelf)...), batchFigures(whereProcess, barBatchProcess)...)
	for _, what := range []string{"a hit that records 32 callers", figureFilterBpftrace, figureLatency, figureBpftrace, figureBetween, figureBetweenBpftrace, "attached to a large program, one probe armed", "the tracer's memory for it", "events into the ring and a raw file", figureBytes, "a call once its probe is taken out / never probed"} {
		want = append(want, figure{What: what, Where: whereProcess})
	}
	for _, w := range want {
		f, ok := rep.figures[[2]string{w.What, w.Where}]
		if slices.Contains([]string{figureLatency, figureBpftrace, figureBetween, figureBetweenBpftrace}, w.What) && rep.machine.Workload == "Go" {
			if f.Why == "" {
				t.Errorf("%s: measured in Go, %+v", w.What, f)
			}
			continue
		}
		if !ok || f.Why+f.Failed != "" || f.Unit == "" || f.Value <= 0 && f.What != figureBytes {
			t.Errorf("%s (%s): there %v, %+v", w.What, w.Where, ok, f)
		}
	}
	if f := rep.figures[[2]string{figureBytes, whereProcess}]; f.Value != 0 || !f.OK {
		t.Errorf("%+v", f)
	}
	if len(rep.figures) != len(want) {
		t.Errorf("%d figures, want %d", len(rep.figures), len(want))
	}
}

// check holds for every cell: it tells a reason, or it was measured in every round, its
// count is the program's own and nothing was lost.
func (c *cell) check(t *testing.T, rounds int) {
	t.Helper()
	switch {
	case c.Why != "":
	case c.Failed != "" || c.Hits != c.Want || c.Want == 0 || c.Lost != 0 || c.Rounds != rounds:
		t.Errorf("%+v", *c)
	case c.Call <= 0 || math.IsNaN(c.NS) || c.High < c.Low:
		t.Errorf("times of %+v", *c)
	}
}

func TestBenchC(t *testing.T) {
	if _, err := kuprobe.Mount(); err != nil {
		t.Fatalf("%v: run as root", err)
	}
	rep := runBench(t, command(t))
	if rep.machine.Workload != "C" || rep.machine.CPUs < 1 || rep.machine.Rounds != fewRounds {
		t.Errorf("machine %+v", rep.machine)
	}
	for _, r := range rows {
		for _, cl := range classes {
			c, ok := rep.cells[[2]string{r.name, cl.name}]
			if !ok || c.Why != "" {
				t.Errorf("%s on %s: there %v, %s", r.name, cl.name, ok, c.Why)
				continue
			}
			c.check(t, fewRounds)
			if r.means == meansKprobe && c.Tactic != string(r.tactic) {
				t.Errorf("%s on %s: tactic %s", r.name, cl.name, c.Tactic)
			}
		}
	}
	if want := len(scaled) * (len(threadSteps(rep.machine.CPUs)) - 1); len(rep.scaled) != want {
		t.Errorf("%d cells of several threads, want %d", len(rep.scaled), want)
	}
	for _, c := range rep.scaled {
		c.check(t, fewRounds)
	}
	if want := 10 * len(classes); len(rep.ratios) != want {
		t.Errorf("%d ratios, want %d: %+v", len(rep.ratios), want, rep.ratios)
	}
	rep.others(t)
}

// The same on the Go program, which has no breakpoints and no uretprobes: the rows that
// need them say so.
func TestBenchGo(t *testing.T) {
	rep := runBench(t, command(t, "CGO_ENABLED=0"), "--go")
	if rep.machine.Workload != "Go" || rep.machine.Rseq {
		t.Errorf("machine %+v", rep.machine)
	}
	for _, cl := range classes {
		for _, r := range rows {
			c, ok := rep.cells[[2]string{r.name, cl.name}]
			if !ok {
				t.Errorf("%s on %s is missing", r.name, cl.name)
			}
			c.check(t, fewRounds)
		}
		for _, name := range []string{"k", "b", rowBothStep, rowBothBoost, "uretprobe", rowQuestion} {
			if c := rep.cells[[2]string{name, cl.name}]; c.Why == "" {
				t.Errorf("%s on %s: measured, %+v", name, cl.name, c)
			}
		}
	}
	for _, name := range []string{rowCount, rowFiltered, rowRecord, rowTracepoint, rowString, rowGoString, rowStopped} {
		if c := rep.cells[[2]string{name, "lea"}]; c.Why != "" {
			t.Errorf("%s: %s", name, c.Why)
		}
	}
	rep.others(t)
}

// Interrupted in the middle, it says so, and leaves nothing in tracefs and no file.
func TestBenchInterrupted(t *testing.T) {
	dir, err := kuprobe.Mount()
	if err != nil {
		t.Fatalf("%v: run as root", err)
	}
	cmd := exec.Command(command(t), "bench", "--format", "json")
	tmp := t.TempDir()
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.Contains(lines.Text(), `"row":"uprobe count"`) {
			_ = cmd.Process.Signal(unix.SIGINT)
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitFailed {
		t.Errorf("%v, want status %d", err, exitFailed)
	}
	if files, err := os.ReadDir(tmp); err != nil || len(files) != 0 {
		t.Errorf("files left: %v, %v", files, err)
	}
	events, err := os.ReadFile(filepath.Join(dir, "uprobe_events"))
	if err != nil || strings.Contains(string(events), tmp) {
		t.Errorf("uprobe_events: %q, %v", events, err)
	}
}

func TestBenchWrongUse(t *testing.T) {
	path := command(t)
	for _, args := range [][]string{{"bench", "--format", "xml"}, {"bench", "more"}, {"doctor", "--format", "xml"}, {"doctor", "-p", "-3"}} {
		err := exec.Command(path, args...).Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != exitUsage {
			t.Errorf("%q: %v, want status %d", args, err, exitUsage)
		}
	}
}
