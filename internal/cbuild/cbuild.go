// Package cbuild compiles small C and C++ programs from embedded sources and keeps what it
// built in the user's cache, so that tests and `kprobe bench` build each program once.
//
// A built file is named by everything that went into it (sources, headers, flags,
// compiler), is never written again once it stands under its name, and so keeps its
// inode while processes that were started from it run. Any number of processes may build
// at once.
package cbuild

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// ErrNoCompiler says that no compiler for the program's language is in PATH.
var ErrNoCompiler = errors.New("compiler not found")

// baseFlags are given to every build, before the source's own and the caller's flags.
var baseFlags = []string{"-O2", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"}

// buildLine starts a comment line, among the first ten of a source, that names flags which
// that source always needs.
const buildLine = "// build:"

// Build compiles NAME.c or NAME.cc in directory dir of src with flags and returns the path of the result.
// Headers (*.h) in
// dir are found by the compiler. A flag "CC=PROGRAM" takes another
// compiler than gcc or g++. It fails with ErrNoCompiler where there is none.
func Build(src fs.FS, dir, name string, flags ...string) (string, error) {
	sub, err := fs.Sub(src, dir)
	if err != nil {
		return "", fmt.Errorf("build of %s: %w", name, err)
	}
	u, err := newUnit(sub, name, flags)
	if err != nil {
		return "", fmt.Errorf("build of %s: %w", name, err)
	}
	out, err := Cached(name, u.key, u.compile)
	if err != nil {
		return "", fmt.Errorf("build of %s: %w", name, err)
	}
	return out, nil
}

// unit is one program to be compiled.
type unit struct {
	src   fs.FS
	file  string   // the source's name in src
	heads []string // the headers' names in src
	cc    string   // absolute path of the compiler
	flags []string
	key   string
}

func newUnit(src fs.FS, name string, flags []string) (*unit, error) {
	u := &unit{src: src, file: name + ".c"}
	text, err := fs.ReadFile(src, u.file)
	compiler := "gcc"
	if errors.Is(err, fs.ErrNotExist) {
		u.file, compiler = name+".cc", "g++"
		text, err = fs.ReadFile(src, u.file)
	}
	if err != nil {
		return nil, err
	}
	u.flags = append(slices.Clone(baseFlags), ownFlags(text)...)
	for _, f := range flags {
		if cc, ok := strings.CutPrefix(f, "CC="); ok {
			compiler = cc
			continue
		}
		u.flags = append(u.flags, f)
	}
	if u.cc, err = exec.LookPath(compiler); err != nil {
		return nil, fmt.Errorf("%w: %s is not in PATH; install it (Debian: apt-get install %s)",
			ErrNoCompiler, compiler, strings.ReplaceAll(compiler, "gcc", "gcc libc6-dev"))
	}
	if u.heads, err = fs.Glob(src, "*.h"); err != nil {
		return nil, err
	}
	u.key, err = u.hash()
	return u, err
}

// ownFlags reads the flags that a source asks for in its build line.
func ownFlags(text []byte) []string {
	lines := strings.SplitN(string(text), "\n", 11)
	for _, l := range lines[:min(len(lines), 10)] {
		if f, ok := strings.CutPrefix(l, buildLine); ok {
			return strings.Fields(f)
		}
	}
	return nil
}

// hash names the result by all that goes into it. The compiler counts by its path, size
// and time of change.
func (u *unit) hash() (string, error) {
	h := sha256.New()
	st, err := os.Stat(u.cc)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(h, "%s %d %d %q\n", u.cc, st.Size(), st.ModTime().UnixNano(), u.flags)
	for _, f := range append([]string{u.file}, u.heads...) {
		text, err := fs.ReadFile(u.src, f)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", f, len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// compile writes the sources to a directory of their own and compiles them into out.
func (u *unit) compile(out string) error {
	dir, err := os.MkdirTemp("", "kprobes-src-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, f := range append([]string{u.file}, u.heads...) {
		text, err := fs.ReadFile(u.src, f)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, path.Base(f)), text, 0o600); err != nil {
			return err
		}
	}
	libraries := func(f string) bool { return strings.HasPrefix(f, "-l") }
	args := append(slices.DeleteFunc(slices.Clone(u.flags), libraries), "-o", out, u.file)
	args = append(args, slices.DeleteFunc(slices.Clone(u.flags), func(f string) bool { return !libraries(f) })...) // a linker takes of an archive what was asked for before
	cmd := exec.Command(u.cc, args...)
	cmd.Dir = dir
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", u.cc, strings.Join(args, " "), err, msg)
	}
	return nil
}

// Cached returns the path of the file that stands in the cache for name and key, and calls
// build(path) to make it if it is not there. Of several processes that ask at once one
// builds and the others wait.
func Cached(name, key string, build func(out string) error) (string, error) {
	dir, err := cacheDir()
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, key, name)
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(dir, key, ".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	tmp := fmt.Sprintf("%s.%d.tmp", out, os.Getpid())
	defer os.Remove(tmp)
	if err := build(tmp); err != nil {
		return "", err
	}
	// A link never replaces what stands there, unlike a rename: a process that was
	// started from out must not see its file deleted.
	if err := os.Link(tmp, out); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return out, nil
}

// cacheDir is the user's cache, or the directory for temporary files where the user has
// no home.
func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		base = filepath.Join(os.TempDir(), fmt.Sprintf("kprobes-cache-%d", os.Getuid()))
	}
	dir := filepath.Join(base, "kprobes", "programs")
	return dir, os.MkdirAll(dir, 0o755)
}

// lock takes an exclusive lock on a file, made if need be, and returns what gives it back.
func lock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock of %s: %w", name, err)
	}
	return func() { f.Close() }, nil
}

// Copy copies a program to a new file in dir, executable, under its own name. Kernel
// uprobes belong to a file, not to a process: whoever compares with them works on a copy.
func Copy(dir, program string) (string, error) {
	in, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer in.Close()
	out, err := os.OpenFile(filepath.Join(dir, filepath.Base(program)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return "", err
	}
	return out.Name(), out.Close()
}
