package guest_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"kprobes.dev/kprobes"
	gk "kprobes.dev/kprobes/internal/guest/kernel"
	"kprobes.dev/kprobes/internal/guestkit"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// Packages of Debian's kernels.
const (
	plain    = "linux-image-amd64"
	realtime = "linux-image-rt-amd64"
)

// otherKernel is a kernel, and a machine for it, other than those of all other tests.
type otherKernel struct {
	name    string
	o       testguest.Options
	locked  bool // its own tracer is locked (lockdown=confidentiality)
	depth   bool // its own lines count the depth that its handlers add: until 5.12, where it is counted
	inShort bool // booted in short runs too
	newer   bool // it has histograms, definitions (f) and names of arguments that came with 6.3 to 6.9; they are compared, and triggers
}

// otherKernels are the kernels that Debian's archive has, oldest first. PREEMPT_RT takes the interrupt
// of an emulated serial port for one that nobody handles, and turns it off unless told not to
// (noirqdebug).
var otherKernels = []otherKernel{
	{name: "5.10", o: testguest.Options{Kernel: guestkit.Build{Package: guestkit.Cloud.Package, Suite: "bullseye"}, Append: "nokaslr"}},
	{name: "5.10 rt", o: testguest.Options{Kernel: guestkit.Build{Package: realtime, Suite: "bullseye"}, Append: "noirqdebug"}, depth: true},
	{name: "6.1 plain", o: testguest.Options{Kernel: guestkit.Build{Package: plain, Suite: "bookworm"}, CPUs: 4}},
	{name: "6.1 rt", o: testguest.Options{Kernel: guestkit.Build{Package: realtime, Suite: "bookworm"}, Append: "noirqdebug"}},
	{name: "6.12", o: testguest.Options{Kernel: guestkit.Build{Package: guestkit.Cloud.Package, Suite: "trixie"}}, inShort: true, newer: true},
	{name: "6.12 la57 pti", o: testguest.Options{Kernel: guestkit.Build{Package: guestkit.Cloud.Package, Suite: "trixie"}, CPUModel: "qemu64,+la57,+smep,+smap,-cx16", Append: "pti=on"}},
	{name: "6.12 lockdown", o: testguest.Options{Kernel: guestkit.Build{Package: guestkit.Cloud.Package, Suite: "trixie"}, Append: "lsm=lockdown lockdown=confidentiality"}, locked: true},
	{name: "unstable", o: testguest.Options{Kernel: guestkit.Build{Package: guestkit.Cloud.Package, Suite: "sid"}}},
	{name: "newest", o: testguest.Options{Kernel: guestkit.Build{Package: guestkit.Cloud.Package, Suite: "trixie-backports"}, CPUs: 4}},
}

// TestKernels probes the kernels that Debian's archive has beside their own probes; in a long run through a reboot, in
// calls that are left, and with all of their functions armed at once too.
func TestKernels(t *testing.T) {
	for _, c := range otherKernels {
		t.Run(c.name, func(t *testing.T) {
			long := os.Getenv("KPROBES_E2E_LONG") != ""
			if !c.inShort && !long {
				t.Skip("booted in long runs")
			}
			c.o.Memory = 512
			if long {
				c.o.Ring = 256
			}
			g := testguest.Boot(t, &c.o)
			t.Log(strings.TrimSpace(g.Shell("cat /proc/version")))
			checkKernel(t, g, &c)
			checkModules(t, g)
			if c.newer {
				compareHistograms(t, g, histNewer, histNewerBad)
				compareNames(t, g)
				compareFunctionEvents(t, g)
				compareTriggers(t, g)
				compareTriggerTexts(t, g)
			}
			if !long {
				return
			}
			g.Reboot()
			checkKernel(t, g, &c)
			p := attach(t, g, nil)
			callsLeft(p)
			p.close()
			someArmed(t, g, true, 25000, "p *")
		})
	}
}

// checkKernel probes a guest's kernel and compares with its own tracer.
func checkKernel(t *testing.T, g *testguest.Guest, o *otherKernel) {
	t.Helper()
	const calls = 300
	p := attach(t, g, nil)
	defer p.close()
	checkQueued(p)
	if !o.locked {
		checkTraced(p)
		defer ownEvents(t, g, documents...)()
	}
	evs := p.add(nil, documents...)
	count := p.add(&kprobes.AddOptions{Count: true}, "p:in vfs_read", "p:count __x64_sys_getppid", "r:out __x64_sys_getppid")
	c := g.Hit("openname", calls, 1, "/no/such", "0", "0")
	g.Hit("getppid", calls, 0)
	p.poll()
	if n := strings.Count(p.normalLines(c.PID), "\n"); n != 2*calls {
		t.Errorf("%d lines of %d calls with two probes", n, calls)
	}
	for _, e := range evs {
		if n := p.core.Counts(e); n.Hits < calls || n.Lost+n.Missed+n.Unwound != 0 {
			t.Errorf("%s: %+v", e.Name, n)
		}
	}
	for _, e := range count[1:] {
		p.counts(e, calls)
	}
	if o.locked {
		return
	}
	p.sameLines(c.PID, 2*calls)
	checkContext(p, c.PID, o.depth)
}

// checkModules loads modules of C: handlers of all kinds, and ones that go wrong.
func checkModules(t *testing.T, g *testguest.Guest) {
	t.Helper()
	m := attachModules(t, g)
	defer m.close()
	m.insert("testdata/kinds.c")
	const calls = 500
	g.Hit("getppid", calls, 0)
	g.Hit("chown", calls, 1)
	m.remove("kinds")
	if lines, want := m.log(), fmt.Sprintf("simple=%d behind=%d ", calls, calls); len(lines) != 2 || !strings.HasPrefix(lines[1], want) || !strings.HasSuffix(lines[1], " wrong=0 missed=0") {
		t.Errorf("the log: %q, want %q", lines, want)
	}
	for _, how := range faults {
		m.faults(how, "a fault in a handler")
	}
}

// checkQueued has two threads share a CPU: the one that waits for its turn is not taken for one that runs.
func checkQueued(p *probed) {
	p.Helper()
	for range 2 {
		defer p.g.Background("/bin/hit", "getppid", "1000000000", "0")()
	}
	p.eventually("of two threads that share a CPU one runs, and one waits", func() bool {
		runs := map[bool]int{}
		if err := p.m.Stopped(func(*qemu.Stop) error {
			return p.t.Kernel().Tasks(func(t gk.Task) bool {
				if t.Comm == "hit" {
					runs[t.CPU >= 0]++
				}
				return true
			})
		}); err != nil {
			p.Fatal(err)
		}
		return runs[true] == 1 && runs[false] == 1
	})
}

// checkTraced holds what is taken for traceable to what the guest's own tracer says.
func checkTraced(p *probed) {
	p.Helper()
	places, err := p.t.Kernel().Places()
	if err != nil {
		p.Fatal(err)
	}
	size := map[string]uint64{} // of functions whose name no other one has
	syms := p.t.Kernel().Symbols()
	for i, s := range syms[:len(syms)-1] {
		_, twice := size[s.Name]
		if size[s.Name] = syms[i+1].Addr - s.Addr; twice {
			size[s.Name] = 0
		}
	}
	n, bad := 0, 0
	for _, line := range strings.Split(p.g.Shell("cat "+tracing+"available_filter_functions"), "\n") {
		name, module, _ := strings.Cut(line, " ")
		at, ok := p.t.Kernel().Addr(name)
		if !ok || module != "" || size[name] == 0 {
			continue
		}
		n++
		if !places.Traced(at, size[name]) {
			if bad++; bad < 5 {
				p.Errorf("%s at 0x%x is taken for notrace", name, at)
			}
		}
	}
	if n < 20000 || bad > 0 {
		p.Errorf("of %d functions that the guest's tracer knows %d are taken for notrace", n, bad)
	}
}

var contextOf = regexp.MustCompile(`(?m)^ *hit-(\d+) +\[\d+\] (\S+) +\d+\.\d+: myprobe:`)

// checkContext compares what lines of entries have behind the CPU with the guest's own: as many
// columns, and the same in them but where another thread was to run at one of the two moments. (Its
// own return probes tell of the code that they return through.) depth is otherKernel's.
func checkContext(p *probed, pid int, depth bool) {
	p.Helper()
	contexts := func(text string) (out []string) {
		for _, f := range contextOf.FindAllStringSubmatch(text, -1) {
			if f[1] == fmt.Sprint(pid) {
				out = append(out, f[2])
			}
		}
		return out
	}
	ours, theirs := contexts(strings.Join(p.lines(), "\n")), contexts(p.g.Shell("cat "+tracing+"trace"))
	if len(ours) != len(theirs) || len(ours) == 0 {
		p.Fatalf("%d lines of ours, %d of the guest's own", len(ours), len(theirs))
	}
	same := 0
	for i := range ours {
		if len(ours[i]) != len(theirs[i]) {
			p.Fatalf("context %q, the guest's own %q", ours[i], theirs[i])
		}
		if ours[i] == theirs[i] || depth && ours[i] == strings.Replace(theirs[i], "1", ".", 1) {
			same++
		}
	}
	if same*10 < len(ours)*9 {
		p.Errorf("of %d contexts %d are the same; the first are %q and %q", len(ours), same, ours[0], theirs[0])
	}
}
