package guest_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/kmod"
	"kprobes.dev/kprobes/internal/modules"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest"
)

// moduled is a guest with modules.
type moduled struct {
	*probed
	table *modules.Table
}

// attachModules attaches to a guest that takes modules.
func attachModules(t *testing.T, g *testguest.Guest) *moduled {
	t.Helper()
	p := attach(t, g, nil)
	table, err := modules.New(engine.Of(p.core), 0)
	if err != nil {
		t.Fatal(err)
	}
	return &moduled{p, table}
}

// compileModule compiles a module as kprobe cc does.
func compileModule(t testing.TB, source string, flags ...string) *kmod.Object {
	t.Helper()
	dir, name := t.TempDir(), kmod.Name(source)
	headers, object := filepath.Join(dir, "include"), filepath.Join(dir, name+".o")
	if err := kmod.WriteHeaders(headers); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", slices.Concat(kmod.Flags(name, headers), flags, []string{"-c", "-o", object, source})...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v (install gcc)\n%s", err, out)
	}
	b, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}
	o, err := kmod.Parse(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// insert loads a module; it is gone with the test.
func (m *moduled) insert(source string, params ...string) {
	m.Helper()
	if err := m.tryInsert(source, params...); err != nil {
		m.Fatalf("%v; the log: %q", err, m.log())
	}
}

func (m *moduled) tryInsert(source string, params ...string) error {
	m.Helper()
	var ps []kmod.Param
	for _, p := range params {
		ps = append(ps, kmod.ParseParam(p))
	}
	return m.table.Insert(kmod.Name(source), compileModule(m.TB, source), ps, nil)
}

func (m *moduled) remove(name string) {
	m.Helper()
	if err := m.table.Remove(name); err != nil {
		m.Errorf("rmmod %s: %v; the log: %q", name, err, m.log())
	}
}

// log gives the lines that modules have written.
func (m *moduled) log() (lines []string) {
	m.settle(func(h *hit.Hit) { m.table.Log().Take(h) })
	all, _ := m.table.Log().Lines()
	for _, l := range all {
		lines = append(lines, l.Text)
	}
	return lines
}

// TestKmod loads a module with probes of every kind into the guest's kernel: they run in the kernel at every hit, on both CPUs, see its registers and its memory, and
// nothing changes for the programs.
func TestKmod(t *testing.T) {
	m := attachModules(t, testguest.Shared(t))
	before := m.text()
	m.insert("testdata/kinds.c")
	const calls, all = 4000, 2 * 4000
	for cpu := range 2 {
		for what, ok := range map[string]uint64{"getppid": calls, "chown": 0, "open": 0} {
			if c := m.g.Hit(what, calls, cpu); c.OK != ok || c.Failed != calls-ok {
				t.Errorf("%s: %+v", what, c)
			}
		}
	}
	m.g.Shell(fmt.Sprintf("hit getppid %d 0 >/tmp/a & hit getppid %d 1 >/tmp/b; wait", calls, calls))
	m.remove("kinds")
	lines := m.log()
	want := regexp.MustCompile(fmt.Sprintf("^simple=%d behind=%d returned=%d dropped=%d owners=%d absent=[0-9] wrong=0 missed=0$", 2*all, 2*all, all*3/4, all/4, all))
	if len(lines) != 2 || !strings.Contains(lines[0], " starts with ffffffff") || !want.MatchString(lines[1]) {
		t.Errorf("the log: %q, want %v", lines, want)
	}
	if after := m.text(); !bytes.Equal(before, after) {
		t.Error("the kernel's code is not what it was")
	}
}

// TestKmodRefused has objects that no kernel can run, and a guest without the memory for modules.
func TestKmodRefused(t *testing.T) {
	m := attachModules(t, testguest.Shared(t))
	for flag, why := range map[string]string{"-DVECTORS": "-mgeneral-regs-only", "-mred-zone": "-mno-red-zone"} {
		o := compileModule(t, "testdata/leaf.c", flag)
		if err := m.table.Insert("leaf", o, nil, nil); !errors.Is(err, unix.ENOEXEC) || !strings.Contains(err.Error(), why) {
			t.Errorf("an object compiled with %s: %v", flag, err)
		}
	}
	m.insert("testdata/leaf.c")
	m.remove("leaf")
	if lines := m.log(); !slices.Equal(lines, []string{"3"}) {
		t.Errorf("the log: %q", lines)
	}
	m.close()
	p := attach(t, testguest.Shared(t), &guest.Options{Low: true})
	table, err := modules.New(engine.Of(p.core), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Insert("leaf", compileModule(t, "testdata/leaf.c"), nil, nil); !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "ivshmem") {
		t.Errorf("memory below 1 MiB: %v", err)
	}
}

// TestKmodNested has a handler call a function in which another handler of the module is: that one is missed, and counted.
func TestKmodNested(t *testing.T) {
	m := attachModules(t, testguest.Shared(t))
	m.insert("testdata/nested.c")
	const calls = 3000
	m.g.Hit("getppid", calls, 0)
	m.g.Hit("getppid", calls, 1)
	m.remove("nested")
	if lines, want := m.log(), fmt.Sprintf("outer=%d wrong=0 missed=0+%d inner=", 2*calls, 2*calls); len(lines) != 1 || !strings.HasPrefix(lines[0], want) {
		t.Errorf("%q, want %q", lines, want)
	}
}

// TestKmodToggles loads and removes modules while programs on both CPUs hit: code and memory are as before.
func TestKmodToggles(t *testing.T) {
	m := attachModules(t, testguest.Shared(t))
	before := m.text()
	for cpu := range 2 {
		defer m.g.Background("/bin/sh", "-c", fmt.Sprintf("while :; do hit getppid 20000 %d; hit chown 2000 %d; hit open 2000 %d; done >/dev/null", cpu, cpu, cpu))()
	}
	for range 10 {
		m.insert("testdata/kinds.c")
		m.remove("kinds")
	}
	if text, data := m.t.ModuleMemory(); text != 0 || data != 0 {
		t.Errorf("%d bytes of code and %d of data are taken still", text, data)
	}
	for i, l := range m.log() {
		if i%2 == 1 && !strings.HasSuffix(l, " wrong=0 missed=0") {
			t.Error(l)
		}
	}
	if after := m.text(); !bytes.Equal(before, after) {
		t.Error("the kernel's code is not what it was")
	}
}

// text is the code of the functions that modules probe.
func (m *moduled) text() []byte {
	var all []byte
	for _, r := range m.t.Kernel().Text() {
		b := make([]byte, r.End-r.Start)
		if err := m.t.Read(r.Start, b); err != nil {
			m.Fatal(err)
		}
		all = append(all, b...)
	}
	return all
}

// Ways in which a handler, and a start, goes wrong (testdata/bad.c).
var faults = []string{"null", "kernel", "odd", "divide", "trap"}

// TestKmodFaults has a handler, and a start, go wrong: that ends them, the log says so, and the guest's kernel goes on, and complains of nothing.
func TestKmodFaults(t *testing.T) {
	m := attachModules(t, testguest.Shared(t))
	for _, how := range faults {
		t.Run(how, func(t *testing.T) {
			p := *m.probed
			p.TB = t
			(&moduled{&p, m.table}).faults(how, "a fault in a handler")
		})
	}
	m.faults("loop", "a handler that does not end")
	if err := m.tryInsert("testdata/bad.c", "result=-19"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("a start that fails: %v", err)
	}
	m.faults("null", "a fault in a handler")
}

// faults has a handler go wrong in one way, and a start unless it would not end.
func (m *moduled) faults(how, said string) {
	m.Helper()
	const calls, good = 200, 50
	right := func() {
		m.Helper()
		if c := m.g.Hit("getppid", calls, 0); c.OK != calls {
			m.Errorf("%s: %+v", how, c)
		}
	}
	m.insert("testdata/bad.c", "handler="+how, fmt.Sprint("first=", good+1))
	stop := m.follow()
	right() // a loop is ended while the program waits for it
	stop()
	m.table.CheckFaults()
	right()
	m.remove("bad")
	lines := m.log()
	if n := len(lines); n < 2 || !strings.HasPrefix(lines[n-2], "bad: "+said+" of the probe at ") || !strings.Contains(lines[n-2], "_sys_getppid+0x") || lines[n-1] != fmt.Sprintf("%d calls", good+1) {
		m.Errorf("%s: %q", how, lines)
	}
	if how == "loop" {
		return
	}
	if err := m.tryInsert("testdata/bad.c", "init="+how); !errors.Is(err, unix.EFAULT) {
		m.Errorf("a start that goes wrong by %s: %v", how, err)
	}
	right()
}

// TestKmodFaultHandler has handlers of each kind fault at every tenth hit: the fault handler of their probe has them go on, or it does not, and that ends them.
func TestKmodFaultHandler(t *testing.T) {
	m := attachModules(t, testguest.Shared(t))
	const calls = 2000
	hit := func() {
		t.Helper()
		for cpu := range 2 {
			if c := m.g.Hit("getppid", calls/2, cpu); c.OK != calls/2 {
				t.Errorf("%+v", c)
			}
		}
	}
	seen := 0
	lines := func() []string {
		all := m.log()
		defer func() { seen = len(all) }()
		return all[seen:]
	}
	for _, trap := range []int{0, 6, 13, 14} {
		m.insert("testdata/resumes.c", fmt.Sprint("trap=", trap))
		hit()
		m.remove("resumes")
		want := fmt.Sprintf("pre=%d post=%[1]d entered=%[1]d returned=%[1]d faults=%d wrong=0", calls, 4*calls/10)
		if got := lines(); !slices.Equal(got, []string{want}) {
			t.Errorf("trap %d: %q, want %q", trap, got, want)
		}
	}
	for _, answer := range []int{1, 2} {
		m.insert("testdata/resumes.c", fmt.Sprint("answer=", answer))
		hit()
		m.table.CheckFaults()
		hit()
		m.remove("resumes")
		got := lines() // the return handler is not called where the entry's has been given up
		if len(got) != 4 || got[3] != "pre=10 post=10 entered=10 returned=9 faults=3 wrong=0" {
			t.Errorf("answer %d: %q", answer, got)
		}
		for _, line := range got[:max(len(got)-1, 0)] {
			if !strings.HasPrefix(line, "resumes: a fault in a handler of the probe at ") {
				t.Errorf("answer %d: %q", answer, line)
			}
		}
	}
	if bad := m.g.Trouble(); len(bad) > 0 {
		t.Errorf("the guest's kernel says: %q", bad)
	}
}

// follow looks for handlers that went wrong, as who holds the guest does.
func (m *moduled) follow() (stop func()) {
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-end:
				return
			case <-time.After(50 * time.Millisecond):
				m.table.CheckFaults()
			}
		}
	}()
	return func() { close(end); <-done }
}
