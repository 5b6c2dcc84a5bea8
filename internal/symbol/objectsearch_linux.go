package symbol

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// ObjectSearch is what is known of a program that may load objects: it says whether a shared object that the program has not
// mapped can be one that it maps later, which is whether there is such a file at all.
type ObjectSearch struct {
	Root    string   // the directory that is the program's /, as seen from here; "": the same as here
	Library string   // the program's LD_LIBRARY_PATH
	Mapped  []string // paths of the objects that the program has mapped, as the program sees them
}

// standard are the directories that every loader searches.
var standard = []string{
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib",
}

// Find says why no file is found that an object of a name can come from. A path must be that of a
// regular file, absolute and without links, as the kernel shows it once it is mapped. A name
// without a slash is looked for where the loader looks, and beside what is mapped.
func (o *ObjectSearch) Find(name string) error {
	switch {
	case path.IsAbs(name):
		return o.file(name)
	case strings.Contains(name, "/"):
		return relative(name)
	}
	dirs := o.dirs()
	var seen []string
	for _, d := range dirs {
		entries, _ := os.ReadDir(o.Root + d) // one that is not there holds nothing
		for _, e := range entries {
			if Answers(e.Name(), name) {
				return nil
			}
			if strings.Contains(e.Name(), ".so") {
				seen = append(seen, e.Name())
			}
		}
	}
	if o.cached(name) {
		return nil
	}
	slices.Sort(seen)
	return errno.Errorf(unix.ENOENT, "no object %q is mapped, and none is found where the loader looks%s; one from elsewhere is named by its path",
		name, DidYouMean(Nearest(name, slices.Compact(seen))))
}

// dirs are the directories in which a name is looked for, each once.
func (o *ObjectSearch) dirs() []string {
	var out []string
	add := func(d string) {
		if d = path.Clean(d); path.IsAbs(d) && !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	for _, d := range strings.Split(o.Library, ":") {
		add(d)
	}
	for _, m := range o.Mapped {
		add(path.Dir(m))
	}
	for _, d := range standard {
		add(d)
	}
	return out
}

// cached says whether the loader's cache has the name: it holds the names and the paths of all
// objects in the directories that the system has been told of, each with a NUL behind it.
func (o *ObjectSearch) cached(name string) bool {
	b, err := os.ReadFile(o.Root + "/etc/ld.so.cache")
	if err != nil {
		return false
	}
	for s := range bytes.SplitSeq(b, []byte{0}) {
		if Answers(path.Base(string(s)), name) {
			return true
		}
	}
	return false
}

// file says why a path is not one that an object is mapped from.
func (o *ObjectSearch) file(name string) error {
	st, err := os.Stat(o.Root + name)
	switch {
	case err != nil:
		dir, base := path.Split(name)
		entries, _ := os.ReadDir(o.Root + dir)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		names = Nearest(base, names)
		for i := range names {
			names[i] = dir + names[i]
		}
		return errno.Errorf(unix.ENOENT, "there is no file %q, and none is mapped%s", name, DidYouMean(names))
	case !st.Mode().IsRegular():
		return errno.Errorf(unix.EINVAL, "%q is no regular file", name)
	}
	if real, err := withoutLinks(name); o.ours() && err == nil && !strings.HasSuffix(real, path.Clean(name)) {
		return errno.Errorf(unix.EINVAL, "%q is a link, and objects go by their own paths%s", name, DidYouMean([]string{real}))
	}
	return nil
}

// ours says whether the program's files are those that are seen here under the same paths.
func (o *ObjectSearch) ours() bool {
	a, err := os.Stat("/")
	if err != nil || o.Root == "" {
		return err == nil
	}
	b, err := os.Stat(o.Root + "/")
	return err == nil && os.SameFile(a, b)
}

// relative refuses a path that depends on where somebody stands.
func relative(name string) error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("path %q: %w", name, err)
	}
	abs := path.Join(dir, name)
	if real, err := withoutLinks(abs); err == nil {
		return errno.Errorf(unix.EINVAL, "path %q: paths are absolute%s", name, DidYouMean([]string{real}))
	}
	return errno.Errorf(unix.ENOENT, "path %q: paths are absolute, and there is no %q either", name, abs)
}

// withoutLinks gives the path of a file as the kernel has it, without symbolic links.
func withoutLinks(name string) (string, error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
}
