package hit

import (
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/fetch"
)

// TestKernelHit prints a hit whose record names its task and tells the state of its CPU.
func TestKernelHit(t *testing.T) {
	prog := program(t, "p serve fd=%di:s32 name=$comm", fetch.PointEntry)
	h := Hit{
		Event: &Event{Group: "g", Name: "in", Addr: 0x1004, Prog: prog, ArgsOff: 40}, Nanos: 12_345_678_999, CPU: 3, TID: 77,
		Comm: "kworker/0:1", Context: [8]byte{'d', '.', 'h', '1', '.'}, Rec: record(0, 0, 0, 5),
	}
	p := Printer{Names: testNames{}}
	const text = "     kworker/0:1-77      [003] d.h1.    12.345678: in: (serve+0x4/0x20) fd=5 name=\"kworker/0:1\"\n"
	if got := string(p.Text(nil, &h)); got != text {
		t.Errorf("have %q\nwant %q", got, text)
	}
	got := string(p.JSON(nil, &h))
	for _, want := range []string{`"comm":"kworker/0:1"`, `"flags":"d.h1."`, `"fd":5`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s has no %s", got, want)
		}
	}
	h.Context = [8]byte{'d', 'N', 'h', '1'} // as of Linux 5.10
	if got := string(p.Text(nil, &h)); !strings.Contains(got, " [003] dNh1    12.345678: ") {
		t.Errorf("with four columns: %q", got)
	}
	h.Comm, h.Context = "", [8]byte{}
	if got := string(p.JSON(nil, &h)); strings.Contains(got, "flags") || !strings.Contains(got, `"comm":"server"`) {
		t.Errorf("a program's hit: %s", got)
	}
	if got := string(p.Text(nil, &h)); !strings.Contains(got, "server-77      [003] ..... ") {
		t.Errorf("a program's hit: %s", got)
	}
}
