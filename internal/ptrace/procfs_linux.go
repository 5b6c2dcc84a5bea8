package ptrace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
)

// FileName names a file of /proc/PID about memory, descriptors or the program: by a thread that
// still has them, where the first one has ended.
func (p *Process) FileName(name string) string {
	if unix.Faccessat(int(p.dir.Fd()), "exe", unix.F_OK, 0) == nil {
		return name
	}
	if tid := p.liveTask(); tid != 0 {
		return fmt.Sprintf("task/%d/%s", tid, name)
	}
	return name
}

// OpenAt opens a file of /proc/PID.
func (p *Process) OpenAt(name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(p.dir.Fd()), name, flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: fmt.Sprintf("/proc/%d/%s", p.pid, name), Err: err}
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("/proc/%d/%s", p.pid, name)), nil
}

// StatFile looks at a file of /proc/PID, or what it leads to.
func (p *Process) StatFile(name string) (*unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(int(p.dir.Fd()), name, &st, 0)
	return &st, err
}

// maxProcFile bounds what is read of one file of /proc, in bytes: room for all lines of
// maps that vm.max_map_count commonly allows, with long names.
const maxProcFile = 256 << 20

// ReadFile reads a file of /proc/PID.
func (p *Process) ReadFile(name string) ([]byte, error) {
	f, err := p.OpenAt(name, unix.O_RDONLY)
	if err != nil {
		return nil, p.Gone(err)
	}
	defer f.Close()
	return p.readAll(f)
}

// readAll reads an open file of the directory.
func (p *Process) readAll(f *os.File) ([]byte, error) {
	var b bytes.Buffer
	n, err := b.ReadFrom(io.LimitReader(f, maxProcFile+1))
	if err == nil && n > maxProcFile {
		err = fmt.Errorf("%s: more than %d bytes", f.Name(), maxProcFile)
	}
	return b.Bytes(), p.Gone(err)
}

// Gone turns what /proc answers for a process that has ended into ErrNoProcess.
func (p *Process) Gone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", ErrNoProcess, err)
	}
	return err
}

// Status reads the status of the process.
func (p *Process) Status() (*procfs.Status, error) {
	b, err := p.ReadFile("status")
	if err != nil {
		return nil, err
	}
	return procfs.ParseStatus(string(b))
}

// TaskStatus reads the status of one thread.
func (p *Process) TaskStatus(tid int) (*procfs.Status, error) {
	b, err := p.ReadFile(fmt.Sprintf("task/%d/status", tid))
	if err != nil {
		return nil, err
	}
	return procfs.ParseStatus(string(b))
}

// Stat reads the stat file of the process.
func (p *Process) Stat() (*procfs.Stat, error) { return p.statFile("stat") }

func (p *Process) statFile(name string) (*procfs.Stat, error) {
	b, err := p.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return procfs.ParseStat(string(b))
}

// Tasks lists the threads of the process. While it runs the list can miss some that are
// started or ended at that moment.
func (p *Process) Tasks() ([]int, error) {
	tids, err := tasksIn(p.dir)
	return tids, p.Gone(err)
}

// Maps reads the mappings of the process, in order of address.
func (p *Process) Maps() ([]procfs.Map, error) {
	maps, err := procfs.ReadMaps(p.readMaps)
	switch {
	case err != nil:
		return nil, fmt.Errorf("process %d: %w", p.pid, err)
	case len(maps) == 0:
		return nil, fmt.Errorf("process %d: maps are empty: %w", p.pid, p.lost())
	}
	return maps, nil
}

func (p *Process) readMaps() ([]byte, error) {
	b, err := p.mapsText("maps")
	if err != nil || len(b) > 0 {
		return b, err
	}
	if tid := p.liveTask(); tid != 0 { // the first thread has ended, the others run on
		return p.mapsText(fmt.Sprintf("task/%d/maps", tid))
	}
	return b, nil
}

func (p *Process) mapsText(name string) ([]byte, error) {
	f, err := p.OpenAt(name, unix.O_RDONLY)
	if err != nil {
		return nil, p.Gone(err)
	}
	defer f.Close()
	return procfs.MapsText(f, func() ([]byte, error) { return p.readAll(f) })
}

// Auxv gives the auxiliary vector that the program was started with.
func (p *Process) Auxv() (map[uint64]uint64, error) {
	b, err := p.ReadFile(p.FileName("auxv"))
	if err != nil {
		return nil, err
	}
	v := make(map[uint64]uint64)
	for ; len(b) >= 16; b = b[16:] {
		v[le.Uint64(b)] = le.Uint64(b[8:])
	}
	return v, nil
}

// Namespace gives the inode number of one of its namespaces: "pid", "mnt", "net" ...
func (p *Process) Namespace(kind string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(p.dir.Fd()), "ns/"+kind, &st, 0); err != nil {
		return 0, p.Gone(&os.PathError{Op: "stat", Path: fmt.Sprintf("/proc/%d/ns/%s", p.pid, kind), Err: err})
	}
	return st.Ino, nil
}

// FileID gives the identity of a file in the form of maps.
func FileID(st *unix.Stat_t) procfs.FileID {
	return procfs.FileID{Dev: uint64(unix.Major(st.Dev))<<32 | uint64(unix.Minor(st.Dev)), Inode: st.Ino}
}
