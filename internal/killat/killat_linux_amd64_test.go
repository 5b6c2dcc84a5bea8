package killat

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// victim names the file that the test binary writes to as the program of the tests.
const victim = "KILLAT_TEST_FILE"

func TestMain(m *testing.M) {
	if path := os.Getenv(victim); path != "" {
		if err := write(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// write does what it is killed in: three letters in two phases, by two threads.
func write(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	Mark("first")
	if err := letter(f, "a"); err != nil {
		return err
	}
	Mark("second")
	done := make(chan error)
	go func() { done <- letter(f, "b") }()
	if err := <-done; err != nil {
		return err
	}
	err = letter(f, "c")
	fmt.Println("written")
	return err
}

//go:noinline
func letter(f *os.File, s string) error {
	_, err := unix.Pwrite(int(f.Fd()), []byte(s), int64(s[0]-'a'))
	return err
}

func program(t *testing.T, file string) *Program {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &Program{Path: exe, Env: append(os.Environ(), victim+"="+file), Patience: time.Minute}
}

// A call that the program is killed at the entry of is not made; one that it is killed at the
// exit of is.
func TestKilled(t *testing.T) {
	for i, c := range []struct {
		phase string
		n     int // of the phase's calls of pwrite
		exit  bool
		want  string
	}{
		{"first", 0, false, ""},
		{"first", 0, true, "a"},
		{"second", 0, false, "a"},
		{"second", 0, true, "ab"},
		{"second", 1, false, "ab"},
		{"second", 1, true, "abc"},
		{"second", 2, true, "abc"}, // there is no such call
	} {
		file := filepath.Join(t.TempDir(), "letters")
		n := 0
		out, err := program(t, file).Run(func(pt *Point) bool {
			if pt.Phase != c.phase || pt.Nr != unix.SYS_PWRITE64 || pt.Exit != c.exit {
				return false
			}
			if !slices.ContainsFunc(pt.Stack(), func(s string) bool { return strings.HasSuffix(s, "killat.letter") }) || pt.Name() != "pwrite64" {
				t.Errorf("%d: %s by %q", i, pt.Name(), pt.Stack())
			}
			n++
			return n == c.n+1
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != c.want {
			t.Errorf("%+v: %q is written: %v", c, got, err)
		}
		killed := out.Struck && out.Status.Signal() == syscall.SIGKILL && out.Output == ""
		ended := !out.Struck && out.Status.ExitStatus() == 0 && out.Output == "written\n"
		if whole := c.n == 2; killed == whole || ended != whole || out.Points["first"] == 0 {
			t.Errorf("%+v: %+v", c, out)
		}
	}
}

// A program that is stopped at some system calls alone is killed at these as at others, and passes
// no others.
func TestCalls(t *testing.T) {
	for _, exit := range []bool{false, true} {
		file := filepath.Join(t.TempDir(), "letters")
		p := program(t, file)
		p.Calls = []uint64{unix.SYS_PWRITE64}
		points := 0
		out, err := p.Run(func(pt *Point) bool {
			points++
			if pt.Nr != unix.SYS_PWRITE64 && pt.Nr != unix.SYS_PRCTL {
				t.Errorf("%s is a point", pt.Name())
			}
			return pt.Phase == "second" && pt.Exit == exit
		})
		if err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{false: "a", true: "ab"}[exit]
		if got, err := os.ReadFile(file); err != nil || string(got) != want || !out.Struck {
			t.Errorf("exit %t: %q is written: %v, %+v", exit, got, err, out)
		}
		if points == 0 {
			t.Error("no points")
		}
	}
	p := program(t, filepath.Join(t.TempDir(), "letters"))
	p.Calls = []uint64{unix.SYS_PWRITE64}
	if out, err := p.Run(func(*Point) bool { return false }); err != nil || out.Status.ExitStatus() != 0 || out.Points["second"] != 4 {
		t.Errorf("a run to the end: %+v, %v", out, err)
	}
}

// A program that does not end is killed, and that is an error.
func TestPatience(t *testing.T) {
	p := &Program{Path: program(t, "").Path, Args: []string{"-test.run=^TestSleeps$"}, Env: append(os.Environ(), "KILLAT_TEST_SLEEP=1"), Patience: time.Second}
	if _, err := p.Run(func(*Point) bool { return false }); err == nil || !strings.Contains(err.Error(), "did not end") {
		t.Errorf("a program that sleeps: %v", err)
	}
}

// TestSleeps is no test: it is the program of TestPatience.
func TestSleeps(*testing.T) {
	if os.Getenv("KILLAT_TEST_SLEEP") != "" {
		time.Sleep(time.Hour)
	}
}
