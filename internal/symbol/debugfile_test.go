package symbol

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// splitDebug makes a stripped copy of the C program and its separate debug file.
func splitDebug(t *testing.T, flags ...string) (prog, debug string) {
	t.Helper()
	path := build(t, "gcc", cSource, append([]string{"-O2", "-g"}, flags...)...)
	dir := t.TempDir()
	prog, debug = filepath.Join(dir, "prog"), filepath.Join(dir, "prog.debug")
	run(t, "objcopy", "--only-keep-debug", path, debug)
	run(t, "objcopy", "--strip-all", "--add-gnu-debuglink="+debug, path, prog)
	return prog, debug
}

// load opens a file whose tables may have problems.
func load(t *testing.T, path string, o *Options) (*Image, []error) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	im, err := Open(bytes.NewReader(b), int64(len(b)), path, o)
	if err != nil {
		t.Fatal(err)
	}
	return im, im.Problems()
}

func wantLocal(t *testing.T, im *Image, src Source) {
	t.Helper()
	if f := one(t, im, "local_fn"); f.Source != src || f.Size == 0 {
		t.Errorf("local_fn: %+v, want it from %v", f, src)
	}
	if s, err := im.Data("hidden_data"); err != nil || s.Size != 16 {
		t.Errorf("Data(hidden_data) = %+v, %v", s, err)
	}
}

func TestDebugLink(t *testing.T) {
	prog, debug := splitDebug(t, "-Wl,--build-id=none")
	wantLocal(t, open(t, prog, &Options{DebugDirs: []string{}}), SourceDebugFile)

	for _, at := range []string{filepath.Join(filepath.Dir(prog), ".debug"), filepath.Join(t.TempDir(), filepath.Dir(prog))} {
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		moved := filepath.Join(at, "prog.debug")
		if err := os.Rename(debug, moved); err != nil {
			t.Fatal(err)
		}
		root := strings.TrimSuffix(at, filepath.Dir(prog))
		wantLocal(t, open(t, prog, &Options{DebugDirs: []string{root}}), SourceDebugFile)
		debug = moved
	}
}

func TestDebugLinkWrongCRC(t *testing.T) {
	prog, debug := splitDebug(t, "-Wl,--build-id=none")
	f, err := os.OpenFile(debug, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("changed"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	im, problems := load(t, prog, &Options{DebugDirs: []string{}})
	if len(problems) != 1 || !strings.Contains(problems[0].Error(), "CRC") || !errors.Is(problems[0], ErrFormat) {
		t.Errorf("problems %v, want one about the CRC", problems)
	}
	var nf *NotFoundError
	if _, err := im.Lookup("local_fn"); !errors.As(err, &nf) || !strings.Contains(err.Error(), "CRC") {
		t.Errorf("Lookup(local_fn) = %v, want the reason why the debug file was not searched", err)
	}
}

func TestBuildID(t *testing.T) {
	prog, debug := splitDebug(t, "-Wl,--build-id")
	im, _ := load(t, prog, noDebug)
	id := im.BuildID()
	if len(id) != 40 {
		t.Fatalf("build-id %q", id)
	}
	root := t.TempDir()
	at := filepath.Join(root, ".build-id", id[:2], id[2:]+".debug")
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(debug, at); err != nil {
		t.Fatal(err)
	}
	var opened []string
	o := &Options{DebugDirs: []string{"/some/where"}, Open: func(path string) (File, error) {
		opened = append(opened, path)
		rel, ok := strings.CutPrefix(path, "/some/where")
		if !ok {
			return nil, fs.ErrNotExist
		}
		return os.Open(filepath.Join(root, rel))
	}}
	wantLocal(t, open(t, prog, o), SourceDebugFile)
	if len(opened) != 1 {
		t.Errorf("opened %q", opened)
	}
	wantLocal(t, open(t, prog, &Options{DebugDirs: []string{root}}), SourceDebugFile)

	other := build(t, "gcc", "int main(void) { return 3; }", "-g", "-Wl,--build-id")
	run(t, "objcopy", "--only-keep-debug", other, at)
	_, problems := load(t, prog, &Options{DebugDirs: []string{root}})
	if len(problems) != 1 || !strings.Contains(problems[0].Error(), "another build") {
		t.Errorf("problems %v, want one about the build-id", problems)
	}
}

// miniDebug adds .gnu_debugdata to a stripped program, as distributions make it: the
// symbol table alone, compressed.
func miniDebug(t *testing.T, xz ...string) string {
	t.Helper()
	path := buildC(t, "pie")
	dir := t.TempDir()
	debug, mini, prog := filepath.Join(dir, "debug"), filepath.Join(dir, "mini"), filepath.Join(dir, "prog")
	run(t, "objcopy", "--only-keep-debug", path, debug)
	run(t, "objcopy", "-S", "--remove-section", ".comment", "--keep-symbol", "local_fn", "--keep-symbol", "hidden_data", debug, mini)
	run(t, "xz", append(xz, "-k", "-f", mini)...)
	run(t, "objcopy", "--strip-all", "--add-section", ".gnu_debugdata="+mini+".xz", path, prog)
	return prog
}

func TestMiniDebugInfo(t *testing.T) {
	for _, xz := range [][]string{{"-6"}, {"-0", "-Ccrc32"}, {"-9e", "-Csha256"}, {"-Cnone", "--block-size=4096"}} {
		t.Run(strings.Join(xz, " "), func(t *testing.T) {
			wantLocal(t, open(t, miniDebug(t, xz...), noDebug), SourceDebugData)
		})
	}
}

// Without package native what it would have read is named, with the package to import.
func TestWithoutNative(t *testing.T) {
	prog := miniDebug(t, "-6")
	n := native.Swap(nil)
	defer native.Store(n)
	linked, _ := splitDebug(t, "-Wl,--build-id=none")
	if _, problems := load(t, linked, &Options{DebugDirs: []string{}}); len(problems) != 1 || !errors.Is(problems[0], errors.ErrUnsupported) || !strings.Contains(problems[0].Error(), nativePath) {
		t.Errorf("a debug link: %v", problems)
	}
	im, problems := load(t, prog, noDebug)
	if len(problems) != 1 || !errors.Is(problems[0], errors.ErrUnsupported) || !strings.Contains(problems[0].Error(), nativePath) {
		t.Errorf("compressed symbols: %v", problems)
	}
	if _, err := im.Lookup("ns::Server::handle"); err == nil || !strings.Contains(err.Error(), nativePath) {
		t.Errorf("a demangled name: %v", err)
	}
	if got := Demangle("_ZN2ns6Server6handleEi"); got != "_ZN2ns6Server6handleEi" {
		t.Errorf("Demangle gives %q", got)
	}
}
