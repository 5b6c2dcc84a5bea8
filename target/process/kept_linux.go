package process

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target/patch"
)

// A tracer that is killed while the kernel takes out one of its uprobes leaves the uprobe behind: the kernel
// does not finish what a killed thread asked for ("failed to unregister, leaking uprobe", Linux 6.18). The
// uprobe has no user any more, but its breakpoint stands in every process that had it, for as long as they
// live. Threads run through it, with a trap each time.
//
// The kernel has one uprobe for a place of a file, and one list of its users. So one who places a uprobe at
// the same place, and takes it out again, becomes the kept uprobe's only user and its last: the kernel
// walks all mappings of the file and takes the breakpoint out of them. If somebody else has a uprobe there,
// that user is left, and so is the breakpoint. A uprobe with a reference counter (USDT semaphores) can only
// be placed with the same counter: such a kept one stays (EINVAL).
//
// If this is interrupted by SIGKILL the kernel may keep the uprobe once more. Nothing is worse then than
// before, and the next one takes it out.
//
// When the kernel takes out a uprobe it writes the file's bytes over whatever breakpoint stands there. So nothing is
// done where a breakpoint may be anybody's but the kernel's (answered).

// Bounds of DropKept.
const (
	maxOwnText = 64 << 20        // bytes of text that are compared with their files
	maxKept    = 1024            // places
	keptAtOnce = 16              // places at the same time: the kernel waits most of the time
	keptTime   = 2 * time.Second // no place is begun later
)

// Kept tells what DropKept has done.
type Kept struct {
	Dropped []uint64 // where a breakpoint stood that the kernel had kept; the file's bytes stand there now
	Stays   []uint64 // where a breakpoint stands that is not ours
	Why     error    // why not all could be found, or taken out; nil: those that stay are in use
}

// keptPlace is a place at which the kernel may have kept a breakpoint.
type keptPlace struct {
	addr uint64
	want []byte     // the file's bytes
	m    procfs.Map // its file
}

// DropKept takes out of the process, and of all others that map the same files, the breakpoints of uprobes
// that the kernel has kept though their tracers have ended. Those that somebody uses stay. It needs the rights
// that Target.Uprobe needs. Leftover.Undo does so too. Precondition: the caller has the process's lock.
func (p *Proc) DropKept() *Kept { return dropKept(p.Process, keptCase{}) }

// keptCase is what is known where kept breakpoints are looked for.
type keptCase struct {
	ours   []patch.Entry   // patches that may stand
	inUse  map[uint64]bool // addresses of breakpoints that are known to be in use
	held   map[uint64]bool // pages on which the kernel holds probes of this tracer
	killed bool            // a tracer of kprobe's was killed: breakpoints are its, and a handler of SIGTRAP may be
}

// dropKept is DropKept.
//
// Only pages that are not the file's own any more are read: the kernel lists them. A page that differs from its
// file in anything but breakpoints and our patches is left alone.
func dropKept(p *ptrace.Process, c keptCase) *Kept {
	maps, err := p.Maps()
	if err != nil {
		return &Kept{Why: err}
	}
	places, err := keptPlaces(p, maps, c.ours)
	places = slices.DeleteFunc(places, func(k keptPlace) bool { return c.inUse[k.addr] || c.held[procfs.PageDown(k.addr)] })
	if len(places) == 0 {
		return &Kept{Why: err}
	}
	ask, why := answered(p, places, c.killed)
	why = cmp.Or(why, reopen(p, ask))
	out := &Kept{}
	for _, k := range places {
		have := make([]byte, len(k.want))
		switch failed := p.ReadMem(k.addr, have); {
		case failed != nil:
			err = cmp.Or(err, failed)
		case bytes.Equal(have, k.want):
			out.Dropped = append(out.Dropped, k.addr)
		default:
			out.Stays = append(out.Stays, k.addr)
		}
	}
	if len(out.Stays) > 0 {
		err = cmp.Or(err, why)
	}
	out.Why = err
	return out
}

// answered picks out the places whose breakpoint is the kernel's, if anybody's: nobody else would
// answer it. why says why not all are. Who answers a breakpoint is a debugger, a handler of SIGTRAP
// (but Go's runtime, which dies of one) or a program that has made its text writable. Where a tracer of
// kprobe's was killed the breakpoint is taken for its, and the handler does not count.
func answered(p *ptrace.Process, places []keptPlace, killed bool) (out []keptPlace, why error) {
	st, err := p.Status()
	switch {
	case err != nil:
		return nil, err
	case st.TracerPID != 0:
		return nil, fmt.Errorf("process %d traces it, and may have set them", st.TracerPID)
	case !killed && st.Catches(int(unix.SIGTRAP)) && !isGo(p):
		return nil, errors.New("it has a handler for SIGTRAP, and may have set them itself")
	}
	b, err := p.ReadFile(p.FileName("smaps"))
	if err != nil {
		return nil, err
	}
	pristine := pristineMaps(b)
	for _, k := range places {
		if pristine[k.m.Start] {
			out = append(out, k)
		} else {
			why = fmt.Errorf("mapping 0x%x was writable, and the process may have set them itself", k.m.Start)
		}
	}
	return out, why
}

// pristineMaps gives, by their start, the mappings of /proc/PID/smaps that have never been writable. The
// kernel accounts for a private mapping that is made writable (ac), if it accounts for the mapping at all
// (nr: it does not), and does not forget it when the mapping is made read-only again.
func pristineMaps(smaps []byte) map[uint64]bool {
	out := map[uint64]bool{}
	at := uint64(0)
	for line := range strings.Lines(string(smaps)) {
		first, rest, _ := strings.Cut(line, " ")
		if first == "VmFlags:" {
			flags := strings.Fields(rest)
			out[at] = !slices.ContainsFunc(flags, func(f string) bool { return f == "ac" || f == "nr" || f == "wr" })
		} else if lo, _, ok := strings.Cut(first, "-"); ok {
			at, _ = strconv.ParseUint(lo, 16, 64)
		}
	}
	return out
}

// reopen places a uprobe at each place and takes it out again.
func reopen(p *ptrace.Process, places []keptPlace) error {
	var mu sync.Mutex
	var first error
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if first == nil {
			first = err
		}
	}
	if len(places) > maxKept {
		fail(fmt.Errorf("they are %d, of which %d are tried", len(places), maxKept))
		places = places[:maxKept]
	}
	next := make(chan keptPlace, len(places))
	for _, k := range places {
		next <- k
	}
	close(next)
	end := time.Now().Add(keptTime)
	var wg sync.WaitGroup
	for range min(keptAtOnce, len(places)) {
		wg.Go(func() {
			for k := range next {
				if time.Now().After(end) {
					fail(fmt.Errorf("it took longer than %v", keptTime))
					return
				}
				fd, err := openUprobe(p, k.m, k.addr)
				if err == nil {
					err = unix.Close(fd)
				}
				if err != nil {
					fail(err)
				}
			}
		})
	}
	wg.Wait()
	return first
}

// keptPlaces finds the breakpoints, and what the kernel makes of breakpoints, in text that is mapped from
// files which have none there.
func keptPlaces(p *ptrace.Process, maps []procfs.Map, ours []patch.Entry) (out []keptPlace, err error) {
	pages, err := p.OpenAt(p.FileName("pagemap"), 0)
	if err != nil {
		return nil, err
	}
	defer pages.Close()
	room := uint64(maxOwnText)
	for _, m := range maps {
		if _, ok := textMap(maps, m.Start); !ok {
			continue
		}
		own, err := ptrace.OwnPages(pages, m, room/procfs.PageSize)
		if err != nil {
			return nil, err
		}
		if len(own) == 0 {
			continue
		}
		room -= uint64(len(own)) * procfs.PageSize
		f, err := p.OpenMap(m)
		if err != nil {
			continue // no uprobe can be placed in it either
		}
		for _, page := range own {
			out = append(out, keptOn(p, maps, ours, m, f, page)...)
		}
		f.Close()
	}
	return out, nil
}

// keptOn gives where on a page breakpoints of the kernel may stand. None, if it can not be read.
func keptOn(p *ptrace.Process, maps []procfs.Map, ours []patch.Entry, m procfs.Map, f *os.File, page uint64) (out []keptPlace) {
	have, want := make([]byte, procfs.PageSize), make([]byte, procfs.PageSize)
	if p.ReadMem(page, have) != nil || fileBytes(f, page-m.Start+m.Offset, want) != nil {
		return nil
	}
	for _, s := range ours {
		if s.Addr-page < procfs.PageSize && bytes.HasPrefix(have[s.Addr-page:], s.Patch) {
			copy(have[s.Addr-page:], s.Orig)
		}
	}
	called := func(off int, rel int32) bool {
		in, ok := procfs.FindMap(maps, page+uint64(off)+uint64(int64(rel)))
		return ok && in.Path == uprobeTrampoline
	}
	for _, r := range breakpoints(have, want, called) {
		out = append(out, keptPlace{page + r.Start, want[r.Start:r.End], m})
	}
	return out
}

// uprobeTrampoline is what the kernel calls the mapping with its code for uprobes that take no trap.
const uprobeTrampoline = "[uprobes-trampoline]"

// breakpoints gives the bytes of a page that breakpoints of the kernel may have changed, if nothing else on it
// differs from its file. called says whether the distance rel from an offset in the page leads to the
// kernel's trampoline.
func breakpoints(have, want []byte, called func(off int, rel int32) bool) (out []interval.Range) {
	for i := 0; i < len(have); {
		if have[i] == want[i] {
			i++
			continue
		}
		n := native.KernelPatch(have[i:], want[i:], func(behind int, rel int32) bool { return called(i+behind, rel) })
		if n == 0 {
			return nil
		}
		out = append(out, interval.Range{Start: uint64(i), End: uint64(i + n)})
		i += n
	}
	return out
}
