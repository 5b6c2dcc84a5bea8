package e2e

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
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
	start, commands := time.Now(), 0
	for first := true; first || time.Since(start) < lasting(0); first = false {
		n := right(t, p, "go 3")
		created, allocated, slack = created+n["created"], allocated+n["allocated"], slack+n["slack"]
		commands++
	}
	counts.interrupt()
	r := counts.wait()
	changes.interrupt()
	h := changes.wait()
	for e, want := range map[string]uint64{"newproc": created, "malloc": allocated} {
		if c := r.totals[e]; c.hits-c.filtered < want || c.hits-c.filtered > want+slack || c.missed+c.lost != 0 || created < 3*size || slack > allocated/1000 {
			t.Errorf("%s: %+v; the program: %d, and %d while the gate was moved", e, c, want, slack)
		}
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
	edges := uint64(2 * runtime.NumCPU() * commands) // a goroutine may run on each CPU when the gate is moved
	if h.code != 0 || by[dead+" to "+runnable]-created > slack || by[running+" to "+dead]-created > slack || max(into, out)-min(into, out) > edges || into < 2*created {
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

// TestGoroutinesShareInstances has a return probe in what 20,000 goroutines run one after another: their calls take the instances of those that have
// ended, whose memory the program has touched before. Each page of the table that it touches first costs it two faults.
func TestGoroutinesShareInstances(t *testing.T) {
	p := testprog.Start(t, testprog.Build(t, "gocrowd"), "4")
	s := trace(t, p.PID, "--stat", "--counters", "r:child main.member.func1")
	right(t, p, "go 100")
	before := faults(t, p.PID)
	right(t, p, "go 5000")
	if n := faults(t, p.PID) - before; n > 2000 {
		t.Errorf("%d page faults in %d calls of as many goroutines", n, 5000*4)
	}
	s.end().counted(t, "child", 5100*4, "jump")
}

// faults are the page faults of a process that took no file's page from the disk.
func faults(t *testing.T, pid int) uint64 {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return number(t, strings.Fields(rest)[7]) // minflt, the field 10
}
