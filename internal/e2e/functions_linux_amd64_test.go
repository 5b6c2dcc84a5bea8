package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestFunctionEvents has functions of a pattern as one event: entries and returns, in lines, sums and a histogram, beside the program's own
// counts.
func TestFunctionEvents(t *testing.T) {
	p := program(t, "work")
	out := tempFile(t, "trace")
	s := trace(t, p.PID, "-o", out, "f:in f_s[mti]* n=$arg1", "f:out f_s[mti]*%return v=$retval:u64", "f f_six $retval")
	n := p.Counts("go 500")
	r := s.end()
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	want := n["f_str"] + n["f_six"] + n["f_small"]
	r.counted(t, "in", want, "jump")
	r.counted(t, "out", want, "jump")
	r.counted(t, "f_six__exit", n["f_six"], "jump")
	in, back := map[string]uint64{}, map[string]uint64{}
	for _, l := range linesOf(string(b)) {
		switch {
		case l.event == "in":
			function, _, _ := strings.Cut(l.place, "+")
			in[function]++
		case l.event == "out":
			_, function, _ := strings.Cut(l.place, "<- ")
			back[function]++
		}
	}
	for _, f := range []string{"f_str", "f_six", "f_small"} {
		if in[f] != n[f] || back[f] != n[f] || n[f] == 0 {
			t.Errorf("%s: %d entries, %d returns, the program counted %d", f, in[f], back[f], n[f])
		}
	}
	hist := tempFile(t, "hist")
	s = &session{t: t, pid: p.PID, before: stateOf(t, p.PID)}
	s.start(command(t, "hist", "-p", fmt.Sprint(p.PID), "-o", hist, "f:in f_s[mti]* n=$arg1:u64", "keys=common_pid"))
	s.armed()
	before := n
	n = p.Counts("go 500")
	s.end()
	if b, err = os.ReadFile(hist); err != nil {
		t.Fatal(err)
	}
	want = n["f_str"] + n["f_six"] + n["f_small"] - before["f_str"] - before["f_six"] - before["f_small"]
	if hs := histogramsIn(t, string(b)); len(hs) != 1 || hs[0].total != want {
		t.Errorf("%v, want one histogram of %d hits:\n%s", hs, want, b)
	}
}
