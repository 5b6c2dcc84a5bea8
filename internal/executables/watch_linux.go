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
	dir   *os.File // of inotify: what comes into the file's directory
	// lost are execs that the kernel has permitted by itself, since it had no memory to ask.
	lost atomic.Uint64
}

// newWatch begins to hold execs of the file: by its inode, whatever path and mount name space they come by. No exec of another file is held:
// what takes the file's place is seen when it comes into the directory.
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
	if fd, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("inotify_init1: %w", err), w.group.Close())
	}
	w.dir = os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(f.Path()), unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR); err != nil {
		return nil, errors.Join(fmt.Errorf("inotify_add_watch of %s: %w", filepath.Dir(f.Path()), err), w.close())
	}
	if _, err := w.hold(); err != nil { // after the directory: a file that comes now is seen
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// hold holds execs of what is at the path, and says whether that is a file which has not been there before.
func (w *watch) hold() (fresh bool, err error) {
	path := w.file.Path()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) // the path may lead to another file the next time
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	conn, err := w.group.SyscallConn()
	if err != nil {
		return false, err
	}
	failed := conn.Control(func(group uintptr) {
		err = unix.FanotifyMark(int(group), unix.FAN_MARK_ADD, unix.FAN_OPEN_EXEC_PERM, unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd))
	})
	if err = errors.Join(failed, err); err != nil {
		return false, fmt.Errorf("fanotify_mark of %s: %w", path, err)
	}
	fresh = !w.file.is(&st)
	w.file.adopt(&st)
	return fresh, nil
}

// follow calls replaced whenever another file has taken the file's place, whose execs are held then, and failed if they can not be. It ends when the watch is closed.
func (w *watch) follow(replaced func(), failed func(error)) {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.dir.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				failed(fmt.Errorf("what takes the place of %s is not seen any more: inotify: %w", w.file.Path(), err))
			}
			return
		}
		if !names(buf[:n], filepath.Base(w.file.Path())) {
			continue
		}
		switch fresh, err := w.hold(); {
		case errors.Is(err, unix.ENOENT): // it has gone again
		case err != nil:
			failed(err)
		case fresh:
			replaced()
		}
	}
}

// names says whether one of some events of inotify is of a name, or says that events were lost.
func names(events []byte, name string) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(events[4:]), binary.NativeEndian.Uint32(events[12:])
		events = events[unix.SizeofInotifyEvent:]
		if int64(size) > int64(len(events)) {
			break
		}
		if mask&unix.IN_Q_OVERFLOW != 0 || unix.ByteSliceToString(events[:size]) == name {
			return true
		}
		events = events[size:]
	}
	return false
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

// run calls f for each exec of the file, which f has to permit. It ends when the watch is closed.
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
	return unix.Fstat(int(fd), &st) == nil && w.file.is(&st)
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
func (w *watch) close() error { return errors.Join(w.group.Close(), w.dir.Close()) }

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
