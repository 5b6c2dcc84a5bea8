package executables

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/cbuild"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	script, text := filepath.Join(dir, "script"), filepath.Join(dir, "text")
	err := errors.Join(os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755), os.WriteFile(text, []byte("plain"), 0o755), os.Symlink("/bin/sh", filepath.Join(dir, "link")))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{
		script: unix.ENOEXEC, text: unix.ENOEXEC, dir: unix.EINVAL, filepath.Join(dir, "none"): unix.ENOENT, "no-such-program-of-anybody": unix.ENOENT,
	} {
		if f, err := Find(name); !errors.Is(err, want) {
			t.Errorf("%s: %v, %v; want %v", name, f, err, want)
		}
	}
	shell, err := Find("sh")
	if err != nil {
		t.Fatal(err)
	}
	link, err := Find(filepath.Join(dir, "link"))
	if err != nil || link.Path() != shell.Path() {
		t.Errorf("by a link %v, %v; want %s", link, err, shell.Path())
	}
	inRoot, err := Find("/proc/self/root/bin/sh")
	if err != nil || inRoot.Path() != "/proc/self/root"+shell.Path() {
		t.Errorf("in a root directory %v, %v; want /proc/self/root%s", inRoot, err, shell.Path())
	}
}

// A process is found by the file that it runs: also by another name, and when the file is gone.
func TestRunning(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	prog, err := cbuild.Copy(t.TempDir(), sleep)
	if err != nil {
		t.Fatal(err)
	}
	hard := prog + "-too"
	if err := os.Link(prog, hard); err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, name := range []string{prog, hard, sleep} {
		cmd := exec.Command(name, "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
		pids = append(pids, cmd.Process.Pid)
	}
	check := func(f *File, what string, want ...int) {
		t.Helper()
		got, err := f.Running()
		slices.Sort(got)
		slices.Sort(want)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", what, got, err, want)
		}
	}
	f, err := Find(prog)
	if err != nil {
		t.Fatal(err)
	}
	check(f, "as it is", pids[0], pids[1])
	next, err := cbuild.Copy(t.TempDir(), sleep)
	if err == nil {
		err = errors.Join(os.Remove(hard), os.Rename(next, prog))
	}
	if err != nil {
		t.Fatal(err)
	}
	check(f, "replaced", pids[0], pids[1])
	if f, err = Find(prog); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Running(); err != nil { // which finds by the first process what file was there before
		t.Fatal(err)
	}
	check(f, "what was there before", pids[0], pids[1])
}

// The end of each process is told once, of one that has ended already too.
func TestEnds(t *testing.T) {
	told := make(chan *entry)
	e, err := newEnds(func(en *entry) { told <- en })
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	for range 3 {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		en := &entry{pid: cmd.Process.Pid}
		if err := e.add(en); err != nil {
			t.Error(err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		if got := <-told; got != en {
			t.Errorf("%+v is told for %+v", got, en)
		}
		if err := e.add(en); err != nil { // it waits to be waited for
			t.Error(err)
		}
		if got := <-told; got != en {
			t.Errorf("%+v is told again for %+v", got, en)
		}
		_ = cmd.Wait()
	}
}
