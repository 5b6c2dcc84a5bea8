package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/testprog"
)

// profileOf runs kprobe hist with a form of profiles, and gives the file, and how often the program says that leaf was called by each function.
func profileOf(t *testing.T, format, probe, hist string) (file string, calls map[string]uint64) {
	t.Helper()
	exe := testprog.Build(t, "stackkeys", "-g", "-fno-optimize-sibling-calls")
	file = tempFile(t, "profile")
	var errs bytes.Buffer
	cmd := command(t, "hist", "-q", "--format", format, "-o", file, probe, hist, "--", exe, "2", "3000", "6")
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &errs)
	}
	if err := json.Unmarshal(out, &calls); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(calls) != 4 || calls["direct"] == 0 || calls["handler"] == 0 {
		t.Fatalf("%v", calls)
	}
	return file, calls
}

// TestHistFolded compares folded stacks with what the program has counted: also those whose innermost caller is a handler of signals, on top of any function.
func TestHistFolded(t *testing.T) {
	for _, probe := range []string{"p:leaf leaf", "r:leaf leaf"} {
		file, calls := profileOf(t, "folded", probe, "keys=common_stacktrace")
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got, seen, deepest := map[string]uint64{}, map[string]bool{}, 0
		for line := range strings.Lines(string(b)) {
			stack, count, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			frames := strings.Split(stack, ";")
			n, err := strconv.ParseUint(count, 10, 64)
			if err != nil || len(frames) < 2 || frames[len(frames)-1] != "leaf" || seen[stack] {
				t.Fatalf("%q", line)
			}
			seen[stack] = true
			got[frames[len(frames)-2]] += n
			if !slices.Contains(frames, "handler") {
				deepest = max(deepest, strings.Count(stack, ";down"))
			}
		}
		for fn, n := range calls {
			if got[fn] != n {
				t.Errorf("%s: %d by %s, and the program has counted %d", probe, got[fn], fn, n)
			}
		}
		if len(got) != 4 || deepest != 6 {
			t.Errorf("%s: %v, down %d deep", probe, got, deepest)
		}
	}
}

// What go tool pprof prints of a sample, and of a location.
var (
	rawSample   = regexp.MustCompile(`(?m)^ +(\d+) +(\d+) +(\d+): ([\d ]+)$`)
	rawLocation = regexp.MustCompile(`(?m)^ +(\d+): 0x[0-9a-f]+ M=(\d+) (\w+) (\S*):(\d+):`)
	rawMapping  = regexp.MustCompile(`(?m)^(\d+): \S+ (\S+) [0-9a-f]+ `)
)

// TestHistPProf has go tool pprof read a profile: stacks, values and units, lines of source and files are right.
func TestHistPProf(t *testing.T) {
	file, calls := profileOf(t, "pprof", "r:leaf leaf ns=$duration v=$arg1", "keys=common_stacktrace:vals=v,ns")
	out, err := exec.Command("go", "tool", "pprof", "-raw", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	raw := string(out)
	if !strings.Contains(raw, "\nhits/count v/count ns/nanoseconds[dflt]\n") {
		t.Errorf("values: %s", raw)
	}
	names, mapped := map[string]string{}, map[string]bool{}
	for _, m := range rawLocation.FindAllStringSubmatch(raw, -1) {
		names[m[1]] = m[3]
		mapped[m[2]] = true
		if m[3] == "direct" && (!strings.HasSuffix(m[4], "/stackkeys.c") || m[5] != "16") {
			t.Errorf("direct calls leaf at %s:%s", m[4], m[5])
		}
	}
	maps := rawMapping.FindAllStringSubmatch(raw, -1)
	if len(maps) < 2 || !strings.HasSuffix(maps[0][2], "/stackkeys") || !mapped["1"] || len(mapped) < 2 {
		t.Errorf("mappings %v", maps)
	}
	got, ns, args := map[string]uint64{}, uint64(0), uint64(0)
	for _, m := range rawSample.FindAllStringSubmatch(raw, -1) {
		var at []string
		for id := range strings.FieldsSeq(m[4]) {
			at = append(at, names[id])
		}
		if len(at) < 2 || at[0] != "leaf" {
			t.Fatalf("%q: %v", m[0], at)
		}
		var v [3]uint64
		for i := range v {
			v[i], _ = strconv.ParseUint(m[1+i], 10, 64)
		}
		got[at[1]] += v[0]
		args, ns = args+v[1], ns+v[2]
	}
	for fn, n := range calls {
		if got[fn] != n {
			t.Errorf("%d by %s, and the program has counted %d", got[fn], fn, n)
		}
	}
	// Of each of 2 threads and 3000 rounds: direct, either and down call leaf once each, with the number of the round; the handler with 0.
	if want := uint64(2 * 3 * 3000 * 2999 / 2); args != want || ns == 0 {
		t.Errorf("arguments sum up to %d, want %d; %d ns", args, want, ns)
	}
}
