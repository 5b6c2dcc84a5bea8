package process

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/symbol"
)

// Files keeps what targets have read of programs and shared objects: their symbols, and what their code says. Targets
// that are given the same Files share that for files that are the same and have not changed since, so that the second process of a program takes
// a fraction of the work of the first. The zero value is ready. It may be used by several goroutines at once, and lives as long as one
// of its targets.
type Files struct {
	mu sync.Mutex
	of map[fileState]*symbol.Image
}

// fileState is a file with what changes when its contents do.
type fileState struct {
	id               procfs.FileID
	size             int64
	modified, status time.Time
}

// maxFiles bounds the files that are kept: those that have been replaced stay until then.
const maxFiles = 512

func stateOf(id procfs.FileID, st fs.FileInfo) fileState {
	s := fileState{id: id, size: st.Size(), modified: st.ModTime()}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		s.status = time.Unix(sys.Ctim.Unix())
	}
	return s
}

// get gives the image of a file, nil if there is none.
func (f *Files) get(s fileState) *symbol.Image {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.of[s]
}

// put keeps the image of a file, and gives the one that all are to use: somebody else may have been faster.
func (f *Files) put(s fileState, im *symbol.Image) *symbol.Image {
	f.mu.Lock()
	defer f.mu.Unlock()
	if have := f.of[s]; have != nil {
		return have
	}
	if f.of == nil || len(f.of) >= maxFiles {
		f.of = map[fileState]*symbol.Image{}
	}
	f.of[s] = im
	return im
}

// debugFiles opens separate debug files as the process's own file system has them, also when the process has ended: its last records are
// read then. A root of nil has none.
func debugFiles(root *os.File) func(path string) (symbol.File, error) {
	return func(path string) (symbol.File, error) {
		if root == nil {
			return nil, fs.ErrNotExist
		}
		return os.OpenFile(filepath.Join("/proc/self/fd", strconv.Itoa(int(root.Fd())), path), os.O_RDONLY|unix.O_NONBLOCK, 0)
	}
}
