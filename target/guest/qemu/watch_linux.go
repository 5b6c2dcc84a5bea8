package qemu

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
)

// Access is what a watchpoint waits for: the number of its packet in the gdb protocol.
type Access byte

// Accesses.
const (
	WatchWrites   Access = '2'
	WatchAccesses Access = '4'
)

// memory is what a watchpoint of QEMU's watches.
type memory struct {
	addr   uint64
	size   int
	access Access
}

// command sets (Z) or removes (z) the watchpoint.
func (w memory) command(how byte) string {
	return fmt.Sprintf("%c%c,%x,%x", how, w.access, w.addr, w.size)
}

func (w memory) overlaps(o memory) bool {
	return w.addr < o.addr+uint64(o.size) && o.addr < w.addr+uint64(w.size)
}

// Watchpoint is a watchpoint in all vCPUs.
type Watchpoint struct {
	m  *Machine
	at memory
	f  func(*CPU, *Stop)
}

// Watch watches size bytes at a virtual address. When a vCPU has accessed them all are stopped, and f is called with the
// registers that the vCPU has behind the access. f must do no more than the handler of a breakpoint may, changes no registers, and may
// still be called once before Remove returns.
//
// QEMU tells of one watchpoint at an access (7.2, softmmu/physmem.c, cpu_check_watchpoint), so that what is watched twice must be the
// same memory, for the same access (EBUSY). Of two vCPUs that access at the same moment QEMU tells one, and the other when it next
// accesses the page; a vCPU that Stopped stops there likewise.
func (m *Machine) Watch(addr uint64, size int, a Access, f func(*CPU, *Stop)) (*Watchpoint, error) {
	w := &Watchpoint{m: m, at: memory{addr, size, a}, f: f}
	err := m.Stopped(func(*Stop) error {
		if len(m.watched[w.at]) == 0 {
			for o := range m.watched {
				if o.overlaps(w.at) {
					return errno.Errorf(unix.EBUSY, "watchpoint at %#x: QEMU tells of one watchpoint at an access, and %d bytes at %#x are watched: "+
						"watch the same bytes for the same accesses, or take that one out first", addr, o.size, o.addr)
				}
			}
			if err := m.stub.must(w.at.command('Z')); err != nil {
				return fmt.Errorf("watchpoint at %#x: %w", addr, err)
			}
		}
		m.watched[w.at] = append(m.watched[w.at], w)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// Remove removes the watchpoint. That the machine is gone is no error.
func (w *Watchpoint) Remove() error {
	err := w.m.Stopped(func(*Stop) error {
		all := w.m.watched[w.at]
		i := slices.Index(all, w)
		if i < 0 {
			return nil
		}
		if len(all) > 1 {
			w.m.watched[w.at] = slices.Delete(slices.Clone(all), i, i+1)
			return nil
		}
		delete(w.m.watched, w.at)
		return w.m.stub.must(w.at.command('z'))
	})
	if errors.Is(err, ErrGone) || errors.Is(err, errGivenUp) || errors.Is(err, unix.EBADF) {
		return nil
	}
	return err
}

// stopWatched is the address of the watchpoint that a stop reply tells of.
func stopWatched(reply string) (addr uint64, ok bool) {
	for field := range strings.SplitSeq(reply, ";") {
		name, value, _ := strings.Cut(field, ":")
		if name == "watch" || name == "awatch" {
			addr, err := strconv.ParseUint(value, 16, 64)
			return addr, err == nil
		}
	}
	return 0, false
}

// accessed calls the handlers of the watchpoint that a stop reply tells of, if it tells of one. One that was removed
// meanwhile has none.
func (w *watcher) accessed(s *Stop, reply string) (told bool, err error) {
	addr, ok := stopWatched(reply)
	if !ok {
		return false, nil
	}
	c, err := w.stopped(reply)
	if err != nil {
		return true, err
	}
	for at, all := range w.m.watched {
		if at.addr != addr {
			continue
		}
		for _, p := range slices.Clone(all) {
			p.f(c, s)
		}
	}
	return true, nil
}
