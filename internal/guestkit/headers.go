package guestkit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Headers gives the folder in which modules of a kernel are built, fetched like Kernel: make -C FOLDER M=DIR modules.
func Headers(b Build) (string, error) {
	release, err := releaseOf(b)
	if err != nil {
		return "", err
	}
	name := "linux-headers-" + release
	dir, err := Unpacked(Build{Package: name, Suite: b.Suite})
	if err != nil {
		return "", fmt.Errorf("headers of the guest's kernel: %w; if it is an old one, remove %s to have a newer one", err, folder(b.String()))
	}
	return filepath.Join(dir, "usr", "src", name), nil
}

// Samples gives the folder with the kernel's own modules that show kprobes (samples/kprobes), of the release that a kernel is made of. The first call of a
// machine fetches the kernel's source, some 140 MB.
func Samples(b Build) (string, error) {
	release, err := releaseOf(b)
	if err != nil {
		return "", err
	}
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 3 {
		return "", fmt.Errorf("samples of the guest's kernel: release %q", release)
	}
	name := "linux-source-" + parts[0] + "." + parts[1]
	dir, err := Unpacked(Build{Package: name, Suite: b.Suite})
	if err != nil {
		return "", fmt.Errorf("samples of the guest's kernel: %w", err)
	}
	return filepath.Join(dir, "usr", "src", name, samples), nil
}

// samples is what is kept of a kernel's source.
const samples = "samples/kprobes"

// releaseOf is the release of a kernel, as uname -r tells it there.
func releaseOf(b Build) (string, error) {
	dir, err := Unpacked(b)
	if err != nil {
		return "", fmt.Errorf("kernel for the guest: %w", err)
	}
	config, err := one(filepath.Join(dir, "boot", "config-*"))
	if err != nil {
		return "", err
	}
	return strings.TrimPrefix(filepath.Base(config), "config-"), nil
}

// unpackSource unpacks of a kernel's source what is kept.
func (a *apt) unpackSource(name string) error {
	if err := a.unpack(name); err != nil {
		return err
	}
	src := filepath.Join(a.dir, "tree", "usr", "src")
	archive := filepath.Join(src, name+".tar.xz")
	if _, err := a.run("tar", "-C", src, "-xJf", archive, name+"/"+samples); err != nil {
		return err
	}
	return os.Remove(archive)
}

// unpackHeaders unpacks the headers of a kernel and what they are built with. They look for each other below /usr/src.
func (a *apt) unpackHeaders(b Build) error {
	more, err := a.dependencies(b.Package, "linux-headers-", "linux-kbuild-")
	if err != nil {
		return err
	}
	for _, p := range append(more, b.Package) {
		if err := a.unpack(p); err != nil {
			return err
		}
	}
	file := filepath.Join("usr", "src", b.Package, "Makefile")
	text, err := os.ReadFile(filepath.Join(a.dir, "tree", file))
	if err != nil {
		return err
	}
	text = bytes.ReplaceAll(text, []byte("/usr/src/"), []byte(filepath.Join(folder(b.String()), "usr", "src")+"/"))
	return os.WriteFile(filepath.Join(a.dir, "tree", file), text, 0o644)
}
