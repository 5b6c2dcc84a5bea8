package codescan

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/symbol"
)

// TestMasks: programs that change signal masks or handlers themselves are known as such, and others are not.
func TestMasks(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"none":     {`println(os.Getpid()); f, _ := os.Open("/dev/null"); f.Close()`, ""},
		"number":   {`syscall.RawSyscall6(14, 0, 0, 0, 8, 0, 0); println(os.Getpid())`, "main.main may change signal masks or handlers"},
		"action":   {`syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, 11, 0, 0, 8, 0, 0); println(os.Getpid())`, "main.main may change signal masks or handlers"},
		"unknown":  {`syscall.Syscall(uintptr(len(os.Args)), 0, 0, 0)`, "main.main may change signal masks"},
		"variable": {`f := syscall.Syscall; if len(os.Args) > 1 { f = syscall.RawSyscall }; f(39, 0, 0, 0)`, "called through a variable"},
		"x/sys":    {`var s unix.Sigset_t; unix.PthreadSigmask(unix.SIG_BLOCK, &s, nil)`, "main.main changes signal masks, by golang.org/x/sys/unix."},
		"affinity": {`var s unix.CPUSet; println(unix.SchedGetaffinity(0, &s))`, ""},
		"other":    {`syscall.Syscall(39, 0, 0, 0); println(os.Getpid())`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file, out := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
			if err := os.WriteFile(file, []byte("package main\nimport (\"os\"; \"syscall\"; \"golang.org/x/sys/unix\")\nvar _, _, _ = os.Getpid, syscall.Getpid, unix.Getpid\nfunc main() { "+c.body+" }\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("go", "build", "-o", out, file)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if b, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, b)
			}
			f, err := os.Open(out)
			if err != nil {
				t.Fatal(err)
			}
			st, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			im, err := symbol.Open(f, st.Size(), out, nil)
			if err != nil {
				t.Fatal(err)
			}
			sp := symbol.NewSpace()
			sp.Add(im, 0, "program")
			err = ChangesMasks(sp, im.ReadAt)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
