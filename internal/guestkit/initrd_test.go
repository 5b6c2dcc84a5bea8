package guestkit

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestArchive has busybox unpack an archive.
func TestArchive(t *testing.T) {
	box, err := Busybox()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := []File{
		{"init", Program, []byte("#!x")},
		{"a/b/one", Program, []byte("1")},
		{"a/b/four", 0o100644, []byte("4444")},
		{"a/empty", Dir, nil},
		{"a", Dir, nil},
		{"link", Link, []byte("a/b/four")},
	}
	var b bytes.Buffer
	if err := WriteArchive(&b, files); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(box, "cpio", "-idm")
	cmd.Dir, cmd.Stdin = dir, &b
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v: %s", err, out)
	}
	for _, f := range files {
		if f.Mode == Link {
			if to, err := os.Readlink(filepath.Join(dir, f.Name)); err != nil || to != string(f.Data) {
				t.Errorf("%s leads to %q, %v", f.Name, to, err)
			}
			continue
		}
		st, err := os.Stat(filepath.Join(dir, f.Name))
		if err != nil || uint32(st.Mode().Perm()) != f.Mode&0o777 || st.IsDir() != (f.Mode&Dir == Dir) {
			t.Errorf("%s: %v, %v; want %o", f.Name, st, err, f.Mode)
			continue
		}
		if f.Data == nil {
			continue
		}
		if got, err := os.ReadFile(filepath.Join(dir, f.Name)); err != nil || !bytes.Equal(got, f.Data) {
			t.Errorf("%s: %q, %v", f.Name, got, err)
		}
	}
}

func TestDependencies(t *testing.T) {
	const out = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-56-cloud-amd64\n"
	if names, err := dependencies(out, []string{"linux-image-"}); err != nil || !slices.Equal(names, []string{"linux-image-6.1.0-56-cloud-amd64"}) {
		t.Errorf("%q, %v", names, err)
	}
	const parts = "linux-image-7.3.4\n  PreDepends: linux-base\n |Depends: dracut\n  Depends: linux-base-7.3.4\n  Depends: linux-binary-7.3.4\n  Depends: linux-modules-7.3.4\n"
	if names, err := dependencies(parts, []string{"linux-binary-", "linux-modules-"}); err != nil || !slices.Equal(names, []string{"linux-binary-7.3.4", "linux-modules-7.3.4"}) {
		t.Errorf("%q, %v", names, err)
	}
	if names, err := dependencies("linux-image-cloud-amd64\n", []string{"linux-image-"}); err == nil || !strings.Contains(err.Error(), "apt-get update") {
		t.Errorf("no kernel: %q, %v", names, err)
	}
}

func TestArchiveURI(t *testing.T) {
	const out = "Debian-Security http://sec.example/debian-security/\nDebian http://deb.example/debian/\nDebian http://deb.example/debian/\n"
	if uri, err := archiveURI(out); err != nil || uri != "http://deb.example/debian/" {
		t.Errorf("%q, %v", uri, err)
	}
	if uri, err := archiveURI("Other http://other.example/\n"); err == nil {
		t.Errorf("no archive of Debian's: %q", uri)
	}
}
