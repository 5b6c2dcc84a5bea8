package executables

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/testprog"
	"kprobes.dev/kprobes/target/process"
)

// armedProcess is a process without probes.
type armedProcess struct{ p *process.Proc }

func (m *armedProcess) Leave() []int {
	_ = m.p.Close()
	return nil
}

// A process that executes the file anew before it is known that it has its probes is probed anew once it is, not at the same time.
func TestReplacedWhileArmed(t *testing.T) {
	prog := testprog.Copy(t, testprog.Build(t, "brief"))
	file, err := Find(prog)
	if err != nil {
		t.Fatal(err)
	}
	const again = 3
	var mu sync.Mutex
	armed, within := 0, false
	busy := map[int]bool{}
	set, watchErr, err := Open(Options{
		File: file,
		Arm: func(p *process.Proc, stopped *process.Stopped) (Member, error) {
			mu.Lock()
			armed++
			within = within || busy[p.PID()]
			busy[p.PID()] = true
			last := armed > again
			mu.Unlock()
			if err := stopped.Release(); err != nil {
				t.Error(err)
			}
			if !last { // it executes the file again, and is met there
				awaitTraced(t, p.PID())
				time.Sleep(50 * time.Millisecond) // for who would not wait
			}
			mu.Lock()
			busy[p.PID()] = false
			mu.Unlock()
			return &armedProcess{p}, nil
		},
		Refused: func(pid int, err error) { t.Errorf("process %d: %v", pid, err) },
	})
	if err != nil || watchErr != nil {
		t.Fatal(err, watchErr)
	}
	<-set.Looked()
	// Its parent is another process: wait4(2) gives this one's threads what it traces.
	if out, err := exec.Command("sh", "-c", `"$0" "$@"; exit $?`, prog, filepath.Join(t.TempDir(), "counts"), "1", "0", strconv.Itoa(again)).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	set.Close()
	if n := set.Counts(); n.First != again+1 || armed != again+1 || within {
		t.Errorf("%d programs were armed, one while the one before was: %v; %+v", armed, within, n)
	}
}

// A tracer that does not get a processor for long has the exec wait all the same: the program would end without probes.
func TestTracerLate(t *testing.T) {
	ptrace.OnStep = func(step string) {
		if step == "seize" {
			time.Sleep(300 * time.Millisecond) // several looks for whether it waits for the exec
		}
	}
	defer func() { ptrace.OnStep = nil }()
	prog := testprog.Copy(t, testprog.Build(t, "brief"))
	file, err := Find(prog)
	if err != nil {
		t.Fatal(err)
	}
	set, watchErr, err := Open(Options{
		File: file,
		Arm: func(p *process.Proc, stopped *process.Stopped) (Member, error) {
			return &armedProcess{p}, stopped.Release()
		},
		Refused: func(pid int, err error) { t.Errorf("process %d: %v", pid, err) },
	})
	if err != nil || watchErr != nil {
		t.Fatal(err, watchErr)
	}
	<-set.Looked()
	if out, err := exec.Command("sh", "-c", `"$0" "$@"; exit $?`, prog, filepath.Join(t.TempDir(), "counts"), "1", "0").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	set.Close()
	if n := set.Counts(); n.First != 1 {
		t.Errorf("%+v", n)
	}
}

// awaitTraced waits until a process has a tracer.
func awaitTraced(t *testing.T, pid int) {
	t.Helper()
	for {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err != nil {
			t.Error(err)
			return
		}
		if !strings.Contains(string(b), "TracerPid:\t0\n") {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
