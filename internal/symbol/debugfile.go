package symbol

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
)

// openRegular opens a regular file without waiting for a writer or a device.
func openRegular(path string) (File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("file %q: not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// debugCandidate is a path at which a separate debug file may be.
type debugCandidate struct {
	path string
	crc  uint32
	link bool // named by .gnu_debuglink, whose CRC must match
}

// debugCandidates lists the paths in the order in which they are tried.
func (im *Image) debugCandidates() []debugCandidate {
	var out []debugCandidate
	if id := fmt.Sprintf("%x", im.buildID); len(id) > 2 {
		for _, d := range im.opts.DebugDirs {
			out = append(out, debugCandidate{path: path.Join(d, ".build-id", id[:2], id[2:]+".debug")})
		}
	}
	name, crc, ok := im.elf.debugLink()
	if !ok {
		return out
	}
	dir := path.Dir(im.elf.path)
	paths := []string{path.Join(dir, name), path.Join(dir, ".debug", name)}
	for _, d := range im.opts.DebugDirs {
		paths = append(paths, path.Join(d, dir, name))
	}
	for _, p := range paths {
		if p != path.Clean(im.elf.path) {
			out = append(out, debugCandidate{p, crc, true})
		}
	}
	return out
}

// debugLink reads .gnu_debuglink: a file name, padded with NULs to 4 bytes, and the CRC-32
// of that file. Only a bare name counts: a path could lead anywhere.
func (f *elfFile) debugLink() (name string, crc uint32, ok bool) {
	s := f.section(".gnu_debuglink")
	if s == nil || s.size > 4096 {
		return "", 0, false
	}
	b, err := f.bytesAt(s.off, s.size, s.name)
	if err != nil {
		return "", 0, false
	}
	c := &cursor{b: b}
	name = c.cstr()
	c.pos = align4(c.pos)
	crc = c.u32()
	ok = !c.bad && name != "" && name == path.Base(name) && name != "." && name != ".."
	return name, crc, ok
}

// openDebugFile finds the separate debug file of the image: nil without problems if there
// is none, nil with problems if there are only files that do not belong to it.
func (im *Image) openDebugFile() (f *elfFile, closer io.Closer, problems []error) {
	for _, c := range im.debugCandidates() {
		file, err := im.opts.Open(c.path)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				problems = append(problems, fmt.Errorf("debug file %q: %w", c.path, err))
			}
			continue
		}
		f, err := im.checkDebugFile(c, file)
		if err == nil {
			return f, file, nil
		}
		problems = append(problems, err)
		file.Close()
	}
	return nil, nil, problems
}

// checkDebugFile accepts a file with symbols and the image's build-id or, where one of
// them has none, the CRC of the debug link.
func (im *Image) checkDebugFile(c debugCandidate, file File) (*elfFile, error) {
	st, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("debug file %q: %w", c.path, err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("debug file %q: not a regular file", c.path)
	}
	f, err := parseELF(file, st.Size(), c.path, &im.opts, true)
	if err != nil {
		return nil, err
	}
	if f.sectErr != nil {
		return nil, f.sectErr
	}
	id := f.readBuildID()
	switch {
	case f.machine != im.elf.machine:
		return nil, f.fail("debug file", 18, "made for another machine")
	case f.sectionOfType(secSymtab) == nil:
		return nil, f.fail("debug file", 0, "holds no .symtab")
	case len(id) > 0 && len(im.buildID) > 0:
		if !bytes.Equal(id, im.buildID) {
			return nil, f.fail("debug file", 0, "build-id %x, the program's is %x: it belongs to another build", id, im.buildID)
		}
	case !c.link:
		return nil, f.fail("debug file", 0, "has no build-id to compare")
	default:
		if err := checkCRC(f, c.crc); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func checkCRC(f *elfFile, want uint32) error {
	n := native.Load()
	if n == nil {
		return &FormatError{Path: f.path, What: "debug file", Why: "has a CRC in place of a build-id: import _ \"" + nativePath + "\" to have it read", Err: errors.ErrUnsupported}
	}
	got, err := n.CRC32(io.NewSectionReader(f.r, 0, int64(f.size)))
	if err != nil {
		return fmt.Errorf("debug file %q: %w", f.path, err)
	}
	if got != want {
		return f.fail("debug file", 0, "CRC 0x%08x, the debug link says 0x%08x: it belongs to another build", got, want)
	}
	return nil
}
