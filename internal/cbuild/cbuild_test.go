package cbuild

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

// cache points the cache at a directory of the test's own.
func cache(t *testing.T) {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
}

func source(main string) fstest.MapFS {
	return fstest.MapFS{
		"d/p.c": {Data: []byte("// A program.\n// build: -DOWN=3\n#include \"h.h\"\nint main(void) { return " + main + "; }\n")},
		"d/h.h": {Data: []byte("#define HEAD 40\n")},
	}
}

func status(t *testing.T, program string) int {
	t.Helper()
	err := exec.Command(program).Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit == nil {
		return 0
	}
	return exit.ExitCode()
}

func TestBuildUsesHeadersOwnFlagsAndCallersFlags(t *testing.T) {
	cache(t)
	out, err := Build(source("HEAD + OWN + MORE"), "d", "p", "-DMORE=20")
	if err != nil {
		t.Fatal(err)
	}
	if got := status(t, out); got != 63 {
		t.Errorf("exit status %d, want 63", got)
	}
}

func TestBuildTakesTheCompilerItIsTold(t *testing.T) {
	const gcc = `__builtin_strncmp(__VERSION__, "1", 1) == 0` // clang's begins with its name
	cache(t)
	out, err := Build(source(gcc), "d", "p")
	if err != nil {
		t.Fatal(err)
	}
	clang, err := Build(source(gcc), "d", "p", "CC=clang")
	if err != nil {
		t.Fatal(err)
	}
	if g, c := status(t, out), status(t, clang); g != 1 || c != 0 {
		t.Errorf("gcc's program gave %d and clang's %d, want 1 and 0", g, c)
	}
}

// The same request gives the same file; another source, header or flag another one.
func TestBuildIsCachedByContent(t *testing.T) {
	cache(t)
	paths := map[string]string{}
	build := func(what string, fs fstest.MapFS, flags ...string) os.FileInfo {
		out, err := Build(fs, "d", "p", flags...)
		if err != nil {
			t.Fatal(err)
		}
		paths[what] = out
		st, err := os.Stat(out)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	first := build("first", source("1"))
	if again := build("again", source("1")); !os.SameFile(first, again) || !first.ModTime().Equal(again.ModTime()) {
		t.Error("the same request built anew")
	}
	build("source", source("2"))
	build("flag", source("1"), "-DX")
	head := source("1")
	head["d/h.h"].Data = []byte("#define HEAD 41\n")
	build("header", head)
	seen := map[string]string{}
	for what, p := range paths {
		if other, ok := seen[p]; ok && what != "again" && other != "again" {
			t.Errorf("%s and %s share %s", what, other, p)
		}
		seen[p] = what
	}
}

// Many builders at once, as tests of several packages are: one file, never replaced.
func TestCachedIsBuiltOnce(t *testing.T) {
	cache(t)
	var mu sync.Mutex
	var wg sync.WaitGroup
	built, paths := 0, map[string]int{}
	for range 16 {
		wg.Go(func() {
			out, err := Cached("name", "key", func(out string) error {
				mu.Lock()
				built++
				mu.Unlock()
				return os.WriteFile(out, []byte("x"), 0o755)
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			paths[out]++
		})
	}
	wg.Wait()
	if built != 1 || len(paths) != 1 {
		t.Errorf("built %d times, paths %v, want once and one path", built, paths)
	}
}

func TestCachedLeavesNothingOfAFailedBuild(t *testing.T) {
	cache(t)
	boom := errors.New("boom")
	_, err := Cached("name", "key", func(out string) error {
		if err := os.WriteFile(out, []byte("half"), 0o755); err != nil {
			t.Fatal(err)
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatalf("error %v, want boom", err)
	}
	out, err := Cached("name", "key", func(out string) error { return os.WriteFile(out, []byte("whole"), 0o755) })
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(out); string(text) != "whole" || err != nil {
		t.Errorf("content %q, %v", text, err)
	}
	entries, err := filepath.Glob(filepath.Join(filepath.Dir(out), "*"))
	if err != nil || len(entries) != 2 { // the file and its lock
		t.Errorf("files left: %v, %v", entries, err)
	}
}

func TestBuildErrors(t *testing.T) {
	cache(t)
	if _, err := Build(source("1"), "d", "p", "CC=no-such-compiler"); !errors.Is(err, ErrNoCompiler) || !strings.Contains(err.Error(), "install") {
		t.Errorf("missing compiler: error %v", err)
	}
	if _, err := Build(source("1"), "d", "q"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing source: error %v", err)
	}
	if _, err := Build(source("nonsense"), "d", "p"); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("bad source: error %v, want the compiler's words", err)
	}
}

func TestCopy(t *testing.T) {
	dir := t.TempDir()
	from := filepath.Join(t.TempDir(), "p")
	if err := os.WriteFile(from, []byte("bytes"), 0o700); err != nil {
		t.Fatal(err)
	}
	to, err := Copy(dir, from)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(to)
	if err != nil || st.Mode().Perm()&0o111 == 0 || filepath.Base(to) != "p" {
		t.Errorf("%s: %v, %v", to, st, err)
	}
	if text, err := os.ReadFile(to); string(text) != "bytes" || err != nil {
		t.Errorf("content %q, %v", text, err)
	}
	if _, err := Copy(dir, from); err == nil {
		t.Error("a second copy replaced the first")
	}
}
