package qemu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseSpec(t *testing.T) {
	tests := []struct {
		in   string
		want Spec
		err  string // part of the error
	}{
		{"qmp=/a,gdb=/b,mem=/c", Spec{QMP: "/a", GDB: "/b", Memory: "/c"}, ""},
		{"ring=/d,mem=/c,gdb=/b,qmp=/a", Spec{QMP: "/a", GDB: "/b", Memory: "/c", Ring: "/d"}, ""},
		{"qmp=/a=b,gdb=/b,mem=/c", Spec{QMP: "/a=b", GDB: "/b", Memory: "/c"}, ""},
		{"qmp=/a,gdb=/b", Spec{}, "mem=PATH is missing; QEMU must have been started with"},
		{"qmp=/a,gdb=/b,mem=", Spec{}, "mem= has no path"},
		{"qmp=/a,qmp=/b,gdb=/b,mem=/c", Spec{}, "qmp= stands there twice"},
		{"qmp=/a,gdb=/b,mem=/c,rang=/d", Spec{}, `"rang=/d" is not one of`},
		{"qmp=/a,", Spec{}, `"" is not one of`},
		{"", Spec{}, "neither"},
	}
	for _, c := range tests {
		got, err := ParseSpec(c.in)
		if c.err == "" {
			if err != nil || got != c.want {
				t.Errorf("%q: %+v, %v", c.in, got, err)
			} else if again, err := ParseSpec(got.String()); err != nil || again != got {
				t.Errorf("%q: its text %q: %+v, %v", c.in, got.String(), again, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.err) || !errors.Is(err, unix.EINVAL) {
			t.Errorf("%q: error %v, want EINVAL with %q", c.in, err, c.err)
		}
	}
}

// TestParseSpecAt has relative paths begin at a directory.
func TestParseSpecAt(t *testing.T) {
	dir := t.TempDir()
	want := Spec{QMP: dir + "/a", GDB: "/b", Memory: dir + "/d/c"}
	if got, err := ParseSpecAt(dir, "qmp=a,gdb=/b,mem=d/c"); err != nil || got != want {
		t.Errorf("a list: %+v, %v; want %+v", got, err, want)
	}
	r := &record{PID: 7, QMP: "/a", GDB: "/b", Memory: "/c"}
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	want = Spec{QMP: "/a", GDB: "/b", Memory: "/c", Dir: dir}
	for _, s := range []string{".", "../" + filepath.Base(dir), dir} {
		if got, err := ParseSpecAt(dir, s); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", s, got, err, want)
		}
	}
}

func TestParseSpecDirectory(t *testing.T) {
	dir := t.TempDir()
	if _, err := ParseSpec(dir); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "kprobe guest start") {
		t.Errorf("a directory without a guest: %v", err)
	}
	if _, err := ParseSpec(dir + "/none"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no directory: %v", err)
	}
	for _, bad := range []string{"", "{", "[]", "{}", `{"pid":1,"qmp":"/a","gdb":"/b"}`, `{"pid":-1,"qmp":"/a","gdb":"/b","memory":"/c"}`} {
		if err := os.WriteFile(filepath.Join(dir, recordName), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ParseSpec(dir); !errors.Is(err, unix.EINVAL) {
			t.Errorf("record %q: %v, want EINVAL", bad, err)
		}
	}
	r := &record{PID: 7, QMP: "/a", GDB: "/b", Memory: "/c", Ring: "/d"}
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	want := Spec{QMP: "/a", GDB: "/b", Memory: "/c", Ring: "/d", Dir: dir}
	if got, err := ParseSpec(dir); err != nil || got != want || got.String() != dir {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func TestRecordOfAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file to another user")
	}
	dir := t.TempDir()
	r := &record{PID: 7, QMP: "/a", GDB: "/b", Memory: "/c"}
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(dir, recordName), 12345, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := ParseSpec(dir); !errors.Is(err, unix.EPERM) {
		t.Errorf("another user's record: %v, want EPERM", err)
	}
}
