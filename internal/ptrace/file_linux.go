package ptrace

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// maxFile is the largest file behind a mapping that is opened, in bytes.
const maxFile = 16 << 30

// OpenMap opens the file behind a mapping for reading, also where it has been deleted or
// lies in another mount namespace. It never waits for a device or a pipe, and checks that
// what it found is the mapping's regular file.
func (p *Process) OpenMap(m procfs.Map) (*os.File, error) {
	if m.Anonymous() {
		return nil, fmt.Errorf("process %d: mapping %#x %q has no file", p.pid, m.Start, m.Path)
	}
	var first error
	for _, name := range []string{
		fmt.Sprintf("map_files/%x-%x", m.Start, m.End), // needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN
		p.FileName("exe"),
		p.FileName("root") + filepath.Clean("/"+m.Path),
	} {
		f, err := p.openRegular(name, m)
		if err == nil {
			return f, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, fmt.Errorf("process %d: file of mapping %#x %q: %w", p.pid, m.Start, m.Path, first)
}

// OpenAnyOf is OpenMap, by any mapping of the same file: the place of the one that is asked for may be
// taken by copies of its pages.
func (p *Process) OpenAnyOf(maps []procfs.Map, m procfs.Map) (*os.File, error) {
	f, err := p.OpenMap(m)
	for i := 0; err != nil && i < len(maps); i++ {
		if o := maps[i]; o.FileID == m.FileID && o.Start != m.Start {
			if g, again := p.OpenMap(o); again == nil {
				return g, nil
			}
		}
	}
	return f, err
}

// openRegular opens what name leads to in two steps: a look at what it is, which has no
// effect on devices, then the opening of that same thing.
func (p *Process) openRegular(name string, m procfs.Map) (*os.File, error) {
	at, err := p.OpenAt(name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer at.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &st); err != nil {
		return nil, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%s is not a regular file", at.Name())
	case st.Ino != m.Inode:
		return nil, fmt.Errorf("%s is another file now: inode %d, mapped %d", at.Name(), st.Ino, m.Inode)
	case st.Size > maxFile:
		return nil, fmt.Errorf("%s has %d bytes, the limit is %d", at.Name(), st.Size, int64(maxFile))
	}
	viaMapping := strings.HasPrefix(name, "map_files/") // then it is the file, whatever its device is called
	if !viaMapping && FileID(&st) != m.FileID && !OwnDevices(at) {
		return nil, fmt.Errorf("%s is another file now: on another device", at.Name())
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", at.Fd()), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: at.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), at.Name()), nil
}

// OwnDevices says whether the file system shows other device numbers in stat than in maps:
// btrfs and overlayfs do.
func OwnDevices(f *os.File) bool {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return false
	}
	return fs.Type == unix.BTRFS_SUPER_MAGIC || fs.Type == unix.OVERLAYFS_SUPER_MAGIC
}
