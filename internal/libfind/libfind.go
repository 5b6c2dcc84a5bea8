// Package libfind says whether a shared object that a program has not mapped can be one that it
// maps later: whether there is such a file at all.
package libfind

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/symbol"
)

// Program is what is known of a program that may load objects.
type Program struct {
	Root    string   // the directory that is its /, as seen from here; "": ours
	Library string   // its LD_LIBRARY_PATH
	Mapped  []string // paths of the objects that it has mapped, as it sees them
	// Answers says whether a file of a base name is what an object is called.
	Answers func(base, name string) bool
}

// standard are the directories that every loader searches.
var standard = []string{
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib",
}

// Find says why no file is found that an object of a name can come from. A path must be that of a
// regular file, absolute and without links, as the kernel shows it once it is mapped. A name
// without a slash is looked for where the loader looks, and beside what is mapped.
func (p *Program) Find(name string) error {
	switch {
	case filepath.IsAbs(name):
		return p.file(name)
	case strings.Contains(name, "/"):
		return relative(name)
	}
	dirs := p.dirs()
	var seen []string
	for _, d := range dirs {
		entries, _ := os.ReadDir(p.Root + d) // one that is not there holds nothing
		for _, e := range entries {
			if p.Answers(e.Name(), name) {
				return nil
			}
			if strings.Contains(e.Name(), ".so") {
				seen = append(seen, e.Name())
			}
		}
	}
	if p.cached(name) {
		return nil
	}
	slices.Sort(seen)
	return errno.Errorf(unix.ENOENT, "no object %q is mapped, and none is found where the loader looks%s; one from elsewhere is named by its path",
		name, symbol.DidYouMean(symbol.Nearest(name, slices.Compact(seen))))
}

// dirs are the directories in which a name is looked for, each once.
func (p *Program) dirs() []string {
	var out []string
	add := func(d string) {
		if d = filepath.Clean(d); filepath.IsAbs(d) && !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	for _, d := range filepath.SplitList(p.Library) {
		add(d)
	}
	for _, m := range p.Mapped {
		add(filepath.Dir(m))
	}
	for _, d := range standard {
		add(d)
	}
	return out
}

// cached says whether the loader's cache has the name: it holds the names and the paths of all
// objects in the directories that the system has been told of, each with a NUL behind it.
func (p *Program) cached(name string) bool {
	b, err := os.ReadFile(p.Root + "/etc/ld.so.cache")
	if err != nil {
		return false
	}
	for s := range bytes.SplitSeq(b, []byte{0}) {
		if p.Answers(filepath.Base(string(s)), name) {
			return true
		}
	}
	return false
}

// file says why a path is not one that an object is mapped from.
func (p *Program) file(path string) error {
	st, err := os.Stat(p.Root + path)
	switch {
	case err != nil:
		dir, base := filepath.Split(path)
		entries, _ := os.ReadDir(p.Root + dir)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		names = symbol.Nearest(base, names)
		for i := range names {
			names[i] = dir + names[i]
		}
		return errno.Errorf(unix.ENOENT, "there is no file %q, and none is mapped%s", path, symbol.DidYouMean(names))
	case !st.Mode().IsRegular():
		return errno.Errorf(unix.EINVAL, "%q is no regular file", path)
	}
	if real, err := filepath.EvalSymlinks(path); p.ours() && err == nil && !strings.HasSuffix(real, filepath.Clean(path)) {
		return errno.Errorf(unix.EINVAL, "%q is a link, and objects go by their own paths%s", path, symbol.DidYouMean([]string{real}))
	}
	return nil
}

// ours says whether the program's files are those that are seen here under the same paths.
func (p *Program) ours() bool {
	a, err := os.Stat("/")
	if err != nil || p.Root == "" {
		return err == nil
	}
	b, err := os.Stat(p.Root + "/")
	return err == nil && os.SameFile(a, b)
}

// relative refuses a path that depends on where somebody stands.
func relative(path string) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("path %q: %w", path, err)
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return errno.Errorf(unix.EINVAL, "path %q: paths are absolute%s", path, symbol.DidYouMean([]string{real}))
	}
	return errno.Errorf(unix.ENOENT, "path %q: paths are absolute, and there is no %q either", path, abs)
}
