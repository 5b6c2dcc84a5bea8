package testguest

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"kprobes.dev/kprobes/internal/guestkit"
)

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

// Modules are the modules of its kernel that every guest has in a file (Guest.Module), as guestkit.Module
// names them. Some kernels have one or another built in.
var Modules = []string{"fs/fuse/fuse", "drivers/net/dummy", "drivers/block/loop"}

// Module is where a module of Modules lies in the guest; "" where its kernel has it built in.
func (g *Guest) Module(name string) string {
	file, err := guestkit.Module(g.Kernel, name)
	if err != nil {
		return ""
	}
	return "/" + moduleFile(file)
}

// moduleFile is the name in the initrd of a module that the host has in a file.
func moduleFile(from string) string { return "lib/" + filepath.Base(from) }

// initrdFiles are those of every guest, and the test's own: extra has a path in the guest for each on
// the host.
func initrdFiles(box string, agent []byte, hit string, kernel guestkit.Build, extra map[string]string) ([]guestkit.File, error) {
	files := []guestkit.File{
		{Name: "init", Mode: guestkit.Program, Data: []byte(initScript)},
		{Name: "bin/agent", Mode: guestkit.Program, Data: agent},
	}
	all := map[string]string{"bin/busybox": box, "bin/hit": hit}
	for _, m := range Modules {
		if from, err := guestkit.Module(kernel, m); err == nil {
			all[moduleFile(from)] = from
		}
	}
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
		files = append(files, guestkit.File{Name: to, Mode: guestkit.Program, Data: b})
	}
	return files, nil
}
