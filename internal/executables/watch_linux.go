package executables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
)

// watch tells of execs of a file before they happen.
type watch struct {
	file  *File
	group *os.File // of fanotify
	// lost are execs that the kernel has permitted by itself, since it had no memory to ask.
	lost atomic.Uint64
}

// newWatch begins to hold execs of the file: by its inode, whatever path and mount name space they come by, and by its directory, for what
// takes its place there.
func newWatch(f *File) (*watch, error) {
	if err := checkPtrace(); err != nil {
		return nil, err
	}
	const flags = unix.FAN_CLASS_CONTENT | unix.FAN_CLOEXEC | unix.FAN_NONBLOCK | unix.FAN_REPORT_TID | unix.FAN_UNLIMITED_QUEUE
	fd, err := unix.FanotifyInit(flags, unix.O_RDONLY|unix.O_LARGEFILE|unix.O_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fanotify_init: %w", err)
	}
	w := &watch{file: f, group: os.NewFile(uintptr(fd), "fanotify")}
	for _, m := range []struct {
		path string
		mask uint64
	}{{f.Path(), unix.FAN_OPEN_EXEC_PERM}, {filepath.Dir(f.Path()), unix.FAN_OPEN_EXEC_PERM | unix.FAN_EVENT_ON_CHILD}} {
		if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD, m.mask, unix.AT_FDCWD, m.path); err != nil {
			return nil, errors.Join(fmt.Errorf("fanotify_mark of %s: %w", m.path, err), w.group.Close())
		}
	}
	return w, nil
}

// execution is a thread in an exec of the file, which waits to be permitted.
type execution struct {
	pid, tid int
	w        *watch
	fd       int32
	once     sync.Once
}

// allow permits the exec. It may be called several times, and by several goroutines.
func (x *execution) allow() { x.once.Do(func() { x.w.permit(x.fd) }) }

// permit answers one event.
func (w *watch) permit(fd int32) {
	answer := binary.NativeEndian.AppendUint32(nil, uint32(fd))                    // struct fanotify_response
	_, _ = w.group.Write(binary.NativeEndian.AppendUint32(answer, unix.FAN_ALLOW)) // fails once the group is closed, and then the kernel has permitted it
	_ = unix.Close(int(fd))
}

// run calls f for each exec of the file, which f has to permit. All others are permitted here. It ends when the watch is closed.
func (w *watch) run(f func(*execution)) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.group.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("execs of %s are not seen any more: fanotify: %w", w.file.Path(), err)
		}
		for b := buf[:n]; len(b) >= eventSize; {
			size := binary.NativeEndian.Uint32(b)
			if size < eventSize || int(size) > len(b) {
				break
			}
			w.take(int32(binary.NativeEndian.Uint32(b[eventFD:])), int(int32(binary.NativeEndian.Uint32(b[eventPID:]))), f)
			b = b[size:]
		}
	}
}

// The offsets in a struct fanotify_event_metadata, and its size, in bytes (linux/fanotify.h).
const (
	eventFD   = 16
	eventPID  = 20
	eventSize = 24
)

// take permits an exec, or has f do so if it is one of the file.
func (w *watch) take(fd int32, tid int, f func(*execution)) {
	if fd < 0 {
		w.lost.Add(1)
		return
	}
	if w.ours(fd) {
		if pid := processOf(tid); pid != 0 {
			f(&execution{pid: pid, tid: tid, w: w, fd: fd})
			return
		}
	}
	w.permit(fd)
}

// ours says whether an open file is the one that is watched for, or has taken its place.
func (w *watch) ours(fd int32) bool {
	var st unix.Stat_t
	if unix.Fstat(int(fd), &st) != nil {
		return false
	}
	if w.file.is(&st) {
		return true
	}
	self := "/proc/self/fd/" + strconv.Itoa(int(fd))
	if at, err := os.Readlink(self); err != nil || at != w.file.path {
		return false
	}
	w.file.adopt(&st)
	conn, err := w.group.SyscallConn()
	if err == nil { // what is executed by another path is seen too from now on
		_ = conn.Control(func(group uintptr) {
			_ = unix.FanotifyMark(int(group), unix.FAN_MARK_ADD, unix.FAN_OPEN_EXEC_PERM, unix.AT_FDCWD, self)
		})
	}
	return true
}

// processOf is the process of a thread, 0 if it has ended or is not seen from here.
func processOf(tid int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return 0
	}
	st, err := procfs.ParseStatus(string(b))
	if err != nil {
		return 0
	}
	return st.TGID
}

// close ends the watch. The kernel permits what has not been answered.
func (w *watch) close() error { return w.group.Close() }

// checkPtrace refuses to meet programs in their exec without CAP_SYS_PTRACE: one with more privileges than its caller would not get them
// (ptracer_capable in security/commoncap.c).
func checkPtrace() error {
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	if data[0].Effective&(1<<unix.CAP_SYS_PTRACE) == 0 {
		return errno.Errorf(unix.EPERM, "CAP_SYS_PTRACE is missing")
	}
	return nil
}
