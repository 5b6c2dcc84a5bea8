package process

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/symbol"
)

// module is an object mapped into the process.
type module struct {
	im   *symbol.Image
	bias uint64
	lo   uint64 // its mappings lie in [lo, hi)
	hi   uint64
	name string
}

// Refresh looks at what is mapped now: objects that came are added, those that went are
// dropped.
func (t *Target) Refresh() (changed bool, err error) {
	maps, err := t.p.Maps()
	if err != nil {
		return false, err
	}
	t.learnText(maps)
	code := executables(fileMaps(maps))
	if t.Space() != nil && slices.Equal(code, t.seen) {
		return false, nil
	}
	if err := t.index(maps, code); err != nil {
		return true, err
	}
	return true, t.shareLate()
}

// index makes the list of modules out of the executable mappings.
func (t *Target) index(maps, code []procfs.Map) error {
	space := symbol.NewSpace()
	files := fileMaps(maps)
	t.module, t.seen = nil, code
	exe := t.p.Image().Exe
	var firstErr error
	for _, m := range code {
		im, err := t.image(maps, m)
		if err != nil {
			firstErr = errors.Join(firstErr, err)
			continue
		}
		bias, ok := biasOf(im, m)
		if !ok {
			continue
		}
		mod := module{im: im, bias: bias, name: filepath.Base(m.Path)}
		mod.lo, mod.hi = extent(files, m.FileID)
		if m.FileID == exe && len(t.module) > 0 && t.module[0].im != im {
			t.module = append([]module{mod}, t.module...)
			continue
		}
		t.module = append(t.module, mod)
	}
	if len(t.module) == 0 {
		return errors.Join(fmt.Errorf("process %d: no program file could be read", t.p.PID()), firstErr)
	}
	for _, mod := range t.module {
		space.Add(mod.im, mod.bias, mod.name)
	}
	t.space.Store(space)
	return nil
}

// executables picks one executable mapping of each file.
func executables(maps []procfs.Map) []procfs.Map {
	var out []procfs.Map
	seen := map[procfs.FileID]bool{}
	for _, m := range maps {
		if m.Perm&procfs.PermExec == 0 || m.Anonymous() || seen[m.FileID] || ours(m) {
			continue
		}
		seen[m.FileID] = true
		out = append(out, m)
	}
	return out
}

// replaced says whether another object is mapped at an address than when the target was looked at last. The world may be stopped.
func (t *Target) replaced(at uint64) bool {
	m := t.Space().ModuleAt(at)
	maps, err := t.p.MapsIn(procfs.PageDown(at), procfs.PageSize)
	if m == nil || err != nil {
		return false
	}
	in, ok := procfs.FindMap(maps, at)
	if of, copied := textOf(in); copied {
		in = of
	}
	if !ok || t.images[in.FileID] != m.Image {
		return true
	}
	bias, ok := biasOf(m.Image, in)
	return !ok || bias != m.Bias
}

// ourPaths are what the paths of mappings begin with that a tracer of this project made.
var ourPaths = []string{
	"/memfd:" + ringName, "/memfd:" + controlName, "/memfd:" + mailboxName, "/memfd:" + threadName, "/memfd:" + stubsName, "/memfd:" + stubRangeName,
	"/memfd:" + codeName, "/memfd:" + heapName,
}

// ours says whether a mapping is one that a tracer of this project made.
func ours(m procfs.Map) bool {
	return slices.ContainsFunc(ourPaths, func(prefix string) bool { return strings.HasPrefix(m.Path, prefix) })
}

func isMail(m procfs.Map) bool { return strings.HasPrefix(m.Path, "/memfd:"+mailboxName) }

func isThread(m procfs.Map) bool { return strings.HasPrefix(m.Path, "/memfd:"+threadName) }

func isControlBlock(m procfs.Map) bool { return strings.HasPrefix(m.Path, "/memfd:"+controlName) }

func isRing(m procfs.Map) bool { return strings.HasPrefix(m.Path, "/memfd:"+ringName) }

// extent is the range from the first to the last mapping of a file.
func extent(maps []procfs.Map, id procfs.FileID) (lo, hi uint64) {
	for _, m := range maps {
		if m.FileID != id {
			continue
		}
		if lo == 0 {
			lo = m.Start
		}
		hi = m.End
	}
	return lo, hi
}

func (t *Target) image(maps []procfs.Map, m procfs.Map) (*symbol.Image, error) {
	if im := t.images[m.FileID]; im != nil {
		return im, nil
	}
	f, err := t.p.OpenAnyOf(maps, m)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	state := stateOf(m.FileID, st)
	if im := t.files.get(state); im != nil {
		t.images[m.FileID] = im
		return im, f.Close()
	}
	t.findRoot()
	im, err := symbol.Open(f, st.Size(), m.Path, &symbol.Options{Open: debugFiles(t.root)})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	t.images[m.FileID] = t.files.put(state, im)
	return t.images[m.FileID], nil
}

// findRoot opens the root of the process's file system. Where that fails there are no separate debug files.
func (t *Target) findRoot() {
	if t.root == nil {
		t.root, _ = t.p.OpenAt(t.p.FileName("root"), unix.O_PATH|unix.O_DIRECTORY)
	}
}

// biasOf is what is added to a link-time address.
func biasOf(im *symbol.Image, m procfs.Map) (uint64, bool) {
	return im.Bias(m.Start, m.Offset)
}
