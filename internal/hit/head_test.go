package hit

import (
	"strings"
	"testing"
)

// TestHeadTGID has the head of a trace, and what lines begin with, with the column of processes as Linux 6.12 prints it.
func TestHeadTGID(t *testing.T) {
	p := Printer{Names: comms{name: "comm"}, TGID: func(tid int) int { return tid &^ 1 }}
	const want = `# tracer: nop
#
# entries-in-buffer/entries-written: 1/2   #P:3
#
#                                          _-----=> irqs-off/BH-disabled
#                                         / _----=> need-resched
#                                        | / _---=> hardirq/softirq
#                                        || / _--=> preempt-depth
#                                        ||| / _-=> migrate-disable
#                                        |||| /     delay
#           TASK-PID       TGID    CPU#  |||||  TIMESTAMP  FUNCTION
#              | |           |       |   |||||     |         |
`
	if got := p.Header(1, 2, 3); got != want {
		t.Errorf("head\n%swant\n%s", got, want)
	}
	for tid, want := range map[int]string{
		4001: "            comm-4001    (   4000) [002] .....     0.000001: e: ",
		1:    "            comm-1       (-------) [002] .....     0.000001: e: ",
	} {
		if got := string(p.Head(nil, &Hit{Event: &Event{}, TID: tid, CPU: 2, Nanos: 1000}, "e")); got != want {
			t.Errorf("line %q, want %q", got, want)
		}
	}
	p.NoFlags = true
	if got := p.Header(1, 1, 1); !strings.HasSuffix(got, "#           TASK-PID       TGID    CPU#     TIMESTAMP  FUNCTION\n#              | |           |       |         |         |\n") {
		t.Errorf("head without flags\n%s", got)
	}
}

// TestAddresses has addresses behind symbols.
func TestAddresses(t *testing.T) {
	p := Printer{Names: testNames{}, Addresses: true}
	got := string(p.Text(nil, &Hit{Event: &Event{Name: "e", Addr: 0x1000}}))
	if !strings.HasSuffix(got, " <0000000000001000>)\n") {
		t.Errorf("line %q", got)
	}
}
