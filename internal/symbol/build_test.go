package symbol

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// workDir holds what the tests of this package build.
var workDir string

func TestMain(m *testing.M) {
	var err error
	if workDir, err = os.MkdirTemp("", "symbol-test-"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(workDir)
	os.Exit(code)
}

// run executes a tool that the tests need.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("%v: install gcc, g++, clang, binutils, xz-utils", err)
	}
	cmd := exec.Command(name, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

var (
	builtMu sync.Mutex
	built   = map[string]string{}
)

// build compiles a source text once for each set of flags and gives the path of the
// result. The tool is a compiler driver, or "go".
func build(t testing.TB, tool, src string, flags ...string) string {
	t.Helper()
	builtMu.Lock()
	defer builtMu.Unlock()
	key := tool + "\x00" + src + "\x00" + strings.Join(flags, "\x00")
	if p := built[key]; p != "" {
		return p
	}
	dir, err := os.MkdirTemp(workDir, "b")
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "prog")
	switch {
	case tool == "go":
		buildGo(t, dir, src, out, flags)
	case strings.HasSuffix(tool, "++"):
		write(t, filepath.Join(dir, "prog.cc"), src)
		run(t, tool, append([]string{"-o", out, filepath.Join(dir, "prog.cc")}, flags...)...)
	default:
		write(t, filepath.Join(dir, "prog.c"), src)
		run(t, tool, append([]string{"-o", out, filepath.Join(dir, "prog.c")}, flags...)...)
	}
	built[key] = out
	return out
}

// buildGo builds for amd64, as the compilers of C here do, also where this test runs under emulation of
// another processor. A flag "GOARCH=..." says otherwise.
func buildGo(t testing.TB, dir, src, out string, flags []string) {
	t.Helper()
	write(t, filepath.Join(dir, "main.go"), src)
	write(t, filepath.Join(dir, "go.mod"), "module example.com/prog\n\ngo 1.26\n")
	env := append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOARCH=amd64", "CGO_ENABLED=1")
	if len(flags) > 0 && strings.HasPrefix(flags[0], "GOARCH=") {
		env, flags = append(env, flags[0], "CGO_ENABLED=0"), flags[1:]
	}
	cmd := exec.Command("go", append([]string{"build", "-o", out}, flags...)...)
	cmd.Dir, cmd.Env = dir, env
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %v: %v\n%s", flags, err, b)
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// objcopy makes a changed copy of a file beside it.
func objcopy(t testing.TB, path, suffix string, args ...string) string {
	t.Helper()
	out := path + suffix
	run(t, "objcopy", append(args, path, out)...)
	return out
}

// noDebug keeps an Image to the file itself.
var noDebug = &Options{NoDebugFiles: true}

// open opens and loads a file that must have no problems.
func open(t testing.TB, path string, o *Options) *Image {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	im, err := Open(f, st.Size(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := im.Load(); err != nil {
		t.Fatal(err)
	}
	return im
}

// one looks a name up that must be there once.
func one(t testing.TB, im *Image, name string) *Func {
	t.Helper()
	fns, err := im.Lookup(name)
	if err != nil {
		t.Fatalf("Lookup(%q): %v", name, err)
	}
	if len(fns) != 1 {
		t.Fatalf("Lookup(%q) gives %v", name, fns)
	}
	return fns[0]
}

// nmSym is a line of nm.
type nmSym struct {
	addr, size uint64
	kind       byte
	name       string
}

// nm lists the defined symbols of a file.
func nm(t testing.TB, path string, flags ...string) []nmSym {
	t.Helper()
	var out []nmSym
	for line := range strings.Lines(run(t, "nm", append(flags, "-f", "posix", "--defined-only", path)...)) {
		p := strings.Fields(line)
		if len(p) < 3 {
			continue
		}
		s := nmSym{name: p[0], kind: p[1][0], addr: hexNum(t, p[2])}
		if len(p) > 3 {
			s.size = hexNum(t, p[3])
		}
		out = append(out, s)
	}
	return out
}
