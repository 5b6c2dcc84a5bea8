package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/holder"
	"kprobes.dev/kprobes/target/guest/qemu"
	"kprobes.dev/kprobes/target/process"
)

// newHold makes the verb of the process that holds a target for others. Nobody but kprobe itself calls it.
func newHold() *cobra.Command {
	return &cobra.Command{Use: "hold", Short: "hold a target for other kprobes", Hidden: true, Args: noArgs, RunE: func(*cobra.Command, []string) error {
		if err := os.WriteFile("/proc/self/comm", []byte("kprobe"), 0); err != nil {
			return err
		}
		h := newHost()
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, endSignals()...)
		go func() {
			<-signals
			close(h.stop)
		}()
		return holder.Serve(h)
	}}
}

func newHost() *host {
	return &host{done: make(chan struct{}), stop: make(chan struct{}), opened: make(chan struct{}), takers: map[uint32]*user{}}
}

// Done implements holder.Host.
func (h *host) Done() <-chan struct{} { return h.done }

// Target implements holder.Host.
func (h *host) Target() (mem string, ok bool) {
	<-h.opened
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.base == nil || h.ending {
		return "", false
	}
	return h.mem, true
}

// Serve implements holder.Host.
func (h *host) Serve(s *holder.Session) (status int, ok bool) {
	h.mu.Lock()
	h.sessions++
	h.mu.Unlock()
	c := &console{args: s.Args, stdout: s.Files.Out, stderr: s.Files.Err, host: h, of: s, left: make(chan struct{})}
	c.table = &checked{name: stdout.name, w: c.stdout}
	c.dir, c.root = fdPath(s.Files.Dir), fdPath(s.Files.Root)
	ended := make(chan int, 1)
	go func() { ended <- c.runServed(s) }()
	select {
	case status = <-ended:
	case <-s.Gone:
		select {
		case status = <-ended:
		case <-c.left: // what it still has to print may never be read
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sessions--; h.sessions == 0 && h.users == 0 {
		h.end()
		once(h.done)
	}
	return status, !c.again
}

// end has nobody come any more. Precondition: h.mu is held.
func (h *host) end() {
	h.ending = true
	once(h.opened)
}

// once closes a channel that may be closed. One goroutine at a time may call it.
func once(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// fdPath is a path that leads through an open file.
func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// errAgain says that the target is about to be given up: who asks again gets it, or is told who has it.
var errAgain = errors.New("the target is being given up")

// join makes a command line a user of the target; take gets its hits.
func (h *host) join(a asked, take func(*hit.Hit)) (*user, error) {
	if pid := a.con.of.Program; pid != 0 {
		a.of = &subject{pid: pid}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ending {
		a.con.again = true
		return nil, errAgain
	}
	if h.base == nil {
		if err := h.open(a); err != nil {
			a.con.again = a.taken(err)
			h.end()
			return nil, err
		}
	}
	if err := h.agrees(a); err != nil {
		return nil, err
	}
	h.last++
	h.users++
	u := &user{probed: probed{core: h.base.Core()}, h: h, con: a.con, id: h.last, take: take, lost: map[loss]uint64{}}
	h.pollMu.Lock()
	defer h.pollMu.Unlock()
	h.takers[u.id] = u
	return u, nil
}

// open opens the target for its first user.
func (h *host) open(a asked) (err error) {
	if h.mem, err = a.con.memoryOf(a.of); err != nil {
		return err
	}
	base, err := a.hold()
	if err != nil {
		return err
	}
	h.base, h.buffer, h.text = base, a.buffer, a.text
	if a.con.of.Program == 0 {
		once(h.opened)
	} // else nobody else comes before it runs
	return nil
}

// hold opens the target, and has this process hold it.
func (a asked) hold() (mountable, error) {
	if a.of.guest != "" {
		spec, err := a.con.guestSpec(a.of.guest)
		if err != nil {
			return nil, err
		}
		return openGuest(spec)
	}
	open := func() (*tracedProcess, error) {
		return openProcess(a.of.pid, nil, a.buffer, false, textModes[a.text])
	}
	if a.con.of.Program != 0 {
		open = func() (*tracedProcess, error) { return openStarted(a.of.pid, a.buffer, textModes[a.text]) }
	}
	p, err := open()
	if err != nil {
		return nil, err
	}
	if err = p.s.proc.Lock(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// taken says whether a target can not be held since another process does, which may serve who asks.
func (a asked) taken(err error) bool {
	var held *process.HeldError
	if errors.As(err, &held) {
		return held.Holder.PID != held.PID
	}
	h, _ := a.con.holderOf(a.of) // what can not be looked at is not asked
	return h != nil && errors.Is(err, qemu.ErrHeld)
}

// agrees says why a command line can not have what it asks of the target as a whole.
func (h *host) agrees(a asked) error {
	for flag, differs := range map[string]bool{"--buffer-size": a.buffer != 0 && a.buffer != h.buffer, "--text": a.text != "" && a.text != h.text} {
		if differs {
			return fmt.Errorf("%s is held already (by process %d), with another %s: leave it out, or wait for the other's end", a.of.name(), os.Getpid(), flag)
		}
	}
	return nil
}

func (h *host) poll() {
	h.pollMu.Lock()
	defer h.pollMu.Unlock()
	h.read()
}

// read reads records, and gives each to the user whose event it is of. Precondition: h.pollMu is held.
func (h *host) read() {
	var last *hit.Event // of the hit before, and whose it is
	var u *user
	n := 0 // hits of it, that are not counted yet
	count := func() {
		if u != nil {
			u.n.Add(int64(n))
		}
		n = 0
	}
	h.base.Core().Poll(func(one *hit.Hit) {
		if one.Event != last {
			count()
			last, u = one.Event, h.takers[one.Event.Def.User]
		}
		n++
		switch {
		case u == nil:
		case u.asks != nil:
			u.asks(one)
		default:
			u.take(one)
		}
	})
	count()
	h.losses(false)
}

// losses notes for each user what was lost of its events. Precondition: h.pollMu is held.
func (h *host) losses(all bool) {
	engine.Of(h.base.Core()).Losses(all, func(d *event.Def, cpu int, records uint64) {
		if u := h.takers[d.User]; u != nil {
			u.lost[loss{d, cpu}] += records
		}
	})
}
