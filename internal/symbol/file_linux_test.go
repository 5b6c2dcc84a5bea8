package symbol

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRegularFile finds files through links that lead out of a root, as a program with that root does.
func TestRegularFile(t *testing.T) {
	root := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(root, "usr/lib"), 0o700),
		os.WriteFile(filepath.Join(root, "usr/lib/a.so"), nil, 0o600),
		os.Symlink("/usr/lib", filepath.Join(root, "lib")),
		os.Symlink("/lib/loop", filepath.Join(root, "usr/lib/loop")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want, err := filepath.EvalSymlinks(filepath.Join(root, "usr/lib/a.so"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/usr/lib/a.so", "/lib/a.so", "/usr/../lib/./a.so"} {
		if got, err := RegularFile(root, name); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]error{
		"/lib/nosuch": unix.ENOENT, "lib/a.so": unix.ENOENT, "/lib": unix.EINVAL, "/lib/loop": unix.ELOOP, "/lib/a.so/x": unix.ENOTDIR,
	} {
		if got, err := RegularFile(root, name); !errors.Is(err, want) {
			t.Errorf("%s: %q, %v, want %v", name, got, err, want)
		}
	}
}
