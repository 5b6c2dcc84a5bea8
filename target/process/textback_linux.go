package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target/patch"
)

// fuseMagic is the type of file systems that a process serves (FUSE_SUPER_MAGIC, linux/magic.h):
// to open a file there may wait for the very process that is stopped.
const fuseMagic = 0x65735546

// textBack gives private copies of text back to the program's files: those that overlap in, all
// if in is nil. The copies must have the bytes of the file. kept counts the pages that stay copies,
// which harm nobody, and why says why. Precondition: the world is stopped.
func textBack(s *ptrace.Stopped, in *interval.Range) (kept int, why, err error) {
	maps, err := s.FileMaps()
	if err != nil {
		return 0, nil, err
	}
	byFile := map[procfs.FileID][]textRun{}
	var order []procfs.Map
	for _, m := range maps {
		of, ok := textOf(m)
		if !ok || in != nil && (m.End <= in.Start || in.End <= m.Start) {
			continue
		}
		r := textRun{Range: interval.Range{Start: m.Start, End: m.End}, off: m.Offset}
		if in != nil {
			r.Start, r.End = max(r.Start, in.Start), min(r.End, in.End)
			r.off += r.Start - m.Start
		}
		if byFile[of.FileID] == nil {
			order = append(order, of)
		}
		byFile[of.FileID] = append(byFile[of.FileID], r)
	}
	for _, of := range order {
		runs := byFile[of.FileID]
		if no := fileBack(s, maps, of, runs); no != nil {
			if errors.Is(no, ErrNoProcess) || errors.Is(no, ErrExec) {
				return kept, why, no
			}
			why = errors.Join(why, no)
			for _, r := range runs {
				kept += int(r.Size() / procfs.PageSize)
			}
		}
	}
	return kept, why, nil
}

// fileBack maps a file over the copies of its pages.
func fileBack(s *ptrace.Stopped, maps []procfs.Map, of procfs.Map, runs []textRun) error {
	paths := backPaths(s.Process(), maps, of)
	err := fmt.Errorf("%s: the process has no other part of it mapped", of.Path)
	for _, path := range paths {
		if err = checkBack(s.Process(), path, of); err != nil {
			continue
		}
		if err = backFrom(s, path, of, runs); err == nil {
			return nil
		}
	}
	return err
}

// backPaths are the names by which the process itself may reach a file that it has mapped.
func backPaths(p *ptrace.Process, maps []procfs.Map, of procfs.Map) []string {
	var out []string
	for _, m := range maps {
		if m.FileID == of.FileID && !m.Deleted && !isText(m) && filepath.IsAbs(m.Path) {
			out = append(out, m.Path)
			break
		}
	}
	if link, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", p.PID(), p.FileName("exe"))); err == nil && filepath.Base(link) == of.Path || p.Image().Exe == of.FileID {
		out = append(out, "/proc/self/exe")
	}
	return out
}

// checkBack looks from here at what the process would open: it must be the regular file, on a file
// system that answers.
func checkBack(p *ptrace.Process, path string, of procfs.Map) error {
	name := p.FileName("root") + path
	if path == "/proc/self/exe" {
		name = p.FileName("exe")
	}
	at, err := p.OpenAt(name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer at.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(at.Fd()), &st); err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(at.Fd()), &fs); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG || st.Ino != of.Inode:
		return fmt.Errorf("%s is another file now", path)
	case fs.Type == fuseMagic:
		return fmt.Errorf("%s is in a file system that a process serves", path)
	}
	return nil
}

// backFrom lets the process open the file, and maps it over the copies once it is seen to be the
// file, with the bytes that the copies have.
func backFrom(s *ptrace.Stopped, path string, of procfs.Map, runs []textRun) (err error) {
	const atCWD = ^uint64(99) // AT_FDCWD, -100
	call := ptrace.Syscall{
		Nr: unix.SYS_OPENAT, Data: append([]byte(path), 0), DataArg: 1,
		Args: [6]uint64{atCWD, 0, unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY},
	}
	calls := []ptrace.Syscall{call}
	if err := s.CallAll(calls); err != nil {
		return err
	}
	if calls[0].Err != nil {
		return fmt.Errorf("%s: open in the target: %w", path, calls[0].Err)
	}
	fd := int(calls[0].Result)
	defer func() { err = errors.Join(err, s.CloseFD(fd)) }()
	f, err := s.Process().OpenAt(s.Process().FileName(fmt.Sprintf("fd/%d", fd)), unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Ino != of.Inode || ptrace.FileID(&st) != of.FileID && !ptrace.OwnDevices(f) {
		return fmt.Errorf("%s is another file now", path)
	}
	for _, r := range runs {
		if err := sameAsFile(s.Process(), f, r); err != nil {
			return err
		}
	}
	t := &Target{p: s.Process()}
	return t.mapRuns(s, fd, runs, func(m procfs.Map) bool { return m.FileID == of.FileID })
}

// sameAsFile fails if a copy has other bytes than the file.
func sameAsFile(p *ptrace.Process, f *os.File, r textRun) error {
	have, want := make([]byte, procfs.PageSize), make([]byte, procfs.PageSize)
	for at := r.Start; at < r.End; at += procfs.PageSize {
		if err := p.ReadMem(at, have); err != nil {
			return err
		}
		if err := fileBytes(f, at-r.Start+r.off, want); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if !bytes.Equal(have, want) {
			return errno.Errorf(unix.EBUSY, "page 0x%x has other bytes than %s", at, f.Name())
		}
	}
	return nil
}

// returnText gives all copies back, once no site stands in them. Precondition: the world is stopped.
func (t *Target) returnText(s *ptrace.Stopped) (err error) {
	t.text.kept, t.text.keptWhy, err = textBack(s, nil)
	return err
}

// shareText gives the copy of the page at an address back to its file, with the sites that stand in
// it, and keeps the page as it is then: the kernel is to hold a probe there, which it does by the file.
func (t *Target) shareText(addr uint64) error {
	page := procfs.PageDown(addr)
	t.text.held[page] = true
	if !t.text.private[page] {
		return nil
	}
	return t.stopped(func(s *ptrace.Stopped) error {
		var here []patch.Write
		for site := range t.control.sites {
			have := make([]byte, len(site.Patch))
			if site.Addr-page < procfs.PageSize && t.p.ReadMem(site.Addr, have) == nil && bytes.Equal(have, site.Patch) {
				here = append(here, patch.Write{Addr: site.Addr, Old: site.Orig, New: site.Patch})
			}
		}
		for i, w := range here {
			if err := t.p.WriteMem(w.Addr, w.Old); err != nil {
				return errors.Join(err, t.rewrite(here[:i]))
			}
		}
		kept, why, err := textBack(s, &interval.Range{Start: page, End: page + procfs.PageSize})
		if err = errors.Join(err, t.rewrite(here)); err != nil {
			return err
		}
		maps, err := s.FileMaps()
		if err != nil {
			return err
		}
		t.learnText(maps)
		if kept > 0 {
			return errno.Errorf(unix.EBUSY, "0x%x: the page is a private copy of text, where the kernel can hold no probe, and can not go back to its file: %w", addr, why)
		}
		return nil
	})
}

// rewrite writes patches anew that were taken out for a moment.
func (t *Target) rewrite(ws []patch.Write) error {
	var errs []error
	for _, w := range ws {
		errs = append(errs, t.p.WriteMem(w.Addr, w.New))
	}
	return errors.Join(errs...)
}
