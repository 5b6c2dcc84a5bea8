package main

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// cpuField finds the first value of a field in the text of /proc/cpuinfo; "?" if it has
// none.
func cpuField(text, field string) string {
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) == field {
			return strings.TrimSpace(value)
		}
	}
	return "?"
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "?"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// readText reads a small file of the kernel's; "" if there is none to be read.
func readText(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

// statusField finds a field in the text of a status file; "" if it has none.
func statusField(text, field string) string {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// sysctl reads a setting by its path below /proc/sys; "" if the kernel does not have it.
func sysctl(name string) string { return strings.TrimSpace(readText("/proc/sys/" + name)) }

// escapedError is an error's text on one line.
func escapedError(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
