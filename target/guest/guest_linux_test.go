package guest_test

import (
	"crypto/md5"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// probed is a guest with probes.
type probed struct {
	testing.TB
	g    *testguest.Guest
	m    *qemu.Machine
	t    *guest.Target
	core *kprobes.Core
	hits []hit.Hit
}

// attach attaches to a guest.
func attach(tb testing.TB, g *testguest.Guest, o *guest.Options) *probed {
	tb.Helper()
	return attachBy(tb, g, func(m *qemu.Machine) (*guest.Target, error) { return guest.Attach(m, o) })
}

// attachBy is attach with another way to make the machine's kernel a target.
func attachBy(tb testing.TB, g *testguest.Guest, by func(*qemu.Machine) (*guest.Target, error)) *probed {
	tb.Helper()
	m, err := qemu.Open(g.Spec, nil)
	if err != nil {
		tb.Fatal(err)
	}
	t, err := by(m)
	if err != nil {
		tb.Fatal(errors.Join(err, m.Close()))
	}
	core, err := kprobes.Open(t, nil)
	if err != nil {
		tb.Fatal(err)
	}
	p := &probed{TB: tb, g: g, m: m, t: t, core: core}
	tb.Cleanup(p.close)
	return p
}

// close takes everything out.
func (p *probed) close() {
	if p.m == nil {
		return
	}
	if err := p.core.Close(p.take); err != nil {
		p.Error(err)
	}
	if err := p.m.Close(); err != nil {
		p.Error(err)
	}
	p.m = nil
	for _, l := range p.g.Trouble() {
		p.Errorf("the guest's console: %s", l)
	}
}

// add arms definitions.
func (p *probed) add(o *kprobes.AddOptions, defs ...string) []*kprobes.Event {
	p.Helper()
	evs, err := p.tryAdd(o, defs...)
	if err != nil {
		p.Fatal(err)
	}
	return evs
}

func (p *probed) tryAdd(o *kprobes.AddOptions, defs ...string) ([]*kprobes.Event, error) {
	p.Helper()
	var ds []*event.Def
	for _, s := range defs {
		d, err := event.Parse(s)
		if err != nil {
			return nil, err
		}
		ds = append(ds, d)
	}
	return p.core.Add(ds, o)
}

// Symbol finds names for lines.
func (p *probed) Symbol(addr uint64) (fetch.Sym, bool) { return p.core.Symbol(addr) }

// Comm is never asked: records have the name.
func (p *probed) Comm(int) string { return "?" }

// take keeps a hit.
func (p *probed) take(h *hit.Hit) {
	k := *h
	k.Rec = append([]byte(nil), h.Rec...)
	p.hits = append(p.hits, k)
}

// poll reads what there is, until nothing more has come for a moment: records are held back
// for a few milliseconds to be put in order.
func (p *probed) poll() { p.settle(p.take) }

// settle is poll for another function that takes hits.
func (p *probed) settle(take func(*hit.Hit)) {
	for quiet := 0; quiet < 20; quiet++ {
		if p.core.Poll(take) > 0 {
			quiet = 0
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// lines are the hits as text.
func (p *probed) lines() []string {
	pr := hit.Printer{Names: p}
	out := make([]string, len(p.hits))
	for i := range p.hits {
		out[i] = strings.TrimSuffix(string(pr.Text(nil, &p.hits[i])), "\n")
	}
	return out
}

// counts checks what an event has counted.
func (p *probed) counts(e *kprobes.Event, hits uint64) {
	p.Helper()
	if n := p.core.Counts(e); n.Hits != hits || n.Lost != 0 || n.Missed != 0 || n.Read+counted(e, n) != hits {
		p.Errorf("%s: %+v, want %d hits", e.Name, n, hits)
	}
}

// counted are the hits that were only counted.
func counted(e *kprobes.Event, n kprobes.Counts) uint64 {
	if engine.OfEvent(e).Prog != nil {
		return 0
	}
	return n.Hits
}

// Files of the guest's own tracer.
const (
	tracing = "/sys/kernel/tracing/"
	own     = tracing + "events/kprobes/"
)

// ownEvents gives definitions to the guest's own kprobe_events and enables them. The events
// are removed by remove, and with the test.
func ownEvents(t testing.TB, g *testguest.Guest, defs ...string) (remove func()) {
	t.Helper()
	var once sync.Once // a function of OnceFunc would panic, with nothing to say, where a test ended inside it
	remove = func() {
		once.Do(func() {
			g.Write(own+"enable", "0", true)
			g.Write(tracing+"trace", "", true)
			if e := g.Write(tracing+"kprobe_events", "", true); e != 0 {
				t.Errorf("the guest's own events stay: %v", e)
			}
		})
	}
	t.Cleanup(remove)
	for _, d := range defs {
		if e := g.Write(tracing+"kprobe_events", d+"\n", false); e != 0 {
			t.Fatalf("the guest's kprobe_events: %q: %v", d, e)
		}
	}
	if e := g.Write(own+"enable", "1", true); e != 0 {
		t.Fatal(e)
	}
	return remove
}

// normal takes the time and the context out of lines of a trace file. What is left are task,
// CPU, event, place and values; not where a function returns to: while the guest's own return
// probe is at work that is its trampoline.
const normal = `s/^ *//; s/\] [^ ]{4,8} +[0-9.]+: /] /; s/\([^ ]+ <- /(<- /`

// ownLines leaves the normal lines of one process in the guest's own trace in a file there, and
// gives their hash and number.
func ownLines(g *testguest.Guest, pid int) string {
	return g.Shell(fmt.Sprintf(`grep -E '^ *hit-%d +\[' %strace | sed -E '%s' >/tmp/lines; md5sum </tmp/lines; wc -l </tmp/lines`, pid, tracing, normal))
}

var (
	timeAndContext = regexp.MustCompile(`\] [^ ]{4,8} +[0-9.]+: `)
	caller         = regexp.MustCompile(`\([^ ]+ <- `)
)

// normalLines are our normal lines of one process.
func (p *probed) normalLines(pid int) string {
	var b strings.Builder
	for _, l := range p.lines() {
		l = caller.ReplaceAllString(timeAndContext.ReplaceAllString(strings.TrimLeft(l, " "), "] "), "(<- ")
		if strings.HasPrefix(l, fmt.Sprintf("hit-%d ", pid)) {
			b.WriteString(l + "\n")
		}
	}
	return b.String()
}

// sameLines compares the lines of one process with the guest's own.
func (p *probed) sameLines(pid, want int) {
	p.Helper()
	ours := p.normalLines(pid)
	n := strings.Count(ours, "\n")
	if its := ownLines(p.g, pid); its == fmt.Sprintf("%x  -\n%d\n", md5.Sum([]byte(ours)), n) && n == want {
		return
	}
	its := strings.Split(p.g.Shell("cat /tmp/lines"), "\n")
	for i, l := range strings.Split(ours, "\n") {
		if i >= len(its) || its[i] != l {
			p.Errorf("%d lines of ours, %d of the guest's own, want %d. Line %d is\n%s\nits own\n%s", n, len(its)-1, want, i+1, l, slices.Concat(its, []string{"", ""})[min(i, len(its))])
			return
		}
	}
	p.Errorf("%d lines of ours, %d of the guest's own, want %d", n, len(its)-1, want)
}

// documents are the examples of Documentation/trace/kprobetrace.rst, with the registers and types of x86-64.
var documents = []string{
	"p:myprobe do_sys_openat2 dfd=%di:s32 filename=+0(%si):ustring flags=+0(%dx):x64 mode=+8(%dx):x64",
	"r:myretprobe do_sys_openat2 $retval:s32",
}

// TestSameAsKernel compares every line of ours with that of the guest's own kprobe events,
// for the same calls at the same time.
func TestSameAsKernel(t *testing.T) {
	machines := []testguest.Options{{CPUs: 2}}
	calls := 2000
	if os.Getenv("KPROBES_E2E_LONG") != "" {
		machines = []testguest.Options{{CPUs: 1}, {CPUs: 2}, {CPUs: 1, CPUModel: "max"}, {CPUs: 2, CPUModel: "max"}}
		calls = 50000
	}
	for _, o := range machines {
		t.Run(fmt.Sprintf("%d CPUs %s", o.CPUs, o.CPUModel), func(t *testing.T) {
			g := testguest.Shared(t)
			if o.CPUs != 2 || o.CPUModel != "" {
				g = testguest.Boot(t, &o)
			}
			for _, low := range []bool{false, true} {
				n := calls
				if low {
					n = 200 // what a ring of 32 KB holds
				}
				t.Run(fmt.Sprint("low ", low), func(t *testing.T) { sameAsKernel(t, g, n, o.CPUs, low) })
			}
		})
	}
}

func sameAsKernel(t *testing.T, g *testguest.Guest, calls, cpus int, low bool) {
	p := attach(t, g, &guest.Options{Low: low})
	evs := p.add(nil, documents...)
	ownEvents(t, g, documents...)
	g.Write(tracing+"buffer_size_kb", "40000", true)
	defer g.Write(tracing+"buffer_size_kb", "1400", true)
	stop, done := make(chan bool), make(chan bool)
	go func() { // a small ring must be read while it is written
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				p.core.Poll(p.take)
				time.Sleep(100 * time.Microsecond)
			}
		}
	}()
	var pids []int
	for i := range cpus {
		c := g.Hit("openname", calls/cpus, i, fmt.Sprintf("/nosuch/file-%d", i), "577", "420")
		if int(c.Calls) != calls/cpus {
			t.Fatalf("the program made %d calls", c.Calls)
		}
		pids = append(pids, c.PID)
	}
	close(stop)
	<-done
	p.poll()
	for _, pid := range pids {
		p.sameLines(pid, 2*(calls/cpus))
	}
	for _, e := range evs {
		tactic, why := e.Form()
		if n := p.core.Counts(e); n.Lost+n.Missed != 0 || n.Hits < uint64(calls) || tactic != "jump" {
			t.Errorf("low %v: %s: %+v, tactic %s: %v", low, e.Name, n, tactic, why)
		}
	}
	p.close()
}

// TestTime compares times and contexts with those of the guest's own events. The calls are spread over programs,
// and so over ticks: in an emulated guest a vCPU may be stopped between the two clocks that a tick writes down, and
// until the next tick the guest's own clock stands still.
func TestTime(t *testing.T) {
	g := testguest.Shared(t)
	p := attach(t, g, nil)
	p.add(nil, "p:look do_sys_openat2")
	ownEvents(t, g, "p:look do_sys_openat2")
	const programs, each = 10, 5
	var pids []string
	for range programs {
		c := g.Hit("open", each, 0)
		pids = append(pids, strconv.Itoa(c.PID))
		p.poll()
	}
	both := regexp.MustCompile(fmt.Sprintf(`hit-(?:%s) +\[\d+\] (.{5}) +([0-9.]+): look`, strings.Join(pids, "|")))
	ours := both.FindAllStringSubmatch(strings.Join(p.lines(), "\n"), -1)
	text, err := g.Read(tracing + "trace")
	if err != nil {
		t.Fatal(err)
	}
	its := both.FindAllStringSubmatch(text, -1)
	if len(ours) != programs*each || len(its) != programs*each {
		t.Fatalf("%d lines of ours, %d of its own:\n%s", len(ours), len(its), text)
	}
	near, same := 0, 0 // the two look at different moments, between which a vCPU may have to wait
	for i := range ours {
		a, err1 := strconv.ParseFloat(ours[i][2], 64)
		b, err2 := strconv.ParseFloat(its[i][2], 64)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if math.Abs(a-b) < 0.05 {
			near++
		}
		if ours[i][1] == its[i][1] { // else a reschedule has become due
			same++
		}
	}
	if near < programs*each*2/3 || same < programs*each*2/3 {
		t.Errorf("%d times of %d are near the guest's own, %d contexts are the same: %q, the guest's own %q", near, len(ours), same, ours, its)
	}
}

// TestCounters counts without records, on functions of the network too.
func TestCounters(t *testing.T) {
	g := testguest.Shared(t)
	p := attach(t, g, nil)
	ownEvents(t, g, "p:tcp tcp_v4_rcv", "p:ppid __x64_sys_getppid")
	evs := p.add(&kprobes.AddOptions{Count: true}, "p:ppid __x64_sys_getppid", "p:tcp tcp_v4_rcv", "p:inside __x64_sys_getppid+11")
	g.Hit("getppid", 20000, 0)
	g.Hit("getppid", 20000, 1)
	g.Hit("tcp", 500, 1)
	text, err := g.Read(tracing + "kprobe_profile")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range evs[:2] {
		n := regexp.MustCompile(` ` + e.Name + ` +(\d+) +0\n`).FindStringSubmatch(text)
		if n == nil {
			t.Fatalf("%s: no line in\n%s", e.Name, text)
		}
		want, err := strconv.ParseUint(n[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		p.counts(e, want)
		if want < 500 {
			t.Errorf("%s: %d hits", e.Name, want)
		}
	}
}
