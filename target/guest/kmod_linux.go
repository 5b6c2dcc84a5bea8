package guest

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/internal/target/patch"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// kmodule is a module of C that stands in the guest's kernel.
type kmodule struct {
	l  *inLine
	at target.ModuleMemory
}

// NewModule gives memory for a module: what it only reads lies beside its code. ENOSPC: there is none left.
func (t *Target) NewModule(size *target.ModuleSize) (target.Module, error) {
	l := t.inLine
	m := &kmodule{l: l}
	all := *size
	all.PerCPU *= uint64(l.at.cpus + 1)
	for _, p := range []struct {
		to    *interval.Range
		from  *patch.Piece
		size  uint64
		which string
	}{
		{&m.at.Text, l.text, all.Text, "code"},
		{&m.at.Rodata, l.text, all.Rodata, "code"},
		{&m.at.Data, l.data, all.Data, "data"},
		{&m.at.PerCPU, l.data, all.PerCPU, "data"},
		{&m.at.Heap, l.data, all.Heap, "data"},
	} {
		if p.size == 0 {
			continue
		}
		at, ok := p.from.Take(p.from.Addr, p.from.Addr, int(p.size))
		if !ok {
			m.free()
			return nil, errno.Errorf(unix.ENOSPC, "a module with %d bytes of %s: the guest's memory for modules has %d of them, and others hold %d; a larger ivshmem device has more (kprobe doctor tells how)",
				p.size, p.which, p.from.Size, p.from.Used())
		}
		*p.to = interval.Range{Start: at, End: at + p.size}
	}
	for _, r := range []interval.Range{m.at.Data, m.at.PerCPU, m.at.Heap} {
		clear(l.bytes(r))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kmods = append(l.kmods, m)
	return m, nil
}

// bytes is the memory of a range of the data.
func (l *inLine) bytes(r interval.Range) []byte {
	if r.Start == 0 {
		return nil
	}
	return l.mem[r.Start-l.va : r.End-l.va]
}

// free gives the memory back.
func (m *kmodule) free() {
	room := func(r interval.Range) patch.Room { return patch.Room{Addr: r.Start, Size: int(r.End - r.Start)} }
	m.l.text.Free(room(m.at.Text), room(m.at.Rodata))
	m.l.data.Free(room(m.at.Data), room(m.at.PerCPU), room(m.at.Heap))
}

// Memory is where the module lies.
func (m *kmodule) Memory() *target.ModuleMemory { return &m.at }

// Write writes memory of the module's, also its code, in which nobody may be. EFAULT: it is not the module's.
func (m *kmodule) Write(addr uint64, b []byte) error {
	if !m.at.Contains(addr, uint64(len(b))) {
		return errno.Errorf(unix.EFAULT, "0x%x is no memory of the module", addr)
	}
	if m.l.code.Contains(addr) {
		return m.l.t.writeCode(addr, b)
	}
	copy(m.l.bytes(interval.Range{Start: addr, End: addr + uint64(len(b))}), b)
	return nil
}

// Unload takes the module's memory out. It waits for vCPUs that are in its code, or on their way there. ErrInDetour: one stays there, and so does the memory.
func (m *kmodule) Unload() error {
	t := m.l.t
	err := error(nil)
	for i := range drainTries {
		if i > 0 {
			time.Sleep(drainWait * time.Duration(1+i/drainEach))
		}
		if m.l.unused(m) {
			m.forget()
			return nil
		}
		if err = t.alive(); err != nil { // its memory has gone with the kernel
			return nil
		}
		if err = t.stopped(func(s *qemu.Stop) error { return t.look(s, &target.Change{}) }); err != nil {
			return err
		}
	}
	if m.l.unused(m) {
		m.forget()
		return nil
	}
	return fmt.Errorf("the module stays in memory: %w", ErrInDetour)
}

// unused says whether no detour leads to one of the module's handlers, nor one that was taken out and that somebody may be in.
func (l *inLine) unused(m *kmodule) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.collect()
	for _, in := range l.calls {
		if m.at.Text.Contains(in.handler) {
			return false
		}
	}
	return true
}

// forget ends the module's use of memory.
func (m *kmodule) forget() {
	m.l.mu.Lock()
	defer m.l.mu.Unlock()
	m.l.kmods = slices.DeleteFunc(m.l.kmods, func(k *kmodule) bool { return k == m })
	m.free()
}

// startWait is how long a task is waited for that could start a module.
const startWait = time.Minute

// How often is looked for what a task that starts a module has done.
const (
	lookSoon = 50 * time.Microsecond
	lookLate = 2 * time.Millisecond
)

// Call runs a function of the module on the first task that hits a probe which leads to the gate ModuleRuntime.Starter, and answers its requests. The task goes on when the
// function has returned. ETIMEDOUT: none came within a minute. ErrGone: the guest has ended.
func (m *kmodule) Call(fn uint64, serve func(target.ModuleRequest) int64) (int64, error) {
	l := m.l
	if !m.at.Text.Contains(fn) {
		return 0, errno.Errorf(unix.EFAULT, "a function of the module at 0x%x: it is not in its code", fn)
	}
	w := threadWords(l.mem[l.at.thread:])
	w.storeLong(arch.ThreadFunc, fn)
	w.storeUnserved(0)
	w.become(arch.ThreadEnded, arch.ThreadWaits)
	begun, pause := time.Now(), lookSoon
	for {
		switch state := w.state(); {
		case state == arch.ThreadAsks:
			r := target.ModuleRequest{What: int64(w.long(arch.ThreadAsked)), Of: w.long(arch.ThreadAsked + 8), N: int64(w.long(arch.ThreadAsked + 16))}
			w.storeLong(arch.ThreadAnswer, uint64(serve(r)))
			w.become(arch.ThreadAsks, arch.ThreadAnswered) // else it has given up
			pause = lookSoon
			continue
		case state == arch.ThreadEnded:
			return int64(w.long(arch.ThreadResult)), nil
		case state == arch.ThreadWaits && time.Since(begun) > startWait && w.become(arch.ThreadWaits, arch.ThreadEnded):
			return 0, errno.Errorf(unix.ETIMEDOUT, "%w within %v: let a program of the guest make system calls meanwhile", errNoStart, startWait)
		}
		if err := l.t.ended.Load(); err != nil {
			return 0, *err
		}
		runtime.Gosched()
		time.Sleep(pause)
		pause = min(2*pause, lookLate)
	}
}
