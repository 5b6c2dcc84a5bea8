package e2e

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// datLine is a line of trace-cmd report: of an entry with its place, of a return with the place that it goes back to and the function.
var datLine = regexp.MustCompile(`(?m)^ *\S+-(\d+) +\[\d+\] +[0-9.]+: +(a|b): +\((\w+)\+0x[0-9a-f]+(?: <- (\w+))?\) fn=(\w+)`)

// TestRecordExecutable records 50 short processes of a program, which lies elsewhere in each. trace-cmd reads as many hits of each as it
// has counted itself, with the names of its functions, also in stacks; kprobe report prints the same.
func TestRecordExecutable(t *testing.T) {
	const n = 50
	b := newBriefs(t, testprog.Copy(t, testprog.Build(t, "brief", "-pie", "-fPIE")))
	p := testprog.Start(t, b.prog)
	file := filepath.Join(t.TempDir(), "all.dat")
	s := everywhere(t, p, "record", "-x", b.prog, "-o", file, "--stacktrace", "--buffer-size", "1048576", "p:a brief_work fn=%ip:symbol", "r:b brief_work fn=%ip:symbol")
	b.run(n, 4)
	right(t, p, "go 50")
	r := s.end()
	if r.code != 0 {
		t.Fatalf("%v", r.outcome)
	}
	theirs, err := exec.Command("trace-cmd", "report", "-i", file).Output()
	if err != nil {
		t.Fatalf("%v (install trace-cmd)", err)
	}
	if ours := run(t, command(t, "report", "-i", file)); ours.stdout != string(theirs) {
		t.Error("kprobe report and trace-cmd report differ")
	}
	of, sum := b.counted()
	of[p.PID] = 50
	entries, returns := map[int]uint64{}, map[int]uint64{}
	for _, m := range datLine.FindAllStringSubmatch(string(theirs), -1) {
		pid, _ := strconv.Atoi(m[1])
		at, kind := m[3], entries
		if m[2] == "b" {
			at, kind = m[4], returns
			if m[3] != "main" && m[3] != "burst" {
				t.Fatalf("a return goes back to %s: %s", m[3], m[0])
			}
		}
		if at != "brief_work" || m[5] != "brief_work" {
			t.Fatalf("not the function: %s", m[0])
		}
		kind[pid]++
	}
	if len(of) != n+1 || len(entries) != n+1 || len(returns) != n+1 {
		t.Errorf("%d processes were run, %d have entries, %d returns; all counted %d: %v", len(of), len(entries), len(returns), sum, r.outcome)
	}
	for pid, calls := range of {
		if entries[pid] != calls || returns[pid] != calls {
			t.Errorf("process %d: %d entries, %d returns, and it has counted %d calls", pid, entries[pid], returns[pid], calls)
		}
	}
	callers := regexp.MustCompile(`(?m)^=> brief_work \([0-9a-f]+\)\n=> (?:burst|main) \(`).FindAllString(string(theirs), -1)
	if want := sum + 50; uint64(len(callers)) != want {
		t.Errorf("%d stacks lead from brief_work to its caller, want %d", len(callers), want)
	}
}
