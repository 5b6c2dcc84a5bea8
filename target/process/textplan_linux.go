package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// textPlan is what one change makes private.
type textPlan struct {
	m    procfs.Map // its file
	runs []textRun
	need map[uint64]bool // the pages that sites stand in
}

// planText prepares what the sites' pages become, while the process runs: the bytes of the files
// are read here.
func (t *Target) planText(add []*target.Site) (err error) {
	if !t.text.on {
		return nil
	}
	var addrs []uint64
	for _, a := range add {
		if page := procfs.PageDown(a.Addr); !t.text.private[page] {
			addrs = append(addrs, a.Addr)
		}
	}
	if len(addrs) == 0 {
		return nil
	}
	maps, err := t.p.Maps()
	if err != nil {
		return err
	}
	var pages []uint64
	for _, page := range pagesOf(addrs) {
		if t.text.held[page] {
			t.stays(fmt.Errorf("page 0x%x stays shared with its file, since one of these probes has the tactic uprobe there", page))
		} else if _, ok := textMap(maps, page); ok {
			pages = append(pages, page)
		}
	}
	runs := fewRuns(maps, pages)
	if n := uint64(len(maps) + 2*len(runs)); n > t.text.limit/2 {
		t.stays(fmt.Errorf("%d pages stay shared with their files: the process would have %d mappings, of %d that it may have (vm.max_map_count)", len(pages), n, t.text.limit))
		return nil
	}
	t.text.plans, err = t.fillRuns(maps, runs, pages)
	return err
}

// stays notes why a page is no private copy.
func (t *Target) stays(why error) {
	t.asked.Lock()
	defer t.asked.Unlock()
	if t.text.why == nil {
		t.text.why = why
	}
}

// fillRuns reads the files' bytes and sorts the runs by file.
func (t *Target) fillRuns(maps []procfs.Map, runs []textRun, pages []uint64) ([]textPlan, error) {
	var out []textPlan
	need := map[uint64]bool{}
	for _, p := range pages {
		need[p] = true
	}
	at := map[procfs.FileID]int{}
	for _, r := range runs {
		m, _ := procfs.FindMap(maps, r.Start)
		f, err := t.textFile(m)
		if err != nil {
			t.stays(fmt.Errorf("page 0x%x stays shared with its file: %w", r.Start, err))
			continue
		}
		r.want = make([]byte, r.Size())
		if err := fileBytes(f, r.off, r.want); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		i, ok := at[m.FileID]
		if !ok {
			i = len(out)
			at[m.FileID] = i
			out = append(out, textPlan{m: m, need: need})
		}
		out[i].runs = append(out[i].runs, r)
	}
	return out, nil
}

// makePrivate puts copies in the place of pages. Precondition: the world is stopped.
func (t *Target) makePrivate(s *ptrace.Stopped) error {
	if len(t.text.plans) == 0 {
		return nil
	}
	for _, p := range t.text.plans {
		lo := p.runs[0].Start
		maps, err := t.p.MapsIn(lo, p.runs[len(p.runs)-1].End-lo)
		if err != nil {
			return err
		}
		same, err := t.sameRuns(maps, p)
		if err != nil {
			return err
		}
		if len(same) == 0 {
			continue
		}
		if err := t.copyRuns(s, p.m, same); err != nil {
			if !noCopy(err) {
				return err
			}
			t.stays(fmt.Errorf("page 0x%x stays shared with its file: %w", same[0].Start, err))
		}
	}
	t.text.plans = nil
	return nil
}

// noCopy says whether an error means that the process can not have the copy, and nothing else is
// wrong.
func noCopy(err error) bool {
	for _, e := range []error{ErrSeccomp, ErrNoThread, unix.ENOMEM, unix.EAGAIN, unix.EPERM, unix.EACCES, unix.EMFILE, unix.ENFILE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// sameRuns gives the parts of the runs whose bytes are the file's.
func (t *Target) sameRuns(maps []procfs.Map, p textPlan) (out []textRun, err error) {
	for _, r := range p.runs {
		if t.wholeRun(maps, p.m.FileID, r) {
			out = append(out, r)
			continue
		}
		for at := r.Start; at < r.End; at += procfs.PageSize {
			if t.text.private[at] { // by an attempt that was blocked then
				continue
			}
			want := r.want[at-r.Start:][:procfs.PageSize]
			m, ok := textMap(maps, at)
			if ok = ok && m.FileID == p.m.FileID && at-m.Start+m.Offset == at-r.Start+r.off && !t.text.held[at]; ok {
				if ok, err = t.samePage(at, want, at); err != nil && (p.need[at] || !errors.Is(err, unix.EBUSY)) {
					return nil, err
				}
			}
			if n := len(out); ok && n > 0 && out[n-1].End == at {
				out[n-1].End += procfs.PageSize
				out[n-1].want = append(out[n-1].want, want...)
			} else if ok {
				out = append(out, textRun{Range: interval.Range{Start: at, End: at + procfs.PageSize}, off: at - r.Start + r.off, want: bytes.Clone(want)})
			} else if p.need[at] {
				t.stays(fmt.Errorf("page 0x%x stays shared with its file, whose bytes it has not", at))
			}
		}
	}
	return out, nil
}

// wholeRun says whether all of a run can become private: it is mapped as it was, and has the file's
// bytes.
func (t *Target) wholeRun(maps []procfs.Map, file procfs.FileID, r textRun) bool {
	m, ok := textMap(maps, r.Start)
	if !ok || r.End > m.End || m.FileID != file || r.Start-m.Start+m.Offset != r.off {
		return false
	}
	for at := r.Start; at < r.End; at += procfs.PageSize {
		if t.text.held[at] {
			return false
		}
	}
	have := make([]byte, r.Size())
	return t.p.ReadMem(r.Start, have) == nil && bytes.Equal(have, r.want)
}

// copyRuns makes the memory file and maps it over the runs.
func (t *Target) copyRuns(s *ptrace.Stopped, m procfs.Map, runs []textRun) error {
	return t.memfd(s, textFileName(m), func(local *os.File, fd int) error {
		defer local.Close()
		last := runs[len(runs)-1]
		if err := local.Truncate(int64(last.off + last.Size())); err != nil {
			return err
		}
		for _, r := range runs {
			if _, err := local.WriteAt(r.want, int64(r.off)); err != nil {
				return err
			}
		}
		return t.mapRuns(s, fd, runs, isText)
	})
}

// mapRuns maps a file of the process over runs, and checks what stands there then: mappings that
// are right, with the bytes that were there before.
func (t *Target) mapRuns(s *ptrace.Stopped, fd int, runs []textRun, right func(procfs.Map) bool) error {
	calls := make([]ptrace.Syscall, len(runs))
	for i, r := range runs {
		calls[i] = ptrace.Syscall{Nr: unix.SYS_MMAP, Args: [6]uint64{
			r.Start, r.Size(), unix.PROT_READ | unix.PROT_EXEC, unix.MAP_PRIVATE | unix.MAP_FIXED | unix.MAP_POPULATE, uint64(fd), r.off,
		}}
	}
	if err := s.CallAll(calls); err != nil {
		return err
	}
	maps, err := t.p.MapsIn(runs[0].Start, runs[len(runs)-1].End-runs[0].Start)
	if err != nil {
		return err
	}
	t.learnRuns(maps, runs)
	for i, r := range runs {
		if calls[i].Err != nil {
			return fmt.Errorf("mmap of %d bytes at 0x%x in the target: %w", r.Size(), r.Start, calls[i].Err)
		}
		ok := func(m procfs.Map) bool { return m.Perm == procfs.PermRead|procfs.PermExec && right(m) }
		if calls[i].Result != r.Start || !procfs.Covered(maps, r.Start, r.Size(), ok) {
			return fmt.Errorf("mmap of %d bytes at 0x%x in the target: %w: the kernel's maps show something else", r.Size(), r.Start, ErrFault)
		}
	}
	return nil
}
