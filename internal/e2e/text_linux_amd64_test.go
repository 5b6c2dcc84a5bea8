package e2e

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/kuprobe"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// uprobeAt has the kernel put a uprobe into the program of a process, wherever that is mapped.
func uprobeAt(t *testing.T, p *testprog.Proc, symbol string, plus uint64) *kuprobe.Probe {
	t.Helper()
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
	if err != nil {
		t.Fatal(err)
	}
	place, err := kuprobe.Find(path, symbol, plus)
	if err != nil {
		t.Fatal(err)
	}
	u, err := place.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = u.Close() })
	return u
}

// startWork starts a copy of the program: uprobes belong to a file.
func startWork(t *testing.T) *testprog.Proc {
	return testprog.Start(t, testprog.Copy(t, testprog.Build(t, "work")), "2")
}

// textOf tells what a process has mapped that is a private copy of text.
func textOf(t testing.TB, pid int) (out []string) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(b)) {
		if strings.Contains(l, "/memfd:kprobes:text:") {
			out = append(out, l)
		}
	}
	return out
}

// execMaps tells what a process has mapped that can be executed. Neighbours of one file are one: the
// kernel keeps them apart if the file was opened anew.
func execMaps(t testing.TB, pid int) (out []string) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	maps, err := procfs.ParseMaps(b)
	if err != nil {
		t.Fatal(err)
	}
	var last procfs.Map
	for _, m := range maps {
		if m.Perm&procfs.PermExec == 0 {
			continue
		}
		if m.Start == last.End && m.FileID == last.FileID && m.Offset == last.Offset+last.Size() {
			out = out[:len(out)-1]
			m.Start, m.Offset = last.Start, last.Offset
		}
		out = append(out, fmt.Sprintf("%x-%x %x %s\n", m.Start, m.End, m.Offset, m.Path))
		last = m
	}
	return out
}

// A kernel uprobe that comes while probes stand, at the jump or within its bytes, harms nobody: the
// program computes the same, our probe counts every call, and afterwards the uprobe sees what
// it was placed for.
func TestUprobeComesLater(t *testing.T) {
	for _, c := range []struct {
		symbol string
		plus   uint64 // an instruction's start
	}{
		{"f_six", 0}, {"f_six", 3}, {"f_nop5", 0}, {"f_push", 0}, {"f_push", 1}, {"f_patch", 2}, {"f_endbr", 4},
	} {
		t.Run(fmt.Sprintf("%s+%d", c.symbol, c.plus), func(t *testing.T) {
			p := startWork(t)
			maps := execMaps(t, p.PID)
			s := trace(t, p.PID, "--text", "private", "p:a "+c.symbol+" a=$arg1", "r:b f_ptr", "p:c libc.so.6:strlen s=+0(%di):string")
			right(t, p, "go 100")
			if len(textOf(t, p.PID)) < 2 {
				t.Fatalf("no private copies of text: %v", execMaps(t, p.PID))
			}
			u := uprobeAt(t, p, c.symbol, c.plus)
			m := right(t, p, "go 1000")
			if hits, err := u.Count(); err != nil || hits != 0 {
				t.Errorf("the kernel's uprobe counts %d, %v: it was to see nothing here", hits, err)
			}
			if err := u.Close(); err != nil {
				t.Error(err)
			}
			r := s.end()
			r.counted(t, "a", m[c.symbol], "jump")
			r.counted(t, "b", m["f_ptr"], "jump")
			r.whole(t)
			if got := execMaps(t, p.PID); strings.Join(got, "") != strings.Join(maps, "") {
				t.Errorf("after the end these are mapped:\n%swere:\n%s", strings.Join(got, ""), strings.Join(maps, ""))
			}
			u = uprobeAt(t, p, c.symbol, c.plus)
			after := right(t, p, "go 500")
			if hits, err := u.Count(); err != nil || hits != after[c.symbol]-m[c.symbol] {
				t.Errorf("the kernel's uprobe counts %d, %v, the program %d", hits, err, after[c.symbol]-m[c.symbol])
			}
		})
	}
}

// Where the text stays shared with its file the same uprobe kills: the test above can fail. Its breakpoint becomes a byte of the
// jump's distance, so the jump leads elsewhere. Where there is code, or where that byte was the breakpoint's anyway, the program
// might live on: then another one, which lies elsewhere, is tried. The tracer would take its patch out when it sees the
// breakpoint: it is killed before.
func TestUprobeKillsSharedText(t *testing.T) {
	const plus = 3
	for range 20 {
		p := startWork(t)
		s := trace(t, p.PID, "--alone", "--text", "shared", "p:a f_six a=$arg1")
		m := right(t, p, "go 100")
		if m["f_six"] == 0 {
			t.Fatal("f_six was not called")
		}
		at := s.place("f_six")
		jump := make([]byte, 5)
		if read(t, p.PID, at, jump); jump[0] != 0xe9 {
			t.Fatalf("% x at 0x%x: no jump", jump, at)
		}
		jump[plus] = 0xcc
		to := at + 5 + uint64(int64(int32(binary.LittleEndian.Uint32(jump[1:]))))
		if codeAt(t, p.PID, to) {
			s.end()
			continue
		}
		_ = s.cmd.Process.Kill()
		<-s.done
		uprobeAt(t, p, "f_six", plus)
		p.Send("go 1000")
		within(t, "the program's end", func() bool { return !p.Alive() })
		return
	}
	t.Fatal("the changed jump led to code each time")
}

// codeAt says whether there is executable memory at an address.
func codeAt(t testing.TB, pid int, addr uint64) bool {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	maps, err := procfs.ParseMaps(b)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := procfs.FindMap(maps, addr)
	return ok && m.Perm&procfs.PermExec != 0
}

// bpftrace comes and goes.
func TestBpftraceComesLater(t *testing.T) {
	p := startWork(t)
	s := trace(t, p.PID, "--text", "private", "p:a f_six a=$arg1")
	right(t, p, "go 100")
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bpftrace", "-p", pid(p), "-e", fmt.Sprintf(`uprobe:%s:f_six { @n = count(); }`, exe))
	var text locked
	cmd.Stdout, cmd.Stderr = &text, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v (install bpftrace)", err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	// It may keep what a BEGIN prints for minutes. When it has attached its probes it waits for their events.
	within(t, "bpftrace waits for events", func() bool {
		call, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", cmd.Process.Pid))
		return err == nil && strings.HasPrefix(string(call), fmt.Sprint(unix.SYS_EPOLL_WAIT, " "))
	})
	right(t, p, "go 1000")
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !strings.HasSuffix(strings.TrimSpace(text.String()), "@n: 0") {
		t.Errorf("bpftrace: %v: it says %s", err, text.String())
	}
	n := right(t, p, "go 10")
	r := s.end()
	r.counted(t, "a", n["f_six"], "jump")
	r.whole(t)
}

// A page on which somebody's uprobe stands stays as it is, and takes no jump; a single probe is
// held by the kernel there.
func TestUprobeStoodBefore(t *testing.T) {
	p := startWork(t)
	u := uprobeAt(t, p, "f_lea", 0)
	right(t, p, "go 10")
	fails(t, command(t, "trace", "-p", pid(p), "--text", "private", "--tactic", "jump", "p:a f_six"), 1, "not ours", "same page", "--text shared")
	s := trace(t, p.PID, "--text", "private", "p:a f_six a=$arg1", "p:b libc.so.6:strlen")
	before, err := u.Count()
	if err != nil {
		t.Fatal(err)
	}
	had := right(t, p, "count")
	n := right(t, p, "go 100")
	if hits, err := u.Count(); err != nil || hits-before != n["f_lea"]-had["f_lea"] {
		t.Errorf("the other's uprobe counts %d, %v, the program %d", hits-before, err, n["f_lea"]-had["f_lea"])
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
	s.end().counted(t, "a", n["f_six"]-had["f_six"], "uprobe")
}

// Somebody's uprobe on a page between two that are probed is nobody's concern.
func TestUprobeBetween(t *testing.T) {
	p := testprog.Start(t, testprog.Copy(t, testprog.Build(t, "apart")))
	u := uprobeAt(t, p, "middle", 0)
	s := trace(t, p.PID, "--text", "private", "--tactic", "jump", "p:a first", "p:b last")
	n := right(t, p, "go 100")
	if hits, err := u.Count(); err != nil || hits != n["middle"] {
		t.Errorf("the other's uprobe counts %d, %v, the program %d", hits, err, n["middle"])
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
	r := s.end()
	r.counted(t, "a", n["first"], "jump")
	r.counted(t, "b", n["last"], "jump")
}

// A probe that the kernel holds, beside jumps on the same page: whoever comes first.
func TestOwnUprobeOnPrivateText(t *testing.T) {
	p := aside(t, "tight")
	core := openWith(t, p, &process.TargetOptions{Text: process.TextPrivate})
	loop := add(t, core, "", tightLoop)
	own := func() bool { return strings.Contains(strings.Join(textOf(t, p.PID), ""), ":tight ") }
	if !own() {
		t.Errorf("text: %v", textOf(t, p.PID))
	}
	entry := add(t, core, "uprobe", "p:entry tight n=$arg1")
	if own() {
		t.Errorf("the page of a kernel's probe is a copy: %v", textOf(t, p.PID))
	}
	n := right(t, p, "go 100")
	if err := core.Close(nil); err != nil {
		t.Error(err)
	}
	if c := core.Counts(entry[0]); c.Hits != n["tight"] {
		t.Errorf("entry: %+v, want %d", c, n["tight"])
	}
	if c := core.Counts(loop[0]); c.Hits != n["loops"] {
		t.Errorf("loop: %+v, want %d", c, n["loops"])
	}
}

// A tracer that is killed leaves the copies; detach gives the pages back to the file, also where
// another program has been put in its place.
func TestDetachGivesTextBack(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		t.Run(fmt.Sprintf("replaced=%v", replaced), func(t *testing.T) {
			p := startWork(t)
			maps := execMaps(t, p.PID)
			s := trace(t, p.PID, "--alone", "--text", "private", "p:a f_six", "p:b libc.so.6:strlen")
			right(t, p, "go 10")
			if err := s.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-s.done
			if replaced {
				exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
				if err != nil {
					t.Fatal(err)
				}
				next := filepath.Join(t.TempDir(), "next")
				if err := os.WriteFile(next, []byte("another"), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(next, exe); err != nil {
					t.Fatal(err)
				}
			}
			if o := run(t, command(t, "detach", "-p", pid(p))); o.code != 0 {
				t.Fatal(o)
			}
			if got := execMaps(t, p.PID); strings.Join(got, "") != strings.Join(maps, "") {
				t.Errorf("after the detach these are mapped:\n%swere:\n%s", strings.Join(got, ""), strings.Join(maps, ""))
			}
			right(t, p, "go 10")
		})
	}
}
