package guestkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Build is a kernel of Debian's.
type Build struct {
	// Package depends on the newest linux-image-VERSION of its kind: linux-image-cloud-amd64,
	// linux-image-amd64, linux-image-rt-amd64.
	Package string
	// Suite is the release of Debian that it is taken from; "" is what apt is configured for here.
	Suite string
}

// String names the folder that it is unpacked in.
func (b Build) String() string {
	if b.Suite == "" {
		return b.Package
	}
	return b.Package + "@" + b.Suite
}

// Cloud is the kernel that is taken where none is named.
var Cloud = Build{Package: "linux-image-cloud-amd64"}

var busybox = Build{Package: "busybox-static"}

// Kernel gives Debian's newest cloud kernel, a bzImage. The first call of a machine fetches it,
// which takes seconds; any number of processes may ask at once.
func Kernel() (string, error) { return KernelOf(Cloud) }

// KernelOf gives a kernel of Debian's, as Kernel does.
func KernelOf(b Build) (string, error) {
	k, err := Unpacked(b)
	if err != nil {
		return "", fmt.Errorf("kernel for the guest: %w", err)
	}
	return kernelIn(k)
}

// kernelIn finds the kernel in what was unpacked: beside its modules since Linux 7.
func kernelIn(dir string) (string, error) {
	return one(filepath.Join(dir, "boot", "vmlinuz-*"), filepath.Join(dir, "usr", "lib", "modules", "*", "vmlinuz"))
}

// Module gives a module of a kernel, by its path below the kernel's folder and without its ending:
// drivers/net/dummy. The file may be compressed.
func Module(b Build, name string) (string, error) {
	k, err := Unpacked(b)
	if err != nil {
		return "", fmt.Errorf("module %s for the guest: %w", name, err)
	}
	file := filepath.Join("lib", "modules", "*", "kernel", name+".ko*")
	return one(filepath.Join(k, file), filepath.Join(k, "usr", file))
}

// HasKernel says that Kernel has nothing to fetch.
func HasKernel() bool {
	_, err := os.Stat(folder(Cloud.String()))
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

// one is the only file that patterns match.
func one(patterns ...string) (string, error) {
	var found []string
	for _, p := range patterns {
		f, err := filepath.Glob(p)
		if err != nil {
			return "", err
		}
		found = append(found, f...)
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s: %d files, want 1", strings.Join(patterns, ", "), len(found))
	}
	return found[0], nil
}

// Unpacked gives the folder that a package of Debian's is unpacked in; for a kernel it is the newest
// one's. What is there is not fetched again: remove the folder to have a newer one.
func Unpacked(b Build) (string, error) {
	dir := folder(b.String())
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
	tmp, err := os.MkdirTemp(filepath.Dir(dir), b.Package+".tmp-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := fetch(b, tmp); err != nil {
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
func fetch(b Build, dir string) error {
	a := &apt{dir: dir}
	if b.Suite != "" {
		if err := a.takeSuite(b.Suite); err != nil {
			return err
		}
	}
	switch {
	case strings.HasPrefix(b.Package, "linux-source-"):
		return a.unpackSource(b.Package)
	case strings.HasPrefix(b.Package, "linux-headers-"):
		return a.unpackHeaders(b)
	case !strings.HasPrefix(b.Package, "linux-image-"):
		return a.unpack(b.Package)
	}
	names, err := a.dependencies(b.Package, "linux-image-")
	if err != nil {
		return err
	}
	if err := a.unpack(names[0]); err != nil {
		return err
	}
	if _, err := kernelIn(filepath.Join(dir, "tree")); err == nil {
		return nil
	}
	parts, err := a.dependencies(names[0], "linux-binary-", "linux-modules-") // Linux 7 comes in parts
	if err != nil {
		return err
	}
	for _, p := range parts {
		if err := a.unpack(p); err != nil {
			return err
		}
	}
	return nil
}

// apt runs Debian's package tools in a directory.
type apt struct {
	dir     string
	options []string // of apt-get and apt-cache: what makes a suite theirs
}

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// takeSuite has the tools take packages from another suite of the archive that apt is configured for:
// with lists of their own, so that what is installed here stays as it is.
func (a *apt) takeSuite(suite string) error {
	out, err := a.run("apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return err
	}
	uri, err := archiveURI(out)
	if err != nil {
		return err
	}
	var signed string
	if _, err := os.Stat(keyring); err == nil {
		signed = "[signed-by=" + keyring + "] "
	}
	list := filepath.Join(a.dir, "sources.list")
	if err := os.WriteFile(list, fmt.Appendf(nil, "deb %s%s %s main\n", signed, uri, suite), 0o644); err != nil {
		return err
	}
	lists, cache := filepath.Join(a.dir, "lists"), filepath.Join(a.dir, "cache")
	for _, d := range []string{lists, cache} {
		if err := os.MkdirAll(filepath.Join(d, "partial"), 0o755); err != nil {
			return err
		}
	}
	for _, o := range []string{
		"Dir::Etc::SourceList=" + list, "Dir::Etc::SourceParts=/dev/null",
		"Dir::Etc::Preferences=/dev/null", "Dir::Etc::PreferencesParts=/dev/null",
		"Dir::State::Lists=" + lists, "Dir::Cache=" + cache, "Acquire::Languages=none",
		"APT::Sandbox::User=", // the folder is this user's
	} {
		a.options = append(a.options, "-o", o)
	}
	_, err = a.run("apt-get", "update", "-q")
	return err
}

// archiveURI reads where Debian's archive is from what apt-get indextargets prints of the suites that apt
// is configured for: updates that it has elsewhere, as for security, have another label.
func archiveURI(out string) (uri string, err error) {
	for line := range strings.Lines(out) {
		if uri, ok := strings.CutPrefix(strings.TrimSpace(line), "Debian "); ok {
			return uri, nil
		}
	}
	return "", fmt.Errorf("apt-get indextargets names no archive of Debian's: %q; is this Debian, and was apt-get update run?", out)
}

// unpack downloads a package and unpacks it into dir/tree.
func (a *apt) unpack(name string) error {
	if _, err := a.run("apt-get", "download", name); err != nil {
		return err
	}
	deb, err := one(filepath.Join(a.dir, "*.deb"))
	if err != nil {
		return err
	}
	if _, err = a.run("dpkg", "-x", deb, filepath.Join(a.dir, "tree")); err != nil {
		return err
	}
	return os.Remove(deb)
}

// dependencies lists what a package depends on whose name begins in one of some ways; at least one.
func (a *apt) dependencies(name string, begins ...string) ([]string, error) {
	out, err := a.run("apt-cache", "depends", name)
	if err != nil {
		return nil, err
	}
	return dependencies(out, begins)
}

// dependencies reads what apt-cache depends prints.
func dependencies(out string, begins []string) ([]string, error) {
	var names []string
	for line := range strings.Lines(out) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: ")
		if ok && slices.ContainsFunc(begins, func(b string) bool { return strings.HasPrefix(name, b) }) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("apt-cache depends names no kernel (%s): %q; is this Debian, and was apt-get update run?", strings.Join(begins, ", "), out)
	}
	return names, nil
}

// run runs a program of Debian's.
func (a *apt) run(name string, args ...string) (string, error) {
	if strings.HasPrefix(name, "apt-") {
		args = slices.Concat(a.options, args)
	}
	cmd := exec.Command(name, args...)
	cmd.Dir = a.dir
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
