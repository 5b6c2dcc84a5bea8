package kmod

import (
	"path"
	"strings"
)

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
