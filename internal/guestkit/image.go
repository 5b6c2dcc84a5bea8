package guestkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	kernelMeta = "linux-image-cloud-amd64" // depends on the newest linux-image-VERSION-cloud-amd64
	busybox    = "busybox-static"
)

// Kernel gives Debian's newest cloud kernel, a bzImage. The first call of a machine fetches it,
// which takes seconds; any number of processes may ask at once.
func Kernel() (string, error) {
	k, err := Unpacked(kernelMeta)
	if err != nil {
		return "", fmt.Errorf("kernel for the guest: %w", err)
	}
	return one(filepath.Join(k, "boot", "vmlinuz-*"))
}

// HasKernel says that Kernel has nothing to fetch.
func HasKernel() bool {
	_, err := os.Stat(folder(kernelMeta))
	return err == nil
}

// Busybox gives a static busybox, fetched like Kernel.
func Busybox() (string, error) {
	b, err := Unpacked(busybox)
	if err != nil {
		return "", fmt.Errorf("busybox for the guest: %w", err)
	}
	return one(filepath.Join(b, "bin", "busybox"))
}

// one is the only file that a pattern matches.
func one(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%s: %d files, want 1", pattern, len(found))
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// Unpacked gives the folder that a package of Debian's is unpacked in; for
// linux-image-cloud-amd64 it is the newest kernel's. What is there is not fetched again:
// remove the folder to have a newer one.
func Unpacked(name string) (string, error) {
	dir := folder(name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), name+".tmp-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := fetch(name, tmp); err != nil {
		return "", err
	}
	return dir, os.Rename(filepath.Join(tmp, "tree"), dir)
}

func folder(name string) string {
	base, err := os.UserCacheDir()
	if err != nil {
		base = filepath.Join(os.TempDir(), fmt.Sprintf("kprobes-cache-%d", os.Getuid()))
	}
	return filepath.Join(base, "kprobes", "guest", name)
}

func lockFile(name string) (unlock func(), err error) {
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

// fetch downloads a package into dir and unpacks it into dir/tree.
func fetch(name, dir string) error {
	if name == kernelMeta {
		out, err := tool(dir, "apt-cache", "depends", name)
		if err != nil {
			return err
		}
		if name, err = dependency(out); err != nil {
			return err
		}
	}
	if _, err := tool(dir, "apt-get", "download", name); err != nil {
		return err
	}
	deb, err := one(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	_, err = tool(dir, "dpkg", "-x", deb, filepath.Join(dir, "tree"))
	return err
}

// dependency reads the kernel's name from what apt-cache depends prints.
func dependency(out string) (string, error) {
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(name, "linux-image-") {
			return name, nil
		}
	}
	return "", fmt.Errorf("apt-cache depends %s names no kernel: %q; is this Debian, and was apt-get update run?", kernelMeta, out)
}

// tool runs a program of Debian's.
func tool(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err == nil {
		return string(out), nil
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return "", fmt.Errorf("%s %s: %w; guests are made of Debian's packages: on Debian apt-get update may be needed", name, strings.Join(args, " "), err)
}
