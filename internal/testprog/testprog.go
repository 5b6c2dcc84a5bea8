// Package testprog builds and starts the programs that tests probe.
//
// Each program is small, deterministic and counts for itself what it does, so that a test
// has something independent to compare a probe's counts and values with. They speak one
// protocol: the program prints "ready" once it can be probed, then answers each line on
// its standard input with one line of JSON on its standard output; "quit" or the end of
// the input ends it, with its counts as the last line. What a program does and which
// commands it takes stands at the top of its source.
//
//	p := testprog.Start(t, testprog.Build(t, "work"), "2")
//	var n struct{ FPush uint64 `json:"f_push"` }
//	p.Ask("go 1000", &n)
package testprog

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"kprobes.dev/kprobes/internal/cbuild"
	"kprobes.dev/kprobes/internal/workload"
)

//go:embed src gocgo gocrowd/*.go goforks gohard/*.go goloads/*.go gonests/*.go goserver/*.go gosql/*.go gostacks/*.go gowork/*.go
var sources embed.FS

// TB is what this package needs of a *testing.T or *testing.B.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
	Cleanup(f func())
	TempDir() string
}

// modulePath is the import path of the directory that this package's Go programs lie in.
const modulePath = "kprobes.dev/kprobes/internal/testprog/"

// Build compiles the program name with flags, once, and returns the path of the result:
// src/NAME.c or src/NAME.cc of this package or of internal/workload by the C compiler, or
// the Go program in the directory NAME by go build. Flags go to the compiler after the program's
// own; for C, "CC=clang" takes another compiler; for Go, "NAME=VALUE" sets a variable of
// its environment. A missing compiler ends the test.
//
// The result is shared with other tests: who puts a kernel uprobe on it works on a Copy.
func Build(tb TB, name string, flags ...string) string {
	tb.Helper()
	out, err := build(name, flags)
	if err != nil {
		tb.Fatalf("test program %s: %v", name, err)
	}
	return out
}

func build(name string, flags []string) (string, error) {
	if st, err := fs.Stat(sources, name); err == nil && st.IsDir() {
		return buildGo(name, flags)
	}
	if _, err := fs.Stat(workload.Sources, "src/"+name+".c"); err == nil {
		return cbuild.Build(workload.Sources, "src", name, flags...)
	}
	return cbuild.Build(sources, "src", name, flags...)
}

// buildGo builds one of the Go programs. Its result is named by its own source, the flags
// and the toolchain: the programs import the standard library alone.
func buildGo(name string, flags []string) (string, error) {
	tool, err := exec.LookPath("go")
	if err != nil {
		return "", errors.New("go is not in PATH: install Go")
	}
	var env, args []string
	for _, f := range flags {
		if !strings.HasPrefix(f, "-") && strings.Contains(f, "=") {
			env = append(env, f)
		} else {
			args = append(args, f)
		}
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %q\n", tool, runtime.Version(), flags)
	files, err := fs.Glob(sources, name+"/*")
	if err != nil {
		return "", err
	}
	for _, f := range files {
		text, err := fs.ReadFile(sources, f)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", f, len(text), text)
	}
	key := hex.EncodeToString(h.Sum(nil))[:16]
	return cbuild.Cached(name, key, func(out string) error {
		cmd := exec.Command(tool, append(append([]string{"build", "-o", out}, args...), modulePath+name)...)
		cmd.Env = append(os.Environ(), env...)
		if msg, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd, err, msg)
		}
		return nil
	})
}

// BuildLive compiles a Go program in a directory of this package that imports packages of
// this module. Unlike Build's its result is not kept, since what it imports changes.
func BuildLive(tb TB, name string, flags ...string) string {
	tb.Helper()
	out := filepath.Join(tb.TempDir(), name)
	cmd := exec.Command("go", append(append([]string{"build", "-o", out}, flags...), modulePath+name)...)
	if msg, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%s: %v\n%s", cmd, err, msg)
	}
	return out
}

// Copy copies a program into the test's own directory: for tests that change the file, or
// that put a kernel uprobe on it, which acts on every process of that file.
func Copy(tb TB, program string) string {
	tb.Helper()
	out, err := cbuild.Copy(tb.TempDir(), program)
	if err != nil {
		tb.Fatalf("copy of %s: %v", program, err)
	}
	return out
}
