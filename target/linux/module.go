package linux

import (
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
)

// findModule says why no module of a name can come: the kernel takes any, and waits for it. The
// files are those of root; where the list of the modules that can be loaded is not there (in a
// container, say), every name is taken.
func findModule(root fs.FS, release, name string) error {
	if _, err := fs.Stat(root, path.Join("sys/module", name)); err == nil && name != "" {
		return nil
	}
	var known []string
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		b, err := fs.ReadFile(root, path.Join("lib/modules", release, list))
		if err != nil {
			return nil
		}
		for line := range strings.Lines(string(b)) {
			file, _, _ := strings.Cut(strings.TrimSpace(line), ":")
			base, _, _ := strings.Cut(path.Base(file), ".ko")
			base = strings.ReplaceAll(base, "-", "_")
			if base == name {
				return nil
			}
			known = append(known, base)
		}
	}
	return errno.Errorf(unix.ENOENT, "no module %q is loaded, and none can be%s", name, symbol.DidYouMean(symbol.Nearest(name, known)))
}

// release is that of the kernel that runs.
func release() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(b))
}
