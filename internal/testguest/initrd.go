package testguest

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// file is what stands in an initial RAM disk.
type file struct {
	name string // without a leading slash
	mode uint32 // type and permissions, as in stat(2)
	data []byte
}

const (
	modeDir  = 0o040755
	modeProg = 0o100755
)

// writeArchive writes files as a cpio archive in the format newc
// (Documentation/driver-api/early-userspace/buffer-format.rst), with their directories.
func writeArchive(w io.Writer, files []file) error {
	a := &archive{w: w, made: map[string]bool{".": true}}
	for _, f := range files {
		a.dirs(path.Dir(f.name))
		if f.mode&0o170000 == modeDir&0o170000 && a.made[f.name] {
			continue
		}
		a.made[f.name] = true
		a.entry(f)
	}
	a.entry(file{name: "TRAILER!!!"})
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
	a.entry(file{name: name, mode: modeDir})
}

func (a *archive) entry(f file) {
	if a.err != nil {
		return
	}
	a.ino++
	links := 1
	head := "070701"
	for _, v := range []int{a.ino, int(f.mode), 0, 0, links, 0, len(f.data), 0, 0, 0, 0, len(f.name) + 1, 0} {
		head += fmt.Sprintf("%08x", v)
	}
	head += f.name + "\x00"
	for _, part := range [][]byte{[]byte(head), f.data} {
		pad := make([]byte, -len(part)&3)
		if _, a.err = a.w.Write(slices.Concat(part, pad)); a.err != nil {
			return
		}
	}
}

// initScript is the guest's first process. A command line with rdinit=/bin/sh would do
// without it.
const initScript = `#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp /usr/bin /usr/sbin /sbin
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
ifconfig lo 127.0.0.1 up
while :; do /bin/agent; sleep 1; done
`

// initrdFiles are those of every guest, and the test's own: extra has a path in the guest for each on
// the host.
func initrdFiles(box, agent, hit string, extra map[string]string) ([]file, error) {
	files := []file{{"init", modeProg, []byte(initScript)}}
	all := map[string]string{"bin/busybox": box, "bin/agent": agent, "bin/hit": hit}
	for to, from := range extra {
		all[strings.TrimPrefix(path.Clean("/"+to), "/")] = from
	}
	names := make([]string, 0, len(all))
	for to := range all {
		names = append(names, to)
	}
	slices.Sort(names)
	for _, to := range names {
		b, err := os.ReadFile(all[to])
		if err != nil {
			return nil, err
		}
		files = append(files, file{to, modeProg, b})
	}
	return files, nil
}
