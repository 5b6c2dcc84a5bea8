package executables

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
)

// File is an executable: the file that a path leads to, and those that have led there before and after. It may be used by several goroutines.
type File struct {
	root string // whose path it is: "" or /proc/PID/root
	path string // from there on, without links

	mu  sync.Mutex
	ids map[fileID]bool
}

// fileID is a file, whatever it is called.
type fileID struct{ dev, inode uint64 }

func idOf(st *unix.Stat_t) fileID { return fileID{st.Dev, st.Ino} }

// rootOf matches a path in the root directory of a process: of a container.
var rootOf = regexp.MustCompile(`^(/proc/(?:self|[0-9]+)/root)(/.*)$`)

// Find finds an executable. A name without a slash is looked for in the directories of PATH. Errors: ENOENT and others of the path; ENOEXEC: the file is no program
// of its own.
func Find(name string) (*File, error) {
	f, err := find(name)
	if err != nil {
		return nil, fmt.Errorf("executable %q: %w", name, err)
	}
	return f, nil
}

func find(name string) (*File, error) {
	if !strings.Contains(name, "/") {
		at, err := exec.LookPath(name)
		if err != nil && !errors.Is(err, exec.ErrDot) {
			return nil, errno.Errorf(unix.ENOENT, "no directory of PATH has it: give its path")
		}
		name = at
	}
	name, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	f := &File{ids: map[fileID]bool{}}
	if m := rootOf.FindStringSubmatch(name); m != nil {
		f.root, name = m[1], m[2]
	}
	if f.path, err = symbol.RegularFile(f.root+"/", name); err != nil {
		return nil, err
	}
	file, err := os.Open(f.Path())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := checkProgram(file); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return nil, err
	}
	f.ids[idOf(&st)] = true
	return f, nil
}

// checkProgram refuses what the kernel does not execute itself.
func checkProgram(file *os.File) error {
	head := make([]byte, 4)
	if _, err := file.ReadAt(head, 0); err != nil {
		return errno.Errorf(unix.ENOEXEC, "it is too short for a program")
	}
	switch {
	case string(head[:2]) == "#!":
		return errno.Errorf(unix.ENOEXEC, "it is a script: give the program that runs it, which its first line names")
	case string(head) != "\x7fELF":
		return errno.Errorf(unix.ENOEXEC, "it is not an ELF file")
	}
	return nil
}

// Path is where the file is found.
func (f *File) Path() string { return f.root + f.path }

// Runs says whether a process runs the file, or one that has been at its path.
func (f *File) Runs(pid int) bool {
	exe := "/proc/" + strconv.Itoa(pid) + "/exe"
	var st unix.Stat_t
	if unix.Stat(exe, &st) != nil {
		return false
	}
	if f.is(&st) {
		return true
	}
	if st.Nlink > 0 || f.root != "" {
		return false
	}
	link, err := os.Readlink(exe)
	if err != nil || link != f.path+" (deleted)" || !sameMounts(pid) {
		return false
	}
	f.adopt(&st) // what was at the path before
	return true
}

func (f *File) is(st *unix.Stat_t) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ids[idOf(st)]
}

// adopt takes in another file that has come to the path, or was there.
func (f *File) adopt(st *unix.Stat_t) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids[idOf(st)] = true
}

// sameMounts says whether a path means the same to a process.
func sameMounts(pid int) bool {
	var ours, theirs unix.Stat_t
	return unix.Stat("/proc/self/ns/mnt", &ours) == nil && unix.Stat(fmt.Sprintf("/proc/%d/ns/mnt", pid), &theirs) == nil && ours.Ino == theirs.Ino
}

// Running lists the processes that run the file now.
func (f *File) Running() (pids []int, err error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err == nil && pid != os.Getpid() && f.Runs(pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
