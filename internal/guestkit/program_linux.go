package guestkit

import (
	"bufio"
	"debug/elf"
	"fmt"
	"os"
	"strings"
)

// Self are the files of an initial RAM disk that has this process's own program as its /init:
// the program, and if it is not static its loader and the libraries that it has loaded here.
func Self() ([]File, error) {
	const self = "/proc/self/exe"
	init, err := readFile("init", self)
	if err != nil {
		return nil, err
	}
	files := []File{init}
	loader, err := interpreter(self)
	if err != nil || loader == "" {
		return files, err
	}
	libs, err := loaded("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	for _, path := range append([]string{loader}, libs...) {
		f, err := readFile(strings.TrimPrefix(path, "/"), path)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func readFile(name, path string) (File, error) {
	b, err := os.ReadFile(path)
	return File{Name: name, Mode: Program, Data: b}, err
}

// interpreter is what a program's PT_INTERP names; "" for a static one.
func interpreter(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		b := make([]byte, min(p.Filesz, 4096))
		if _, err := p.ReadAt(b, 0); err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		return strings.TrimRight(string(b), "\x00"), nil
	}
	return "", nil
}

// loaded are the shared objects that are mapped, by the paths that the loader finds them at in
// the guest too.
func loaded(maps string) ([]string, error) {
	f, err := os.Open(maps)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var libs []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text()) // range, rights, offset, device, inode, path
		if len(fields) == 6 && strings.Contains(fields[1], "x") && strings.Contains(fields[5], ".so") {
			libs = append(libs, fields[5])
		}
	}
	return libs, lines.Err()
}
