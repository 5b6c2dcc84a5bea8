package guestkit

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestInterpreter(t *testing.T) {
	box, err := Busybox()
	if err != nil {
		t.Fatal(err)
	}
	if s, err := interpreter(box); err != nil || s != "" {
		t.Errorf("a static program has %q, %v", s, err)
	}
	if s, err := interpreter("/bin/sh"); err != nil || s != "/lib64/ld-linux-x86-64.so.2" {
		t.Errorf("/bin/sh has %q, %v", s, err)
	}
	if _, err := interpreter("/etc/passwd"); err == nil {
		t.Error("a text has an interpreter")
	}
}

func TestLoaded(t *testing.T) {
	maps := filepath.Join(t.TempDir(), "maps")
	if err := os.WriteFile(maps, []byte(`00400000-00401000 r-xp 00000000 fe:00 1 /bin/prog
7f0000000000-7f0000001000 r--p 00000000 fe:00 2 /usr/lib/x86_64-linux-gnu/libc.so.6
7f0000001000-7f0000002000 r-xp 00001000 fe:00 2 /usr/lib/x86_64-linux-gnu/libc.so.6
7f0000003000-7f0000004000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00001000 r-xp 00000000 00:00 0 [vdso]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if libs, err := loaded(maps); err != nil || !slices.Equal(libs, []string{"/usr/lib/x86_64-linux-gnu/libc.so.6"}) {
		t.Errorf("%q, %v", libs, err)
	}
}

// TestSelf: this program is the first file, as it is.
func TestSelf(t *testing.T) {
	files, err := Self()
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	st, err := os.Stat("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if f := files[0]; f.Name != "init" || f.Mode != Program || int64(len(f.Data)) != st.Size() {
		t.Errorf("%s, mode %o, %d bytes", f.Name, f.Mode, len(f.Data))
	}
}
