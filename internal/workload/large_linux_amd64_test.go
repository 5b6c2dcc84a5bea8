package workload

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The large program has the size and the functions that it is to have, each with code that
// objdump understands, runs, and ends with its standard input.
func TestLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large")
	const size = 20 << 20
	if err := WriteLarge(path, size); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Size() < size*9/10 || st.Size() > size*105/100 {
		t.Errorf("%v, %v", st, err)
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.Symbols()
	if err != nil || len(syms) != largeFunctions || syms[50000].Name != LargeSymbol || syms[50000].Size < 64 {
		t.Fatalf("%d symbols, %v", len(syms), err)
	}
	if code := disassemble(t, path, LargeSymbol); code[0] != "push   %rbp" || code[1] != "mov    %rsp,%rbp" {
		t.Errorf("%q", code)
	}
	_, stop, err := StartLarge(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for _, n := range []int{0, 1 << 20, 2 << 30} {
		if err := WriteLarge(path, n); err == nil {
			t.Errorf("a program of %d bytes was made", n)
		}
	}
}

// The gauge sees a stop of its program, and forgets it when it was asked.
func TestGap(t *testing.T) {
	t.Setenv(serveVar, "1")
	p, err := Start("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Gap(); err != nil {
		t.Fatal(err)
	}
	const stopped = 200 * time.Millisecond
	_ = unix.Kill(p.PID(), unix.SIGSTOP)
	for !halted(t, p.PID()) {
	}
	time.Sleep(stopped)
	_ = unix.Kill(p.PID(), unix.SIGCONT)
	if d, err := p.Gap(); err != nil || d < stopped {
		t.Errorf("gap %v, %v, stopped for %v", d, err, stopped)
	}
	if d, err := p.Gap(); err != nil || d <= 0 {
		t.Errorf("then %v, %v", d, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// halted says whether all threads of a process are stopped by a signal.
func halted(t *testing.T, pid int) bool {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("threads of %d: %v, %v", pid, tasks, err)
	}
	for _, task := range tasks {
		if text, err := os.ReadFile(task); err != nil || !strings.Contains(string(text), "T (stopped)") {
			return false
		}
	}
	return true
}
