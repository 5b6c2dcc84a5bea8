package tracefs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"

	"bazil.org/fuse"
	"bazil.org/fuse/fs"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/tracefile"
	"kprobes.dev/kprobes/trace"
)

// Options are the choices of Mount; nil means the defaults.
type Options struct {
	// Target says in the list of mounts what is traced: see Dead.
	Target string
	// Busy says whether a thread that writes to a file must not be waited for, since the target can not be changed while it waits: a
	// thread of the target itself. Nil: none is.
	Busy func(tid int) bool
}

// Type is the type of the file system, as /proc/mounts has it.
const Type = "fuse.kprobes"

// Mounted is a mount. Its methods may be called by several goroutines.
type Mounted struct {
	dir   string
	dev   uint64 // of its files, in stat(2)
	conn  *fuse.Conn
	files *filesystem
	done  chan struct{}
	err   error // of the server; read when done is closed
	end   sync.Once
}

// Mount mounts the files of an instance, which the caller closes behind the mount, at a directory. What a killed process of an
// earlier mount has left there (ENOTCONN) is taken away first.
func Mount(in *trace.Instance, dir string, o *Options) (*Mounted, error) {
	if o == nil {
		o = &Options{}
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		return nil, errno.Errorf(unix.ENOENT, "fusermount3 is not in PATH: install it (Debian: apt-get install fuse3)")
	}
	if err := ready(dir); err != nil {
		return nil, err
	}
	opts := []fuse.MountOption{fuse.FSName(source(o.Target)), fuse.Subtype("kprobes"), fuse.DefaultPermissions()}
	if os.Geteuid() == 0 {
		opts = append(opts, fuse.AllowOther())
	}
	conn, err := fuse.Mount(dir, opts...)
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", dir, err)
	}
	server := fs.New(conn, nil)
	m := &Mounted{dir: dir, conn: conn, files: &filesystem{tree: tracefile.New(in), server: server, busy: o.Busy}, done: make(chan struct{})}
	go func() {
		defer close(m.done)
		m.err = server.Serve(m.files)
	}()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, errors.Join(fmt.Errorf("mount %s: %w", dir, err), m.Close())
	}
	m.dev = st.Dev
	return m, nil
}

// ready sees that something can be mounted at a directory.
func ready(dir string) error {
	st, err := os.Stat(dir)
	if errors.Is(err, unix.ENOTCONN) {
		if err := Unmount(dir); err != nil {
			return err
		}
		st, err = os.Stat(dir)
	}
	switch {
	case err != nil:
		return err
	case !st.IsDir():
		return errno.Errorf(unix.ENOTDIR, "%s is no directory: make one to mount the files at", dir)
	}
	return nil
}

// Wait waits until the files are mounted no more, and tells what went wrong.
func (m *Mounted) Wait() error {
	<-m.done
	return m.err
}

// Done is closed when the files are mounted no more.
func (m *Mounted) Done() <-chan struct{} { return m.done }

// Close unmounts the files, also while somebody has some open: those find them gone (ENODEV). Reads that wait end when the instance is closed.
func (m *Mounted) Close() (err error) {
	m.end.Do(func() {
		// Closing the connection waits for the server, which waits for the kernel; and until then nobody would get an answer. So it is closed
		// when nobody has a file open any more, or by the end of this process.
		go func() {
			<-m.done
			_ = m.conn.Close() // nobody reads or writes there any more
		}()
		select {
		case <-m.done:
			return
		default:
		}
		m.files.gone.Store(true)
		var st unix.Stat_t
		if unix.Stat(m.dir, &st) == nil && m.dev != 0 && st.Dev != m.dev {
			return // somebody has unmounted them, and has files open
		}
		err = Unmount(m.dir)
	})
	return err
}

// Unmount unmounts what is mounted at a directory, at once: who has files open there keeps them until he closes them.
func Unmount(dir string) error {
	err := unix.Unmount(dir, unix.MNT_DETACH)
	if errors.Is(err, unix.EPERM) {
		var out []byte
		if out, err = exec.Command("fusermount3", "-u", "-z", "--", dir).CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
		}
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// source is what the list of mounts says is mounted. fusermount3 takes no comma in it.
func source(target string) string { return "kprobes:" + strings.ReplaceAll(target, ",", "_") }

// Dead finds the mounts of a target whose process was killed, by Options.Target: whoever looks at one gets ENOTCONN.
func Dead(target string) (dirs []string, err error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != Type || m.Source != source(target), false
	})
	for _, m := range mounts {
		if _, err := os.Stat(m.Mountpoint); errors.Is(err, unix.ENOTCONN) {
			dirs = append(dirs, m.Mountpoint)
		}
	}
	return dirs, err
}
