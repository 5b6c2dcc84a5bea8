package ptrace

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/testprog"
)

func TestOpenRefuses(t *testing.T) {
	zombie := exec.Command("true")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	defer zombie.Wait()
	waitState(t, zombie.Process.Pid, "Z")
	live := run(t, build(t, "live"), "1")
	thread := 0
	for _, tid := range tasks(t, live.PID) {
		if tid != live.PID {
			thread = tid
		}
	}
	small := elf32(t)
	for _, c := range []struct {
		name string
		pid  int
		want error
		text string
	}{
		{"none", 1 << 22, ErrNoProcess, "process 4194304"},
		{"zero", 0, ErrNoProcess, ""},
		{"negative", -1, ErrNoProcess, ""},
		{"self", os.Getpid(), ErrSelf, ""},
		{"zombie", zombie.Process.Pid, ErrNoProcess, "zombie"},
		{"thread", thread, ErrUnsupported, fmt.Sprintf("thread of process %d", live.PID)},
		{"32 bits", small, ErrUnsupported, "x86-64"},
	} {
		p, err := Open(c.pid)
		if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%s: %v, %v, want %v with %q", c.name, p, err, c.want, c.text)
		}
	}
	if !errors.Is(ErrNoProcess, unix.ESRCH) || !errors.Is(ErrPermission, unix.EPERM) || !errors.Is(ErrBusy, unix.EBUSY) {
		t.Error("sentinels are not their errno")
	}
}

func TestOpenRefusesKernelThreads(t *testing.T) {
	b, err := os.ReadFile("/proc/2/stat")
	if err != nil {
		t.Skip("no kernel threads are seen from this pid namespace")
	}
	st, err := procfs.ParseStat(string(b))
	if err != nil {
		t.Fatal(err)
	}
	if st.Flags&procfs.FlagKernel == 0 {
		t.Skip("process 2 is not a kernel thread in this pid namespace")
	}
	if _, err := Open(2); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "kernel thread") {
		t.Errorf("kthreadd: %v", err)
	}
}

func tasks(t *testing.T, pid int) []int {
	t.Helper()
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	var tids []int
	for _, n := range names {
		tid, err := strconv.Atoi(n.Name())
		if err != nil {
			t.Fatal(err)
		}
		tids = append(tids, tid)
	}
	return tids
}

// waitState waits until a process is in a state of proc(5).
func waitState(t *testing.T, pid int, want string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		st, err := procfs.ParseStatus(string(b))
		if err != nil {
			t.Fatal(err)
		}
		if st.State == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d stays in state %s, want %s", pid, st.State, want)
		}
	}
}

// elf32 starts a 32-bit program that sleeps.
func elf32(t *testing.T) (pid int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "small")
	if err := os.WriteFile(path, testprog.SmallELF(elf.ELFCLASS32, elf.EM_386), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	if err := cmd.Start(); err != nil {
		t.Fatalf("the kernel runs no 32-bit programs (CONFIG_IA32_EMULATION): %v", err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd.Process.Pid
}

// TestPermissionTracer is no test: it is an unprivileged tracer, in its own process.
func TestPermissionTracer(t *testing.T) {
	pid, err := strconv.Atoi(os.Getenv("KPROBES_PERMISSION_PID"))
	if err != nil {
		return
	}
	_, err = Open(pid)
	if !errors.Is(err, ErrPermission) || !errors.Is(err, unix.EPERM) {
		t.Fatalf("%v, want ErrPermission", err)
	}
	fmt.Println("refused:", err)
}

func TestOpenWithoutPermission(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("only root can become another user: run the tests as root")
	}
	r := run(t, build(t, "live"), "1")
	cmd := reexec("TestPermissionTracer", "KPROBES_PERMISSION_PID="+strconv.Itoa(r.PID))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "refused: ") || !strings.Contains(string(out), "user 0 and we as 65534") {
		t.Errorf("%v\n%s", err, out)
	}
	r.Fine()
}

// A pid that goes to another process is not touched.
func TestPIDIsReused(t *testing.T) {
	const last = "/proc/sys/kernel/ns_last_pid"
	prog := build(t, "live")
	var old, other *running
	var p *Process
	for range 100 { // a process that somebody else starts may get the pid, and keep it
		old = run(t, prog, "1")
		p = old.open()
		old.Cmd.Process.Kill()
		old.Cmd.Wait()
		if err := os.WriteFile(last, []byte(strconv.Itoa(old.PID-1)), 0); err != nil {
			t.Skipf("the next pid cannot be chosen here: %v", err)
		}
		if other = run(t, prog, "1"); other.PID == old.PID {
			break
		}
	}
	if other.PID != old.PID {
		t.Fatal("no pid was given again: others start processes too fast")
	}
	if err := p.ReadMem(p.Image().StartStack, make([]byte, 1)); !errors.Is(err, ErrNoProcess) {
		t.Errorf("ReadMem: %v", err)
	}
	if _, err := p.Stop(nil); !errors.Is(err, ErrNoProcess) {
		t.Errorf("Stop: %v", err)
	}
	if _, err := p.Status(); !errors.Is(err, ErrNoProcess) {
		t.Errorf("Status: %v", err)
	}
	if _, err := p.Maps(); !errors.Is(err, ErrNoProcess) {
		t.Errorf("Maps: %v", err)
	}
	if err := p.Signal(unix.SIGKILL); !errors.Is(err, ErrNoProcess) {
		t.Errorf("Signal: %v", err)
	}
	if p.Alive() {
		t.Error("it is said to live")
	}
	other.Fine()
}

func TestExited(t *testing.T) {
	r := run(t, build(t, "live"), "1")
	p := r.open()
	select {
	case <-p.Exited():
		t.Fatal("it lives")
	default:
	}
	r.Cmd.Process.Kill()
	<-p.Exited()
	if p.Alive() {
		t.Error("Alive after its end")
	}
	if err := p.CheckImage(); !errors.Is(err, ErrNoProcess) {
		t.Errorf("CheckImage: %v", err)
	}
	q := run(t, build(t, "live"), "1").open()
	exited := q.Exited()
	q.Close()
	<-exited // Close ends the watch
}

// A process that was killed has no program file, while some of its threads still have memory: it has ended, and is none that can not be probed.
func TestExeOfEnding(t *testing.T) {
	path := build(t, "live")
	living := 0
	for range 20 {
		r := run(t, path, "3")
		p := r.open()
		if err := p.exeError(unix.ENOENT); !errors.Is(err, ErrUnsupported) {
			t.Fatalf("it lives: %v", err)
		}
		r.Cmd.Process.Kill()
		if p.CheckAlive() == nil && p.hasMemory() {
			living++
		}
		if err := p.exeError(unix.ENOENT); !errors.Is(err, ErrNoProcess) {
			t.Fatalf("it was killed: %v", err)
		}
		<-p.Exited()
	}
	t.Logf("%d of 20 still had memory", living)
}

// A process that is in an exec as it is opened is known by the new program as a whole, or by the old one.
func TestOpenInExec(t *testing.T) {
	script := filepath.Join(t.TempDir(), "again")
	if err := os.WriteFile(script, []byte("exec sh \"$0\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", script)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	opened := 0
	for range 2000 {
		p, err := OpenUnwaited(cmd.Process.Pid)
		if err != nil {
			t.Logf("%v", err)
			continue
		}
		opened++
		if i := p.Image(); i.StartStack == 0 || i.StartCode == 0 || i.StartBrk == 0 {
			t.Fatalf("%+v", i)
		}
		p.Close()
	}
	if opened == 0 {
		t.Error("none could be opened")
	}
}

func TestExecIsSeen(t *testing.T) {
	r := run(t, build(t, "odd"))
	p := r.open()
	if err := p.CheckImage(); err != nil {
		t.Fatal(err)
	}
	code := p.Image().StartCode
	if a := r.Ask("exec"); a != "ready" {
		t.Fatal(a)
	}
	if err := p.CheckImage(); !errors.Is(err, ErrExec) || !errors.Is(err, unix.ESTALE) {
		t.Errorf("CheckImage: %v", err)
	}
	if err := p.WriteMem(code, []byte{0xcc}); !errors.Is(err, ErrExec) {
		t.Errorf("WriteMem: %v", err)
	}
	if _, err := p.Stop(nil); !errors.Is(err, ErrExec) {
		t.Errorf("Stop: %v", err)
	}
	if _, err := Open(r.PID); err != nil {
		t.Errorf("Open again: %v", err)
	}
	r.Fine()
}
