package guestkit

import (
	"fmt"
	"io"
	"path"
	"slices"
)

// File is what stands in an initial RAM disk.
type File struct {
	Name string // without a leading slash
	Mode uint32 // type and permissions, as in stat(2)
	Data []byte // of a symbolic link: where it leads
}

// Modes of Files.
const (
	Dir     = 0o040755
	Program = 0o100755
	Link    = 0o120777
)

// WriteArchive writes files as a cpio archive in the format newc
// (Documentation/driver-api/early-userspace/buffer-format.rst), with their directories.
func WriteArchive(w io.Writer, files []File) error {
	a := &archive{w: w, made: map[string]bool{".": true}}
	for _, f := range files {
		a.dirs(path.Dir(f.Name))
		if f.Mode&0o170000 == Dir&0o170000 && a.made[f.Name] {
			continue
		}
		a.made[f.Name] = true
		a.entry(f)
	}
	a.entry(File{Name: "TRAILER!!!"})
	return a.err
}

type archive struct {
	w    io.Writer
	made map[string]bool
	ino  int
	err  error
}

// dirs makes a directory and those above it.
func (a *archive) dirs(name string) {
	if a.made[name] {
		return
	}
	a.dirs(path.Dir(name))
	a.made[name] = true
	a.entry(File{Name: name, Mode: Dir})
}

func (a *archive) entry(f File) {
	if a.err != nil {
		return
	}
	a.ino++
	links := 1
	head := "070701"
	for _, v := range []int{a.ino, int(f.Mode), 0, 0, links, 0, len(f.Data), 0, 0, 0, 0, len(f.Name) + 1, 0} {
		head += fmt.Sprintf("%08x", v)
	}
	head += f.Name + "\x00"
	for _, part := range [][]byte{[]byte(head), f.Data} {
		pad := make([]byte, -len(part)&3)
		if _, a.err = a.w.Write(slices.Concat(part, pad)); a.err != nil {
			return
		}
	}
}
