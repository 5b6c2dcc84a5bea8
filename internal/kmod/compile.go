package kmod

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Compiler is the command of the compiler: gcc, or what the variable CC names.
func Compiler() []string {
	if words := strings.Fields(os.Getenv("CC")); len(words) > 0 {
		return words
	}
	return []string{"gcc"}
}

// Compile compiles a module's source to an object in a directory, where it puts the headers too.
func Compile(dir, source string) (object string, warnings []byte, err error) {
	headers, name := filepath.Join(dir, "include"), Name(source)
	if err := WriteHeaders(headers); err != nil {
		return "", nil, err
	}
	object = filepath.Join(dir, name+".o")
	cc := Compiler()
	args := slices.Concat(cc[1:], Flags(name, headers), []string{"-c", "-o", object, source})
	out, err := exec.Command(cc[0], args...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return "", nil, fmt.Errorf("%w: install it, name another one in the variable CC, or give an object that is compiled already", err)
	}
	if err != nil {
		return "", nil, fmt.Errorf("%s: %s: %w\n%s", source, cc[0], err, bytes.TrimSpace(out))
	}
	return object, out, nil
}

// Flags are the flags with which a compiler makes a module's object: name is the module's, dir that of the headers. gcc and clang take them.
func Flags(name, dir string) []string {
	return []string{
		"-nostdinc", "-isystem", dir, "-D__KERNEL__", "-DMODULE", `-DKBUILD_MODNAME="` + name + `"`,
		"-O2", "-std=gnu11", "-ffreestanding", "-fno-strict-aliasing", "-fno-strict-overflow", "-fno-delete-null-pointer-checks", "-fno-pic", "-mcmodel=kernel",
		"-mgeneral-regs-only", "-mno-red-zone", "-fno-stack-protector", "-mstack-protector-guard-reg=fs", "-fno-asynchronous-unwind-tables", "-Wall", "-Werror=implicit-function-declaration",
	}
}

// Name is the name of the module that a file is, as the kernel's build makes it: without a directory and an extension, with underscores for hyphens.
func Name(file string) string {
	base := path.Base(file)
	if ext := path.Ext(base); ext == ".c" || ext == ".o" || ext == ".ko" {
		base = strings.TrimSuffix(base, ext)
	}
	return strings.ReplaceAll(base, "-", "_")
}
