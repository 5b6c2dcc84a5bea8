package e2e

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/testprog"
)

// The runtime's functions that every goroutine and every allocation passes, while the numbers of the program are compared.
const (
	newproc = "p:newproc runtime.newproc1 on=@main.Gate:u32"
	malloc  = "p:malloc runtime.mallocgc size=$arg1:u64 on=@main.Gate:u32"
	status  = "p:status runtime.casgstatus old=$arg2:u32 new=$arg3:u32 on=@main.Gate:u32"
)

// What a goroutine's status is (runtime2.go of Go 1.26).
const runnable, running, dead = "1", "2", "6"

// own is how many goroutines the runtime may have for itself: each may change its status while the comparison begins and ends.
const own = 20

var transition = regexp.MustCompile(`(?m)^\{ old: +(\d+), new: +(\d+) \} hitcount: +(\d+)$`)

// TestGoCrowd has the functions counted that 10,000 goroutines are created by, allocate by, and go on and wait by: as many as runtime/metrics says. In a
// long run it lasts ten minutes. Then a budget disables the busiest one, and the others go on.
func TestGoCrowd(t *testing.T) {
	const size = 10_000
	p := testprog.Start(t, testprog.Build(t, "gocrowd"), fmt.Sprint(size))
	before := stateOf(t, p.PID)
	counts := joins(t, p, 2, "trace", "--stat", "--counters", newproc, "-f", "on == 1", malloc, "-f", "on == 1 && size != 0")
	changes := joins(t, p, 1, "hist", status, "keys=old,new if on == 1")
	var created, allocated, slack uint64
	start := time.Now()
	for first := true; first || time.Since(start) < lasting(0); first = false {
		n := right(t, p, "go 3")
		created, allocated, slack = created+n["created"], allocated+n["allocated"], slack+n["slack"]
	}
	counts.interrupt()
	r := counts.wait()
	changes.interrupt()
	h := changes.wait()
	if c := r.totals["newproc"]; c.hits-c.filtered != created || c.missed+c.lost != 0 || created < 3*size {
		t.Errorf("%+v; the program created %d", c, created)
	}
	if c := r.totals["malloc"]; c.hits-c.filtered < allocated || c.hits-c.filtered > allocated+slack || c.missed+c.lost != 0 || slack > allocated/10_000 {
		t.Errorf("%+v; the program allocated %d and %d while the gate was moved", c, allocated, slack)
	}
	by, into, out := map[string]uint64{}, uint64(0), uint64(0)
	for _, m := range transition.FindAllStringSubmatch(h.stdout, -1) {
		n := number(t, m[3])
		by[m[1]+" to "+m[2]] = n
		if m[1] == running {
			out += n
		}
		if m[2] == running {
			into += n
		}
	}
	if h.code != 0 || by[dead+" to "+runnable] != created || by[running+" to "+dead] != created || max(into, out)-min(into, out) > own || into < 2*created {
		t.Errorf("%d were created: %v, %v", created, by, h.outcome)
	}
	t.Logf("%d goroutines, %d objects and %d while the gate was moved, %v changes of status in %v", created, allocated, slack, by, time.Since(start))

	stays := joins(t, p, 1, "trace", "--stat", newproc)
	s := joins(t, p, 1, "trace", "--stat", budgetFlag, status)
	n := right(t, p, "go 1")
	toldDisabled(t, s, "status")
	n2 := right(t, p, "go 1")
	s.interrupt()
	if _, disabled := overs(s.wait().stderr); disabled["status"] == "" {
		t.Errorf("not disabled: %v", s.errs.String())
	}
	stays.interrupt()
	if r := stays.wait(); r.totals["newproc"].hits < n["created"]+n2["created"] {
		t.Errorf("%v: %d and %d were created", r.totals, n["created"], n2["created"])
	}
	before.same(t)
	p.Quit(nil)
}
