package procfs

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// parted makes this program one with many mappings.
const parted = "KPROBES_TEST_PARTED"

func TestMain(m *testing.M) {
	if os.Getenv(parted) == "" {
		os.Exit(m.Run())
	}
	const pages = 400
	b, err := unix.Mmap(-1, 0, pages*PageSize, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	for i := 0; err == nil && i < pages; i += 2 {
		err = unix.Mprotect(b[i*PageSize:][:PageSize], unix.PROT_NONE)
	}
	fmt.Println(err)
	for in := bufio.NewScanner(os.Stdin); in.Scan() && in.Text() == "exec"; {
		fmt.Println(syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
	}
}

// TestMapsEndEarly: a program ends while its mappings are read, or executes another one. What was read by then is not all of them.
func TestMapsEndEarly(t *testing.T) {
	for _, word := range []string{"stay", "exit", "exec"} {
		t.Run(word, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), parted+"=1")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			pipe, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
			out := bufio.NewScanner(pipe)
			ready := func() {
				if !out.Scan() || out.Text() != "<nil>" {
					t.Fatalf("%q, %v", out.Text(), out.Err())
				}
			}
			ready()
			name := fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid)
			whole, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var read []byte
			text, err := MapsText(f, func() ([]byte, error) {
				first := make([]byte, 100)
				if _, err := io.ReadFull(f, first); err != nil {
					return nil, err
				}
				switch word {
				case "exit":
					in.Close()
					err = unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
				case "exec":
					_, err = io.WriteString(in, "exec\n")
					ready()
				}
				if err != nil {
					return nil, err
				}
				rest, err := io.ReadAll(f)
				read = append(first, rest...)
				return read, err
			})
			if stays := word == "stay"; err != nil || stays != bytes.Equal(read, whole) || stays != bytes.Equal(text, whole) || !stays && (len(text) > 0 || len(read) <= 100) {
				t.Errorf("%v, %d bytes of %d were read, %d given", err, len(read), len(whole), len(text))
			}
		})
	}
}
