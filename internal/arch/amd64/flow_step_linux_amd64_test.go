package amd64

import (
	"bufio"
	"embed"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/cbuild"
)

//go:embed testdata/flow
var flowSources embed.FS

// buildFlow compiles a program of testdata/flow.
func buildFlow(t *testing.T, name string, flags ...string) string {
	t.Helper()
	path, err := cbuild.Build(flowSources, "testdata/flow", name, flags...)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// longRun: all ways to build a program are tried.
var longRun = os.Getenv("KPROBES_E2E_LONG") != ""

// stepped is a program under ptrace. Only the thread that started it may use it.
type stepped struct {
	t    *testing.T
	pid  int
	bias uint64 // run-time address minus address in the file
	regs syscall.PtraceRegs
	out  string // file with its standard output
}

// startStepped starts a program, stopped before its first instruction.
func startStepped(t *testing.T, path string) *stepped {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(path)
	cmd.Stdout = out
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &stepped{t: t, pid: cmd.Process.Pid, out: out.Name()}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if st := p.wait(); st.StopSignal() != syscall.SIGTRAP {
		t.Fatalf("%s: first stop is %v", path, st)
	}
	p.bias = p.loadBias(path)
	return p
}

// loadBias finds where a program's file is mapped.
func (p *stepped) loadBias(path string) uint64 {
	maps, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid) + "/maps")
	if err != nil {
		p.t.Fatal(err)
	}
	sc := bufio.NewScanner(strings.NewReader(string(maps)))
	for sc.Scan() {
		if !strings.HasSuffix(sc.Text(), path) {
			continue
		}
		start, _, _ := strings.Cut(sc.Text(), "-")
		a, err := strconv.ParseUint(start, 16, 64)
		if err != nil {
			p.t.Fatal(err)
		}
		return a - openImage(p.t, path).segs[0].Addr&^0xfff
	}
	p.t.Fatalf("%s is not mapped", path)
	return 0
}

func (p *stepped) wait() syscall.WaitStatus {
	p.t.Helper()
	var st syscall.WaitStatus
	if _, err := syscall.Wait4(p.pid, &st, syscall.WALL, nil); err != nil {
		p.t.Fatal(err)
	}
	return st
}

// runTo lets the program run to an address of its file.
func (p *stepped) runTo(addr uint64) {
	p.t.Helper()
	at := uintptr(addr + p.bias)
	var old [1]byte
	if _, err := syscall.PtracePeekText(p.pid, at, old[:]); err != nil {
		p.t.Fatal(err)
	}
	if _, err := syscall.PtracePokeText(p.pid, at, []byte{0xcc}); err != nil {
		p.t.Fatal(err)
	}
	for sig := 0; ; {
		if err := syscall.PtraceCont(p.pid, sig); err != nil {
			p.t.Fatal(err)
		}
		st := p.wait()
		if !st.Stopped() {
			p.t.Fatalf("program ended before 0x%x: %v", addr, st)
		}
		if st.StopSignal() == syscall.SIGTRAP {
			break
		}
		sig = int(st.StopSignal())
	}
	if _, err := syscall.PtracePokeText(p.pid, at, old[:]); err != nil {
		p.t.Fatal(err)
	}
	p.load()
	p.regs.Rip = uint64(at)
	p.store()
}

func (p *stepped) load() {
	p.t.Helper()
	if err := syscall.PtraceGetRegs(p.pid, &p.regs); err != nil {
		p.t.Fatal(err)
	}
}

func (p *stepped) store() {
	p.t.Helper()
	if err := syscall.PtraceSetRegs(p.pid, &p.regs); err != nil {
		p.t.Fatal(err)
	}
}

// step runs one instruction. It says whether the program is still there; a fault of its
// own ends it.
func (p *stepped) step() bool {
	p.t.Helper()
	for sig := 0; ; {
		if _, _, e := syscall.Syscall6(syscall.SYS_PTRACE, syscall.PTRACE_SINGLESTEP, uintptr(p.pid), 0, uintptr(sig), 0, 0); e != 0 {
			p.t.Fatal(e)
		}
		st := p.wait()
		if !st.Stopped() {
			return false
		}
		if st.StopSignal() == syscall.SIGTRAP {
			p.load()
			return true
		}
		sig = int(st.StopSignal())
	}
}

// finish lets the program run to its end and gives its output; ok is false if it was
// ended by a signal.
func (p *stepped) finish() (out string, ok bool) {
	p.t.Helper()
	for sig := 0; ; {
		if err := syscall.PtraceCont(p.pid, sig); err != nil {
			p.t.Fatal(err)
		}
		st := p.wait()
		if !st.Stopped() {
			b, err := os.ReadFile(p.out)
			if err != nil {
				p.t.Fatal(err)
			}
			return string(b), st.Exited() && st.ExitStatus() == 0
		}
		sig = int(st.StopSignal())
	}
}

// holdSysmon stops the sysmon thread of a Go program until what it returns is called; in a program of one thread it has
// nothing to do. Sysmon would ask a goroutine every 10 ms to let others run: on a busy machine every few steps, and each
// time the scheduler is stepped through. The other threads go on: the scheduler needs one of them where sysmon has asked
// before it was stopped.
func (p *stepped) holdSysmon() (release func()) {
	p.t.Helper()
	tasks, err := os.Open("/proc/" + strconv.Itoa(p.pid) + "/task")
	if err != nil {
		p.t.Fatal(err)
	}
	defer tasks.Close()
	tids, err := tasks.Readdirnames(-1) // in the order in which they started; runtime.main starts sysmon before any other
	if err != nil {
		p.t.Fatal(err)
	}
	if len(tids) == 1 {
		return func() {}
	}
	tid, err := strconv.Atoi(tids[1])
	if err != nil {
		p.t.Fatal(err)
	}
	var st unix.WaitStatus
	if err = unix.PtraceSeize(tid); err == nil {
		err = unix.PtraceInterrupt(tid)
	}
	if err == nil {
		_, err = unix.Wait4(tid, &st, unix.WALL, nil)
	}
	if err != nil || !st.Stopped() {
		p.t.Fatalf("thread %d: %v, %v", tid, st, err)
	}
	return func() {
		if err := unix.PtraceDetach(tid); err != nil && !errors.Is(err, unix.ESRCH) { // the program may have ended
			p.t.Error(err)
		}
	}
}

// maxSteps bounds a run; the longest one needs half of it.
const maxSteps = 120_000

// steps runs the function at addr from its entry until it returns, and calls at before each
// instruction with its address in the file. It says whether the program survived and came
// to the function's end.
func (p *stepped) steps(addr uint64, at func(pc uint64)) bool {
	p.t.Helper()
	p.runTo(addr)
	return p.stepsHere(at)
}

// stepsHere is steps for a program that is at the function's entry.
func (p *stepped) stepsHere(at func(pc uint64)) bool {
	p.t.Helper()
	defer p.holdSysmon()()
	var ret [8]byte
	if _, err := syscall.PtracePeekData(p.pid, uintptr(p.regs.Rsp), ret[:]); err != nil {
		p.t.Fatal(err)
	}
	for range maxSteps {
		if p.regs.Rip == binary.LittleEndian.Uint64(ret[:]) {
			return true
		}
		at(p.regs.Rip - p.bias)
		if !p.step() {
			return false
		}
	}
	p.t.Logf("more than %d steps", maxSteps)
	return false
}
