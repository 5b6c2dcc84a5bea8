package qemu

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/amd64/amd64gdb"
	"kprobes.dev/kprobes/internal/errno"
)

// Resume is how a vCPU goes on after a breakpoint's handler.
type Resume int

const (
	// Continue executes the instruction under the breakpoint and goes on; where the handler
	// has changed RIP it goes on there.
	Continue Resume = iota
	// Remove is Continue, and the breakpoint is removed.
	Remove
)

// Breakpoint is a breakpoint in all vCPUs.
type Breakpoint struct {
	m    *Machine
	addr uint64
	f    func(*CPU, *Stop) Resume
}

// Break sets a breakpoint at a virtual address. When a vCPU is about to execute the
// instruction there all are stopped, and f is called with its registers, which it may
// change: the general ones, RIP and RFLAGS. A hit costs some 25 ms under TCG. f is called by
// one goroutine, must use neither Stopped nor Break nor Remove, and may still be called once
// before Remove returns.
func (m *Machine) Break(addr uint64, f func(*CPU, *Stop) Resume) (*Breakpoint, error) {
	b := &Breakpoint{m: m, addr: addr, f: f}
	err := m.Stopped(func(s *Stop) error {
		if len(m.points[addr]) == 0 {
			if err := m.stub.must(breakCommand('Z', addr)); err != nil {
				return fmt.Errorf("breakpoint at %#x: %w", addr, err)
			}
		}
		m.points[addr] = append(m.points[addr], b)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Remove removes the breakpoint. One that is gone already, with the machine or by itself,
// is no error.
func (b *Breakpoint) Remove() error {
	err := b.m.Stopped(func(*Stop) error { return b.remove() })
	if errors.Is(err, ErrGone) || errors.Is(err, errGivenUp) || errors.Is(err, unix.EBADF) {
		return nil
	}
	return err
}

// remove removes a breakpoint from stopped vCPUs.
func (b *Breakpoint) remove() error {
	points := b.m.points
	i := slices.Index(points[b.addr], b)
	if i < 0 {
		return nil
	}
	points[b.addr] = slices.Delete(slices.Clone(points[b.addr]), i, i+1)
	if len(points[b.addr]) > 0 {
		return nil
	}
	delete(points, b.addr)
	return b.m.stub.must(breakCommand('z', b.addr))
}

// breakCommand sets (Z) or removes (z) a breakpoint.
func breakCommand(how byte, addr uint64) string { return fmt.Sprintf("%c0,%x,1", how, addr) }

// watcher takes what the stub says while the vCPUs run: that one has met a breakpoint or a watchpoint.
type watcher struct {
	m     *Machine
	g     *stub
	lease chan chan struct{} // who wants to talk to the stub sends a channel, and closes it when done
	done  chan struct{}      // closed when the stub is gone
	err   error              // why, if it was not QEMU; to be read after done
}

func watch(m *Machine, g *stub) *watcher {
	w := &watcher{m: m, g: g, lease: make(chan chan struct{}), done: make(chan struct{})}
	go w.run()
	return w
}

func (w *watcher) run() {
	defer close(w.done)
	for {
		if w.err = w.heard(); w.err != nil {
			return
		}
		select {
		case l := <-w.lease:
			<-l
		case w.g.said = <-w.g.tokens:
		case <-w.g.done:
			return
		}
	}
}

// heard looks at what the stub has said.
func (w *watcher) heard() error {
	for len(w.g.said) > 0 {
		t, err := w.g.next()
		if err != nil {
			return err
		}
		if isTrap(t.data) {
			err = w.hit(t.data)
		} else {
			err = w.g.acknowledge()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// park makes the watcher leave the stub alone until back is called.
func (w *watcher) park() (back func(), err error) {
	l := make(chan struct{})
	select {
	case w.lease <- l:
		return func() { close(l) }, nil
	case <-w.done:
		if w.err != nil {
			return nil, fmt.Errorf("a breakpoint's hit before: %w", w.err)
		}
		return nil, w.g.over()
	}
}

// hit handles a stop at a breakpoint or a watchpoint. An error means that the stub is not to be talked to
// any more.
func (w *watcher) hit(reply string) error {
	s := &Stop{m: w.m, ran: true, stood: true, began: time.Now()}
	defer func() {
		if s.stood { // a handler panics, or ends the goroutine
			_ = s.release()
		}
	}()
	told, err := w.accessed(s, reply)
	if err == nil && !told {
		var c *CPU
		if c, err = w.stopped(reply); err == nil {
			err = w.handle(s, c)
		}
	}
	if err != nil {
		s.stood = false
		return s.broken(err)
	}
	return s.release()
}

// stopped reads the registers of the vCPU that a stop reply names.
func (w *watcher) stopped(reply string) (*CPU, error) {
	id := stopThread(reply)
	i := slices.Index(w.g.threads, id)
	if i < 0 {
		if err := w.g.learnThreads(); err != nil {
			return nil, err
		}
		if i = slices.Index(w.g.threads, id); i < 0 {
			return nil, errno.Errorf(unix.EPROTO, "gdb stub of QEMU: %.40q names no vCPU", reply)
		}
	}
	answers, err := w.g.ask("Hg"+id, "g")
	if err != nil {
		return nil, err
	}
	c, err := amd64gdb.Parse(i, answers[1])
	return &c, err
}

// handle calls the handlers of the breakpoint that a vCPU stands at, and moves it on.
func (w *watcher) handle(s *Stop, c *CPU) error {
	addr := c.PC()
	points := w.m.points[addr]
	if len(points) == 0 {
		// Somebody else's breakpoint, left behind: the guest is not to hang at it.
		return w.g.must(breakCommand('z', addr))
	}
	old := *c
	for _, b := range slices.Clone(points) {
		if b.f(c, s) != Remove {
			continue
		}
		if err := b.remove(); err != nil {
			return err
		}
	}
	if err := w.g.must(append([]string{"Hg" + w.g.threads[old.Index]}, c.Changes(&old)...)...); err != nil {
		return err
	}
	if c.PC() != addr || len(w.m.points[addr]) == 0 {
		return nil
	}
	return w.stepOver(s, addr, old.Index)
}

// stepOver has one vCPU execute the instruction under a breakpoint: QEMU would stop at the
// same place again. The instruction may access memory that is watched.
func (w *watcher) stepOver(s *Stop, addr uint64, index int) error {
	if err := w.g.must(breakCommand('z', addr)); err != nil {
		return err
	}
	if err := w.g.resume("vCont;s:" + w.g.threads[index]); err != nil {
		return err
	}
	reply, err := w.g.stopReply()
	if err != nil {
		return err
	}
	if _, err := w.accessed(s, reply); err != nil {
		return err
	}
	return w.g.must(breakCommand('Z', addr))
}
