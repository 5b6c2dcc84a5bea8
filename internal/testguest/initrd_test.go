package testguest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestArchive has busybox unpack an archive.
func TestArchive(t *testing.T) {
	_, box := Image(t)
	dir := t.TempDir()
	files := []file{
		{"init", modeProg, []byte("#!x")},
		{"a/b/one", modeProg, []byte("1")},
		{"a/b/four", 0o100644, []byte("4444")},
		{"a/empty", modeDir, nil},
		{"a", modeDir, nil},
	}
	var b bytes.Buffer
	if err := writeArchive(&b, files); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(box, "cpio", "-idm")
	cmd.Dir, cmd.Stdin = dir, &b
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v: %s", err, out)
	}
	for _, f := range files {
		st, err := os.Stat(filepath.Join(dir, f.name))
		if err != nil || uint32(st.Mode().Perm()) != f.mode&0o777 || st.IsDir() != (f.mode&modeDir == modeDir) {
			t.Errorf("%s: %v, %v; want %o", f.name, st, err, f.mode)
			continue
		}
		if f.data == nil {
			continue
		}
		if got, err := os.ReadFile(filepath.Join(dir, f.name)); err != nil || !bytes.Equal(got, f.data) {
			t.Errorf("%s: %q, %v", f.name, got, err)
		}
	}
}

func TestDependency(t *testing.T) {
	const out = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n"
	if name, err := dependency(out); err != nil || name != "linux-image-6.1.0-56-cloud-amd64" {
		t.Errorf("%q, %v", name, err)
	}
	if name, err := dependency("linux-image-cloud-amd64\n"); err == nil || !strings.Contains(err.Error(), "apt-get update") {
		t.Errorf("no kernel: %q, %v", name, err)
	}
}
