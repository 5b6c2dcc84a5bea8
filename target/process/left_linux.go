package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target/patch"
)

// A tracer has the ring of its target mapped, and descriptors of the memory files that it
// has made there: they look as what a tracer that was killed has left. The kernel tells them
// apart. A tracer opens the files with tracerFlag, which means nothing for memory; the
// process that they were made in has its own descriptors from memfd_create(2), which knows no
// such flag, and fcntl(2) can not set it. A tracer's descriptor of the ring is older than its
// mapping and outlives it, so there is no moment at which the mapping looks left.

// tracerFlag marks a tracer's own descriptors of memory files.
const tracerFlag = unix.O_DSYNC

// memfdPrefix is what the links of descriptors of our memory files begin with.
const memfdPrefix = "/memfd:kprobes:"

// descriptor is one of a process's descriptors of our memory files.
type descriptor struct {
	fd     int
	file   procfs.FileID
	tracer bool // the process has it as a tracer of another
}

// descriptors lists the process's descriptors of our memory files.
func descriptors(p *ptrace.Process) ([]descriptor, error) {
	dir := fmt.Sprintf("/proc/%d/%s", p.PID(), p.FileName("fd"))
	es, err := os.ReadDir(dir)
	if err != nil {
		return nil, p.Gone(err)
	}
	var out []descriptor
	for _, e := range es {
		link, err := os.Readlink(filepath.Join(dir, e.Name()))
		fd, aerr := strconv.Atoi(e.Name())
		if err != nil || aerr != nil || !strings.HasPrefix(link, memfdPrefix) {
			continue // not ours, or closed meanwhile
		}
		d, err := descriptorOf(p, fd)
		if errors.Is(err, unix.ENOENT) && p.CheckAlive() == nil {
			continue // closed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("process %d: descriptor %d: %w", p.PID(), fd, p.Gone(err))
		}
		out = append(out, d)
	}
	return out, nil
}

// descriptorOf asks the kernel for one descriptor.
func descriptorOf(p *ptrace.Process, fd int) (descriptor, error) {
	st, err := p.StatFile(p.FileName(fmt.Sprintf("fd/%d", fd)))
	if err != nil {
		return descriptor{}, err
	}
	text, err := p.ReadFile(p.FileName(fmt.Sprintf("fdinfo/%d", fd)))
	if err != nil {
		return descriptor{}, err
	}
	flags, err := parseFlags(string(text))
	return descriptor{fd: fd, file: ptrace.FileID(st), tracer: flags&tracerFlag != 0}, err
}

// parseFlags finds the flags of open(2) in the text of a file of /proc/PID/fdinfo.
func parseFlags(text string) (uint64, error) {
	for l := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(l, "flags:"); ok {
			return strconv.ParseUint(strings.TrimSpace(v), 8, 64)
		}
	}
	return 0, fmt.Errorf("fdinfo %q: no flags", text)
}

// leftMaps picks out of a process's mappings those that a tracer has made in it: not the
// rings of processes that it traces itself.
func leftMaps(p *ptrace.Process, maps []procfs.Map) ([]procfs.Map, error) {
	var out []procfs.Map
	for _, m := range maps {
		if ours(m) {
			out = append(out, m)
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	ds, err := descriptors(p)
	if err != nil {
		return nil, err
	}
	traces := map[procfs.FileID]bool{}
	for _, d := range ds {
		traces[d.file] = traces[d.file] || d.tracer
	}
	left := out[:0]
	for _, m := range out {
		if !traces[m.FileID] {
			left = append(left, m)
		}
	}
	return left, nil
}

// leftDescriptors gives the descriptors that a tracer killed in the middle has left open in
// the process.
func leftDescriptors(p *ptrace.Process) ([]int, error) {
	ds, err := descriptors(p)
	var out []int
	for _, d := range ds {
		if !d.tracer {
			out = append(out, d.fd)
		}
	}
	return out, err
}

// mapped gives the sites whose place is mapped. Where it is not an object has gone, or a detach
// was killed that had unmapped the trampolines.
func (l *Leftover) mapped() ([]patch.Entry, error) {
	maps, err := l.p.Maps()
	if err != nil {
		return nil, err
	}
	var sites []patch.Entry
	for _, p := range l.Sites {
		if _, ok := procfs.FindMap(maps, p.Addr); ok {
			sites = append(sites, patch.Entry{Addr: p.Addr, Orig: p.Orig, Patch: p.Patch})
		}
	}
	return sites, nil
}

// ownEngine is an ErrOwn if a process's own engine patches its code, or that of the process that
// it was forked from did. The kernel's list of mappings tells: no memory of the process is asked.
func ownEngine(p *ptrace.Process, maps []procfs.Map) error {
	for _, m := range maps {
		if !strings.HasPrefix(m.Path, "/memfd:"+procfs.OwnMap) {
			continue
		}
		who := "it"
		if h, err := holderOf(p); err == nil && (h == nil || h.PID != p.PID()) {
			who = "it, or the process that it was forked from,"
		}
		return fmt.Errorf("process %d: %w (%s has mapped %s): %s", p.PID(), ErrOwn, who, procfs.OwnMap, adviceOwn)
	}
	return nil
}
