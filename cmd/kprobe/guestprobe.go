package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/target/guest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// tracedGuest is the kernel of a guest as a tracee.
type tracedGuest struct {
	probed
	m     *qemu.Machine
	t     *guest.Target
	names *guestNames
	ended bool // the machine has, or was started anew
}

// openMachine opens the machine that a --guest flag names: to probe it, or to read it only.
func openMachine(spec string, o *qemu.Options) (*qemu.Machine, error) {
	s, err := qemu.ParseSpec(spec)
	if err != nil {
		return nil, specError(err)
	}
	return qemu.Open(s, o)
}

// toProbe and toRead are how a machine is opened.
var (
	toProbe = &qemu.Options{Guardian: qemu.Guardian("/proc/self/exe", "guest", "guard")}
	toRead  = &qemu.Options{Unlocked: true}
)

// attachGuest finds the kernel that runs in the machine that a --guest flag names.
func attachGuest(spec string, o *qemu.Options) (*qemu.Machine, *guest.Target, error) {
	m, err := openMachine(spec, o)
	if err != nil {
		return nil, nil, err
	}
	t, err := findKernel(m)
	return m, t, err
}

// findKernel finds the kernel that runs in a machine, and closes the machine if there is none.
func findKernel(m *qemu.Machine) (*guest.Target, error) {
	t, err := guest.Attach(m, nil)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return t, nil
}

// openGuest makes a tracee of a guest's kernel.
func openGuest(spec qemu.Spec) (*tracedGuest, error) {
	m, err := qemu.Open(spec, toProbe)
	if err != nil {
		return nil, err
	}
	t, err := findKernel(m)
	if err != nil {
		return nil, err
	}
	core, err := kprobes.Open(t, nil)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &tracedGuest{probed: probed{core: core}, m: m, t: t, names: &guestNames{t: t}}, nil
}

func (g *tracedGuest) Names() hit.Namer { return g.names }

func (g *tracedGuest) Run() error { return nil }

// Sync follows which modules the kernel has. It has ended when the machine has, or was
// started anew.
func (g *tracedGuest) Sync() (ended bool, err error) {
	err = g.core.Sync()
	if errors.Is(err, target.ErrGone) {
		g.ended = true
		return true, fmt.Errorf("the trace ends: %w", err)
	}
	g.names.forget()
	return false, err
}

func (g *tracedGuest) Exited() <-chan struct{} { return nil }

func (g *tracedGuest) Remarks() []string {
	out := g.probed.Remarks()
	if s := g.core.Stats(); s.Dead+s.Corrupt > 0 {
		out = append(out, fmt.Sprintf("%d records were begun and not ended, %d places of the ring were damaged", s.Dead, s.Corrupt))
	}
	return out
}

func (g *tracedGuest) Status() error { return nil }

// Leave takes everything out. Where the machine has ended that is no error: nothing is left.
func (g *tracedGuest) Leave(f func(*hit.Hit)) error { return g.unlessEnded(g.probed.Leave(f)) }

func (g *tracedGuest) Close() error { return g.unlessEnded(g.m.Close()) }

func (g *tracedGuest) unlessEnded(err error) error {
	if g.ended && (errors.Is(err, qemu.ErrGone) || errors.Is(err, target.ErrGone)) {
		return nil
	}
	return err
}

// guestNames finds the names that lines show, and remembers them.
type guestNames struct {
	t     *guest.Target
	mu    sync.Mutex
	space *symbol.Space
	syms  map[uint64]*fetch.Sym
}

// Symbol finds the symbol at an address.
func (n *guestNames) Symbol(addr uint64) (fetch.Sym, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.syms[addr]
	if !ok {
		s = symbolOf(n.t.Space(), addr)
		if n.syms == nil {
			n.syms = map[uint64]*fetch.Sym{}
		}
		n.syms[addr] = s
	}
	if s == nil {
		return fetch.Sym{}, false
	}
	return *s, true
}

// Comm is not known by the number of a thread: records have the name.
func (n *guestNames) Comm(int) string { return "<...>" }

// forget drops names that may belong to a module that has gone.
func (n *guestNames) forget() {
	if s := n.t.Space(); s != n.space {
		n.mu.Lock()
		n.space, n.syms = s, nil
		n.mu.Unlock()
	}
}

// symbolOf finds the symbol at an address, nil if none is known.
func symbolOf(space *symbol.Space, addr uint64) *fetch.Sym {
	l, ok := space.SymbolAt(addr)
	if !ok {
		return nil
	}
	s := &fetch.Sym{Name: l.Name, Off: l.Off, Size: l.Size}
	if !l.Module.Main {
		s.Module = l.Module.Name
	}
	return s
}

// listGuest shows what stands in a guest's kernel, from the guest's own memory.
func listGuest(spec string) error {
	m, t, err := attachGuest(spec, toRead)
	if err != nil {
		return err
	}
	defer m.Close()
	return writeGuestList(stdout, t, &guestNames{t: t})
}

func writeGuestList(w io.Writer, t *guest.Target, n hit.Namer) error {
	l, err := t.FindLeftover()
	if err != nil || l == nil {
		return err
	}
	for i := range l.Sites {
		s := &l.Sites[i]
		state := l.State(s)
		line := func(at uint64, kind byte) string { return listLine(n, at, kind, state) }
		if place, ok := s.Gone(); ok {
			line = func(at uint64, kind byte) string { return placeLine(at, kind, clean(place), " ", "[GONE]") }
		}
		writePoints(w, s.Points, line)
	}
	return nil
}

// detachGuest undoes what a tracer that is gone has left in a guest's kernel.
func detachGuest(spec string, force bool) error {
	m, t, err := attachGuest(spec, toProbe)
	if err != nil {
		return err
	}
	defer m.Close()
	if _, err := m.Resume(); err != nil {
		return err
	}
	l, err := t.FindLeftover()
	if err != nil {
		return err
	}
	if l == nil {
		fmt.Fprintf(os.Stderr, "kprobe: the guest's kernel holds nothing of ours\n")
		return nil
	}
	if l.Alive() && !force {
		return fmt.Errorf("the guest's kernel holds probes of process %d, which still runs: end that one, or --force", l.Holder)
	}
	u, err := l.Undo()
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "kprobe: the guest's kernel: %d sites restored\n", u.Restored)
	if len(u.Foreign) > 0 {
		return fmt.Errorf("%d places hold bytes that are neither the kernel's nor ours, and were left alone with the code that they lead to: 0x%x", len(u.Foreign), u.Foreign)
	}
	return nil
}

// funcsOfGuest lists the functions of a guest's kernel and its modules, and says how they are declared.
func funcsOfGuest(spec, glob string, declared bool) error {
	m, t, err := attachGuest(spec, toRead)
	if err != nil {
		return err
	}
	defer m.Close()
	w := bufio.NewWriter(stdout)
	n := 0
	for _, mod := range t.Space().Modules() {
		name := ""
		if !mod.Main {
			name = mod.Name
		}
		var told func(*symbol.Func) string
		if declared {
			told = func(fn *symbol.Func) string { return t.Prototype(symbol.Resolved{Module: mod, Func: fn}) }
		}
		n += printFuncs(w, mod.Image, glob, name, told)
	}
	return finishFuncs(w, n, glob, t.Space().Modules())
}
