package symbol

import (
	"fmt"
	"path"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// RegularFile finds a file by its absolute path below a root directory, through links, and gives the path under which the kernel shows the
// file where it is mapped. EINVAL: it is no regular file; ENOENT and others: there is none.
func RegularFile(root, name string) (string, error) {
	if !path.IsAbs(name) {
		return "", errno.Errorf(unix.ENOENT, "%q is relative: give the whole path, from / on", name)
	}
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("directory %q: %w", root, err)
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return "", fmt.Errorf("file %q: %w", name, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", fmt.Errorf("file %q: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return "", errno.Errorf(unix.EINVAL, "%q is no regular file: give that of a program or a library", name)
	}
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd), b)
	if err != nil {
		return "", fmt.Errorf("file %q: %w", name, err)
	}
	return string(b[:n]), nil
}
