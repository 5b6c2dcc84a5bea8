package e2e

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"kprobes.dev/kprobes/internal/cbuild"
	"kprobes.dev/kprobes/internal/testprog"
)

// nobody is a user without privileges.
const nobody = 65534

// public copies a program to where every user can run it.
func public(t *testing.T, path string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "kprobe-public")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	out, err := cbuild.Copy(dir, path)
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// asNobody makes commands that run without privileges.
func asNobody(t *testing.T) func(args ...string) *exec.Cmd {
	t.Helper()
	kprobe := public(t, command(t).Path)
	return func(args ...string) *exec.Cmd {
		cmd := exec.Command(kprobe, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		return cmd
	}
}

// Who may ptrace a process may probe it, and nobody else.
func TestPermission(t *testing.T) {
	kprobe := asNobody(t)
	prog := public(t, testprog.Build(t, "dumpable"))
	for _, c := range []struct{ name, uid, dumpable, refused string }{
		{"of root", "0", "1", "it runs as user 0 and we as 65534"},
		{"not dumpable", fmt.Sprint(nobody), "0", "it is not dumpable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := testprog.Start(t, prog, c.uid, c.dumpable)
			before := stateOf(t, p.PID)
			for _, args := range [][]string{
				{"trace", "-p", pid(p), "p:a work"}, {"list", "-p", pid(p)}, {"detach", "-p", pid(p)}, {"funcs", "-p", pid(p)},
			} {
				o := fails(t, kprobe(args...), 1, "not permitted", c.refused)
				if o.stdout != "" || strings.Count(o.stderr, "\n") != 1 {
					t.Errorf("kprobe %s: want one line of error: %v", args[0], o)
				}
			}
			before.same(t)
			s := trace(t, p.PID, "p:a work a=%di") // root may
			n := right(t, p, "go 20")
			r := s.end()
			r.counted(t, "a", n["work"], "jump")
			r.whole(t)
		})
	}
}

// A user without privileges probes a process of the same user.
func TestUnprivileged(t *testing.T) {
	kprobe := asNobody(t)
	p := testprog.Start(t, public(t, testprog.Build(t, "dumpable")), fmt.Sprint(nobody), "1")
	s := &session{t: t, pid: p.PID, before: stateOf(t, p.PID)}
	s.start(kprobe("trace", "-p", pid(p), "p:a work a=%di", "r:b work ret=$retval"))
	s.armed()
	n := right(t, p, "go 20")
	r := s.end()
	r.counted(t, "a", n["work"], "jump")
	r.counted(t, "b", n["work"], "jump")
	r.whole(t)
}

// TestUnprivilegedVerbs has a user without privileges count, sum up, make spans of, record and serve the calls of a process of the same user.
func TestUnprivilegedVerbs(t *testing.T) {
	kprobe := asNobody(t)
	prog := public(t, testprog.Build(t, "nests"))
	p := testprog.Start(t, tool(t, "setpriv", "util-linux"), "--reuid", fmt.Sprint(nobody), "--regid", fmt.Sprint(nobody), "--clear-groups", prog)
	dir := filepath.Dir(public(t, prog))
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "out")
	leaf := "p:leaf nest_leaf id=$arg1:u64"
	last := uint64(0)
	calls := func() uint64 {
		before := last
		last = p.Counts("go 20")["leaf"]
		return last - before
	}
	during := func(args ...string) (n uint64, r result) {
		t.Helper()
		s := &session{t: t, pid: p.PID, before: stateOf(t, p.PID)}
		s.start(kprobe(args...))
		s.armed()
		n = calls()
		return n, s.end()
	}
	var n uint64
	var r result
	for _, args := range [][]string{{"stat", "-p", pid(p), leaf}, {"stat", "-x", prog, leaf}, {"record", "-p", pid(p), "-o", file, leaf}} {
		n, r = during(args...)
		r.counted(t, "leaf", n, "jump")
	}
	if o := run(t, kprobe("report", "-i", file)); o.code != 0 || uint64(strings.Count(o.stdout, "(nest_leaf+0x0) id=")) != n {
		t.Errorf("report of %d calls: %v", n, o)
	}
	n, r = during("hist", "-p", pid(p), leaf, "keys=id.log2")
	if h := histogramsIn(t, r.stdout); len(h) != 1 || h[0].total != n {
		t.Errorf("hist: %d calls: %v", n, r.outcome)
	}
	n, r = during("spans", "-p", pid(p), "-o", file, "nest_leaf id=$arg1:u64")
	if sum := r.sums(t); sum["spans"] != n || sum["sent"] != n {
		t.Errorf("spans: %d calls: %v", n, sum)
	}
	a := newAgent(t)
	if err := os.Rename(filepath.Join(a.dir, "token"), filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	a.dir, a.file = dir, filepath.Join(dir, "probes.yaml")
	if err := os.Chown(filepath.Join(dir, "token"), nobody, nobody); err != nil {
		t.Fatal(err)
	}
	a.write(targetOf("shop", p.PID, "{define: '"+leaf+"'}"))
	a.beginAs(kprobe("agent", "-c", a.file))
	a.is(`kprobe_hits_total{target="shop",group="kprobes",event="leaf",team="red"}`, float64(calls()))
	a.interrupt()
	if r := a.wait(); r.code != 0 {
		t.Errorf("agent: %v", r.outcome)
	}
}

// Programs of other machines: one clear error, and a process that does not notice.
func TestOtherMachines(t *testing.T) {
	small := filepath.Join(t.TempDir(), "small")
	arm := filepath.Join(t.TempDir(), "arm")
	for path, b := range map[string][]byte{
		small: testprog.SmallELF(elf.ELFCLASS32, elf.EM_386), arm: testprog.SmallELF(elf.ELFCLASS64, elf.EM_AARCH64),
	} {
		if err := os.WriteFile(path, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := testprog.StartHeld(t, small)
	within(t, "the 32-bit program's sleep", func() bool { return strings.HasPrefix(field(t, p.PID, p.PID, "State"), "S") })
	for _, c := range []struct {
		args []string
		why  string
	}{
		{[]string{"trace", "-p", pid(p), "p:a 0x8048054"}, "EM_386"},
		{[]string{"list", "-p", pid(p)}, "EM_386"},
		{[]string{"detach", "-p", pid(p)}, "EM_386"},
		{[]string{"funcs", "-p", pid(p)}, "EM_386"},
		{[]string{"trace", "p:a 0x8048054", "--", small}, "EM_386"},
		{[]string{"funcs", small}, "only 64-bit programs"},
		{[]string{"funcs", arm}, "EM_AARCH64: only x86-64"},
	} {
		o := fails(t, command(t, c.args...), 1, c.why)
		if o.stdout != "" || strings.Count(o.stderr, "\n") != 1 {
			t.Errorf("kprobe %q: want one line of error: %v", c.args, o)
		}
	}
	if st := field(t, p.PID, p.PID, "State") + field(t, p.PID, p.PID, "TracerPid"); st != "S (sleeping)0" {
		t.Errorf("the 32-bit program: %s", st)
	}
}
