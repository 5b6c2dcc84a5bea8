package guest

import (
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// Find refuses what no module of a kernel is called. Which modules the guest could still load is
// not known here.
func (t *Target) Find(name string) error {
	if strings.Contains(name, "/") || strings.HasSuffix(name, ".ko") {
		return errno.Errorf(unix.EINVAL, "%q is a file: modules go by the name that lsmod shows", name)
	}
	return nil
}

// File implements target.Finder: a kernel has no file of its own.
func (t *Target) File(name string) (string, error) {
	return "", errno.Errorf(unix.EOPNOTSUPP, "%q: the target is a kernel, which maps no files", name)
}
