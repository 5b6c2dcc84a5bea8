package ptrace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// begin starts a command with its output in a pipe.
func begin(t *testing.T, c *Command) (*Process, *Stopped, *os.File) {
	t.Helper()
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	c.Stdout, c.Stderr = w, os.Stderr
	p, s, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Signal(unix.SIGKILL)
		p.Wait()
		p.Close()
		out.Close()
	})
	return p, s, out
}

// At the entry point: the registers of a new program, no byte changed, nothing of main run.
func atStart(t *testing.T, p *Process, s *Stopped) {
	t.Helper()
	aux, err := p.Auxv()
	if err != nil {
		t.Fatal(err)
	}
	first := s.Threads()[0]
	if first.TID != p.PID() || first.Regs().RIP != aux[atEntry] || first.ResumePC() != aux[atEntry] {
		t.Errorf("first thread %d at %#x, want %d at the entry point %#x", first.TID, first.ResumePC(), p.PID(), aux[atEntry])
	}
	code := codeOf(t, p, mapsOf(t, p))
	f, err := p.OpenMap(code)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mem, file := make([]byte, code.Size()), make([]byte, code.Size())
	if err := p.ReadMem(code.Start, mem); err != nil {
		t.Fatal(err)
	}
	n, err := f.ReadAt(file, int64(code.Offset))
	if err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(mem[:n], file[:n]) {
		t.Errorf("code differs from its file: %v", err)
	}
}

func TestStart(t *testing.T) {
	dir := t.TempDir()
	for _, flags := range [][]string{{"-pie"}, {"-no-pie"}, {"-static"}} {
		for _, mode := range []int{0, 42, -int(unix.SIGTERM)} {
			t.Run(fmt.Sprint(flags[0], mode), func(t *testing.T) {
				in, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprint(w, "input")
				w.Close()
				defer in.Close()
				p, s, out := begin(t, &Command{
					Path: build(t, "started", flags...), Name: "name", Args: []string{strconv.Itoa(mode), "arg"},
					Env: []string{"KPROBES_TEST=value"}, Dir: dir, Stdin: in,
				})
				atStart(t, p, s)
				injectEach(t, s)
				release(t, s)
				state, err := p.Wait()
				if err != nil {
					t.Fatal(err)
				}
				ws := state.Sys().(syscall.WaitStatus)
				if mode >= 0 && ws.ExitStatus() != mode || mode < 0 && (!ws.Signaled() || int(ws.Signal()) != -mode) {
					t.Errorf("it ended with %v, want %d", state, mode)
				}
				b, err := io.ReadAll(out)
				want := fmt.Sprintf("constructor 10 7\nstarted name arg value %s input\n", dir)
				if err != nil || string(b) != want {
					t.Errorf("output %q, %v, want %q", b, err, want)
				}
			})
		}
	}
}

// What a shared object's constructor starts before the entry point, threads and forks,
// goes its way: a fork child runs through the entry point itself.
func TestStartWithBusyConstructor(t *testing.T) {
	obj := filepath.Join(t.TempDir(), "early.so")
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-O2", "-pthread", "-o", obj, "../../internal/testprog/process/started.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p, s, out := begin(t, &Command{
		Path: build(t, "started"), Args: []string{"5"}, Env: []string{"LD_PRELOAD=" + obj, "KPROBES_FORK=1"},
	})
	if n := len(s.Threads()); n != 2 {
		t.Errorf("%d threads, want the first and the object's", n)
	}
	atStart(t, p, s)
	injectEach(t, s)
	release(t, s)
	state, err := p.Wait()
	if err != nil || state.ExitCode() != 5 {
		t.Errorf("%v, %v", state, err)
	}
	b, err := io.ReadAll(out)
	if err != nil || strings.Count(string(b), "\nstarted ") != 3 || strings.Contains(string(b), "-1") {
		// the object's fork child, the program's own, and itself
		t.Errorf("output %q, %v", b, err)
	}
}

func TestStartStoppedAgain(t *testing.T) {
	p, s, out := begin(t, &Command{Path: build(t, "live"), Args: []string{"2", "2"}})
	release(t, s)
	if b := make([]byte, 6); true {
		if _, err := io.ReadFull(out, b); err != nil || string(b) != "ready\n" {
			t.Fatalf("%q, %v", b, err)
		}
	}
	state, err := p.Wait() // its input is the null device
	if err != nil || state.ExitCode() != 0 {
		t.Errorf("%v, %v", state, err)
	}
	if _, err := p.Stop(nil); !errors.Is(err, ErrNoProcess) {
		t.Errorf("stop after its end: %v", err)
	}
}

func TestStartKeepsWaitApart(t *testing.T) {
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p, s, out := begin(t, &Command{Path: build(t, "live"), Args: []string{"2", "2"}, Stdin: in})
	in.Close()
	release(t, s)
	if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	for range 20 { // stops do not look like its end
		s := stop(t, p)
		injectEach(t, s)
		release(t, s)
	}
	select {
	case <-p.child.done:
		t.Fatalf("it is taken for ended: %v, %v", p.child.state, p.child.err)
	default:
	}
	w.Close()
	state, err := p.Wait()
	if err != nil || state.ExitCode() != 0 {
		t.Errorf("%v, %v", state, err)
	}
}

func TestStartRefuses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	lost := filepath.Join(dir, "lost")
	obj := filepath.Join(dir, "libgone.so")
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-o", obj, "-x", "c", "/dev/null"},
		{"-Wl,--no-as-needed", "-o", lost, "-x", "c", write("m.c", "int main(void){return 0;}", 0o600), "-x", "none", obj},
	} {
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if err := os.Remove(obj); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, path string
		want       error
	}{
		{"no such file", filepath.Join(dir, "none"), unix.ENOENT},
		{"no such command", "kprobes-no-such-command", unix.ENOENT},
		{"not executable", write("text", "x", 0o644), unix.EACCES},
		{"a directory", dir, unix.EISDIR},
		{"no program", write("junk", "\x7fELF junk", 0o755), unix.ENOEXEC},
		{"script without interpreter", write("script", "#!/kprobes/none\n", 0o755), unix.ENOENT},
		{"missing shared object", lost, ErrNoProcess},
	} {
		p, _, err := Start(&Command{Path: c.path})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v, want %v", c.what, p, err, c.want)
		}
	}
}

// TestStartTracer is no test: it starts a program and dies before it lets it go.
func TestStartTracer(t *testing.T) {
	path := os.Getenv("KPROBES_START")
	if path == "" {
		return
	}
	p, _, err := Start(&Command{Path: path, Args: []string{"0"}})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("pid", p.PID())
	unix.Kill(os.Getpid(), unix.SIGKILL)
}

// Before it is released a started program dies with its tracer.
func TestStartDiesWithTracer(t *testing.T) {
	cmd := reexec("TestStartTracer", "KPROBES_START="+build(t, "started"))
	out, err := cmd.Output()
	if err == nil {
		t.Fatalf("the tracer lives: %s", out)
	}
	var pid int
	if _, err := fmt.Sscanf(string(out), "pid %d", &pid); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if p, err := Open(pid); err == nil {
		<-p.Exited()
		p.Close()
	} else if !errors.Is(err, ErrNoProcess) {
		t.Error(err)
	}
}
