package guest_test

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// TestReturns compares where functions return to with what objects of the kernel call them.
func TestReturns(t *testing.T) {
	p := attach(t, testguest.Shared(t), nil)
	evs := p.add(nil, "r:back do_sys_openat2 $retval:s32 $arg1:s32", "r:read vfs_read $retval")
	c := p.g.Hit("open", 100, 0)
	d := p.g.Hit("read", 100, 1)
	p.poll()
	opens, reads := 0, 0
	for _, l := range p.lines() {
		switch {
		case strings.Contains(l, fmt.Sprintf("hit-%d ", c.PID)) && strings.Contains(l, "back:"):
			opens++
			if !strings.HasSuffix(l, "back: (__x64_sys_openat+0x6a/0xa0 <- do_sys_openat2) arg1=-2 arg2=-100") {
				t.Fatal(l)
			}
		case strings.Contains(l, fmt.Sprintf("hit-%d ", d.PID)) && strings.Contains(l, "read:"):
			if strings.HasSuffix(l, "<- vfs_read) arg1=1") {
				reads++
			}
		}
	}
	if opens != 100 || reads != 100 {
		t.Errorf("%d returns of opens, %d of reads that read a byte", opens, reads)
	}
	for _, e := range evs {
		if n := p.core.Counts(e); n.Lost+n.Missed+n.Unwound != 0 {
			t.Errorf("%s: %+v", e.Name, n)
		}
	}
}

// TestRefused has places at which nothing may stand.
func TestRefused(t *testing.T) {
	p := attach(t, testguest.Shared(t), nil)
	for _, c := range []struct{ def, why string }{
		{"p exc_page_fault", "blacklist"},
		{"p entry_SYSCALL_64", "blacklist"},
		{"p no_such_function", "no_such_function"},
		{"p vfs_read+3", "inside the instruction"},
		{"p vfs_read+0x10000000", "behind the end"},
		{"p get_kprobe", "blacklist"},
		{"p nosuch:vfs_read", "nosuch"},
		{"p __SCT__preempt_schedule", "static call"},
		{"p __x86_indirect_thunk_rax", "thunk"},
		{"p native_usergs_sysret64", ""},
		{"p vfs_read a=$arg1:gostring", "Go strings"},
		{"r vfs_read+11", "entry"},
		{"p copy_user_generic_string", ""},
	} {
		_, err := p.tryAdd(nil, c.def)
		switch {
		case err == nil:
			t.Errorf("%s: accepted", c.def)
		case !strings.Contains(err.Error(), c.why) || !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EILSEQ):
			t.Errorf("%s: %v", c.def, err)
		}
	}
	if p.m.Pauses() != nil && len(p.m.Pauses()) > 2 {
		t.Errorf("the guest was stopped %d times", len(p.m.Pauses()))
	}
}

// TestBehindEnd names a function's entry by the function before it and that one's size, as the guest's
// own kprobes take it.
func TestBehindEnd(t *testing.T) {
	g := testguest.Shared(t)
	p := attach(t, g, nil)
	at, ok := p.t.Kernel().Addr("__x64_sys_getppid")
	before, found := p.t.Space().SymbolAt(at - 1)
	here, _ := p.t.Space().SymbolAt(at)
	if !ok || !found || at-before.Size != at-1-before.Off {
		t.Fatalf("before 0x%x: %+v", at, before)
	}
	def := fmt.Sprintf("p:past %s+0x%x", before.Name, before.Size)
	ownEvents(t, g, def)
	ev := p.add(nil, def)
	c := g.Hit("getppid", 50, 0)
	p.poll()
	p.counts(ev[0], 50)
	if o := (ownTracer{t, g}).hitsOf("past"); o != "50" {
		t.Errorf("%s hits of the guest's own", o)
	}
	for _, l := range p.lines() {
		if !strings.Contains(l, fmt.Sprintf("hit-%d ", c.PID)) || !strings.Contains(l, "past: ("+here.Name+"+0x0/") {
			t.Fatal(l)
		}
	}
}

// TestRefusedTables tries an instruction of each of the kernel's tables.
func TestRefusedTables(t *testing.T) {
	p := attach(t, testguest.Shared(t), nil)
	places, err := p.t.Kernel().Places()
	if err != nil {
		t.Fatal(err)
	}
	tried := map[string]int{}
	for _, r := range p.t.Kernel().Text() {
		for _, k := range places.Kept(r.Start, r.End) {
			if tried[k.Why] >= 3 || places.FuncDenied(k.Start, k.End) != "" {
				continue
			}
			l, ok := p.t.Space().SymbolAt(k.Start)
			if !ok || !places.Traced(k.Start-l.Off, l.Size) || l.Off == 0 {
				continue
			}
			tried[k.Why]++
			if _, err := p.tryAdd(nil, fmt.Sprintf("p 0x%x", k.Start)); err == nil || !strings.Contains(err.Error(), k.Why) && !strings.Contains(err.Error(), "instruction") {
				t.Errorf("%s+0x%x (%s): %v", l.Name, l.Off, k.Why, err)
			}
		}
	}
	for _, want := range []string{"fix-up", "jump label", "static call", "BUG"} {
		found := false
		for why := range tried {
			found = found || strings.Contains(why, want)
		}
		if !found {
			t.Errorf("no place of the table %q was tried: %v", want, tried)
		}
	}
}

// ownTracer is the guest's own tracer, driven by files.
type ownTracer struct {
	testing.TB
	g *testguest.Guest
}

func (o ownTracer) write(file, text string) {
	o.Helper()
	if e := o.g.Write(tracing+file, text, false); e != 0 {
		o.Fatalf("%s: %q: %v", file, text, e)
	}
}

// arm puts a probe of the guest's own somewhere; the returned function takes it out.
func (o ownTracer) arm(place string) (disarm func()) {
	o.Helper()
	o.write("kprobe_events", "p:kprobes/own "+place+"\n")
	o.write("events/kprobes/own/enable", "1")
	return func() {
		o.Helper()
		o.write("events/kprobes/own/enable", "0")
		o.write("kprobe_events", "-:kprobes/own\n")
	}
}

// hits are what the guest's own probe has counted.
func (o ownTracer) hits() string {
	o.Helper()
	return o.hitsOf("own")
}

func (o ownTracer) hitsOf(name string) string {
	o.Helper()
	text, err := o.g.Read(tracing + "kprobe_profile")
	if err != nil {
		o.Fatal(err)
	}
	m := regexp.MustCompile(` ` + name + ` +(\d+)`).FindStringSubmatch(text)
	if m == nil {
		o.Fatalf("no event %s in\n%s", name, text)
	}
	return m[1]
}

// TestBesideOthers has the guest's own tracer and probes on functions that we probe, put there
// before ours and after.
func TestBesideOthers(t *testing.T) {
	g := testguest.Shared(t)
	o := ownTracer{t, g}
	disarm := o.arm("__x64_sys_getppid")
	p := attach(t, g, nil)
	ours := p.add(&kprobes.AddOptions{Count: true}, "p:a __x64_sys_getppid", "p:b vfs_read")
	o.write("set_ftrace_filter", "vfs_read")
	o.write("current_tracer", "function")
	g.Hit("getppid", 1000, 0)
	g.Hit("read", 1000, 1)
	p.counts(ours[0], 1000)
	if o.hits() != "1000" {
		t.Errorf("%s hits of the guest's own", o.hits())
	}
	disarm()
	g.Hit("getppid", 500, 1)
	disarm = o.arm("__x64_sys_getppid")
	g.Hit("getppid", 500, 0)
	p.counts(ours[0], 2000)
	if o.hits() != "500" {
		t.Errorf("put there after ours: %s hits of the guest's own", o.hits())
	}
	if n := p.core.Counts(ours[1]); n.Hits < 1000 {
		t.Errorf("vfs_read beside the function tracer: %+v", n)
	}
	o.write("current_tracer", "nop")
	disarm()
	if g.Write(tracing+"set_ftrace_filter", "", true) != 0 {
		t.Error("set_ftrace_filter")
	}
	p.close()
	if s := strings.TrimSpace(g.Shell("cat " + tracing + "enabled_functions | wc -l")); s != "0" {
		t.Errorf("%s functions are still traced", s)
	}
}

// TestOnOurJump has the guest's own breakpoint put on a jump of the engine's. Both count; ours can
// not be taken out before theirs has gone.
func TestOnOurJump(t *testing.T) {
	g := testguest.Shared(t)
	o := ownTracer{t, g}
	p := attach(t, g, nil)
	const place = "__x64_sys_getppid+5" // behind the function tracer's bytes
	ours := p.add(&kprobes.AddOptions{Count: true}, "p:a __x64_sys_getppid")
	disarm := o.arm(place)
	g.Hit("getppid", 1000, 0)
	p.counts(ours[0], 1000)
	if o.hits() != "1000" {
		t.Errorf("%s hits of the guest's own", o.hits())
	}
	if err := p.core.Close(nil); !errors.Is(err, guest.ErrForeign) {
		t.Errorf("taken out under somebody else's breakpoint: %v", err)
	}
	g.Hit("getppid", 1000, 0)
	if o.hits() != "2000" {
		t.Errorf("%s hits of the guest's own after we left", o.hits())
	}
	disarm()
	l, err := p.t.FindLeftover()
	if err != nil || l == nil || len(l.Sites) != 1 {
		t.Fatalf("what was left: %+v, %v", l, err)
	}
	u, err := l.Undo()
	if err != nil || u.Restored != 1 || len(u.Foreign) != 0 {
		t.Errorf("%+v, %v", u, err)
	}
	if l, err := p.t.FindLeftover(); l != nil || err != nil {
		t.Errorf("still there: %+v, %v", l, err)
	}
	g.Hit("getppid", 1000, 0)
	if err := p.m.Close(); err != nil {
		t.Error(err)
	}
	p.m = nil

	disarm = o.arm(place)
	defer disarm()
	q := attach(t, g, nil)
	if _, err := q.tryAdd(nil, "p:b __x64_sys_getppid"); err == nil || !strings.Contains(err.Error(), "kprobe of the guest's own") {
		t.Errorf("on the guest's own breakpoint: %v", err)
	}
}

// TestModule probes a function of a module that comes, goes and comes again.
func TestModule(t *testing.T) {
	g := testguest.Shared(t)
	p := attach(t, g, nil)
	if _, err := p.tryAdd(nil, "p:early dummy:dummy_xmit"); err == nil {
		t.Error("a probe in a module that is not there")
	}
	evs := p.add(&kprobes.AddOptions{Late: true}, "p:late dummy:dummy_xmit len=skb->len dev->name")
	if !evs[0].Gone() {
		t.Error("an event is not gone whose module is not there")
	}
	for round := range 2 {
		g.Shell("insmod " + g.Module("drivers/net/dummy") + " && ip link set dummy0 up && ip addr add 10.9.0.1/24 dev dummy0")
		if err := p.core.Sync(); err != nil {
			t.Fatal(err)
		}
		if evs[0].Gone() {
			t.Fatal("the module is there, the event is gone")
		}
		before := p.core.Counts(evs[0]).Hits
		g.Shell("ping -c 1 -W 1 10.9.0.2; true")
		g.Shell("for i in 1 2 3; do echo x | nc -u -w 1 10.9.0.2 9 & done; sleep 0.5; arp -s 10.9.0.3 02:00:00:00:00:01 -i dummy0 2>/dev/null; ping -c 2 -W 1 10.9.0.3; true")
		p.poll()
		if n := p.core.Counts(evs[0]).Hits; n == before {
			t.Errorf("round %d: no hit in the module", round)
		}
		if n := len(p.hits); n > 0 && !regexp.MustCompile(`late: \(dummy_xmit\+0x0/.*\) len=\d{2,4} arg2="dummy0"$`).MatchString(p.lines()[n-1]) {
			t.Error(p.lines()[n-1])
		}
		g.Shell("ip link del dummy0; rmmod dummy")
		if err := p.core.Sync(); err != nil {
			t.Fatal(err)
		}
		if !evs[0].Gone() {
			t.Error("the module has gone, the event has not")
		}
		p.listed("dummy:dummy_xmit")
	}
	if err := p.core.Remove(evs); err != nil {
		t.Error(err)
	}
	if err := p.core.Sync(); err != nil {
		t.Error(err)
	}
	p.add(nil, "p vfs_read")
	p.listed()
}

// listed checks which probes in modules that are not loaded the guest's memory tells of.
func (p *probed) listed(want ...string) {
	p.Helper()
	l, err := p.t.FindLeftover()
	if err != nil || l == nil {
		p.Fatal(l, err)
	}
	var got []string
	for i := range l.Sites {
		if place, ok := l.Sites[i].Gone(); ok {
			got = append(got, place)
		}
	}
	if !slices.Equal(got, want) {
		p.Errorf("listed as gone: %q, want %q", got, want)
	}
}

// TestBreak has a probe that QEMU holds, with every kind of argument, beside a jump.
func TestBreak(t *testing.T) {
	p := attach(t, testguest.Shared(t), nil)
	def := "do_sys_openat2 dfd=%di:s32 name=+0(%si):ustring flags=+0(%dx):x64 mode=+8(%dx):x64 $stack0 $comm"
	evs := p.add(&kprobes.AddOptions{Tactic: "break"}, "p:held "+def)
	more := p.add(nil, "p:jump __x64_sys_getppid")
	held, _ := evs[0].Form()
	jump, _ := more[0].Form()
	if held != "break" || jump != "jump" {
		t.Errorf("tactics %s and %s", held, jump)
	}
	if _, err := p.tryAdd(nil, "p finish_task_switch.isra.0"); err == nil || !strings.Contains(err.Error(), "--tactic break") {
		t.Errorf("where no jump fits and no breakpoint is asked for: %v", err)
	}
	c := p.g.Hit("openname", 20, 0, "/nosuch", "64", "420")
	p.g.Hit("getppid", 20, 1)
	p.poll()
	n := 0
	for _, l := range p.lines() {
		if strings.Contains(l, fmt.Sprintf("hit-%d ", c.PID)) && strings.Contains(l, ` held: (do_sys_openat2+0x0/0x170) dfd=-100 name="/nosuch" flags=0x8040 mode=0x1a4 `) &&
			strings.HasSuffix(l, ` arg6="hit"`) {
			n++
		}
	}
	if n != 20 {
		t.Errorf("%d lines; the first are\n%s", n, strings.Join(p.lines()[:min(3, len(p.hits))], "\n"))
	}
	p.counts(more[0], 20)
}

// TestReboot reboots a guest with probes in it, and before a change is made that is ready: of its
// code nothing is written.
func TestReboot(t *testing.T) {
	g := testguest.Boot(t, &testguest.Options{CPUs: 1})
	for _, low := range []bool{false, true} { // low comes last: what it leaves below 1 MiB stays over a reboot
		reboot(t, g, low)
	}
}

func reboot(t *testing.T, g *testguest.Guest, low bool) {
	p := attach(t, g, &guest.Options{Low: low})
	p.add(nil, "p vfs_read")
	p.poll()
	at, ok := p.t.Kernel().Addr("vfs_write")
	if !ok {
		t.Fatal("no vfs_write")
	}
	late := unchanged(p, at)
	g.Reboot()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := p.core.Sync()
		if errors.Is(err, target.ErrGone) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("a reboot was not noticed: %v", err)
		}
	}
	if _, err := p.tryAdd(nil, "p vfs_write"); !errors.Is(err, target.ErrGone) {
		t.Errorf("a probe in a kernel that is gone: %v", err)
	}
	mem := p.t.Taken()
	if err := p.t.Commit(&target.Change{Add: []*target.Site{late}}); !errors.Is(err, target.ErrGone) {
		t.Errorf("a site in a kernel that is gone: %v", err)
	}
	if !bytes.Equal(p.t.Taken(), mem) {
		t.Errorf("low %v: memory of the next boot was written to", low)
	}
	p.close()
	q := attach(t, g, nil)
	q.add(nil, "p:again vfs_read")
	g.Hit("read", 10, 0)
	q.poll()
	if len(q.hits) < 10 {
		t.Errorf("%d hits after the reboot", len(q.hits))
	}
	q.close()
}

// TestEnded ends a machine with probes in it: what was counted is there though it is closed, also where a stop is the first
// to find that QEMU has ended.
func TestEnded(t *testing.T) {
	for _, heard := range []bool{true, false} {
		t.Run(fmt.Sprintf("heard=%v", heard), func(t *testing.T) {
			g := testguest.Boot(t, &testguest.Options{CPUs: 1})
			by := guest.AttachUnheard
			if heard {
				by = func(m *qemu.Machine) (*guest.Target, error) { return guest.Attach(m, nil) }
			}
			p := attachBy(t, g, by)
			evs := p.add(&kprobes.AddOptions{Count: true}, "p __x64_sys_getppid")
			g.Hit("getppid", 100, 0)
			if err := qemu.End(g.Spec); err != nil {
				t.Fatal(err)
			}
			for heard && !errors.Is(p.core.Sync(), target.ErrGone) {
				time.Sleep(time.Millisecond)
			}
			if err := p.core.Close(nil); err != nil {
				t.Fatalf("nothing is left that could be taken out: %v", err)
			}
			if err := p.m.Close(); err != nil {
				t.Error(err)
			}
			p.m = nil
			p.counts(evs[0], 100)
		})
	}
}

// TestReturnBehind names a function by the end of the one before it, as the kernel takes it.
func TestReturnBehind(t *testing.T) {
	p := attach(t, testguest.Shared(t), nil)
	at, ok := p.t.Kernel().Addr(getppid)
	if !ok {
		t.Fatal("no " + getppid)
	}
	before, ok := p.core.Symbol(at - 1)
	if !ok {
		t.Fatalf("no function before 0x%x", at)
	}
	ev := p.add(nil, fmt.Sprintf("r:ev %s+%d $retval", before.Name, before.Off+1))[0]
	p.g.Hit("getppid", 20, 0)
	p.poll()
	p.counts(ev, 20)
	fn, _ := p.core.Symbol(at)
	if l := p.lines(); len(l) == 0 || !strings.Contains(l[0], " <- "+fn.Name+")") {
		t.Errorf("%q, want returns from %s", l, fn.Name)
	}
	if _, err := p.tryAdd(nil, fmt.Sprintf("r:ev %s+%d", before.Name, before.Off+2)); err == nil {
		t.Error("a return probe behind the function's first byte is taken")
	}
}
