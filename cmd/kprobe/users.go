package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/engine/records"
	"kprobes.dev/kprobes/internal/hit"
	"kprobes.dev/kprobes/internal/holder"
	"kprobes.dev/kprobes/internal/modules"
	"kprobes.dev/kprobes/internal/target"
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

// host has the engine of one target, and those who use it: each command line is a user, with events of its own. The first one opens the
// target, and with the last one's end the host gives it up, and ends.
type host struct {
	done   chan struct{}
	stop   chan struct{} // closed when a signal asks for the end of all command lines
	opened chan struct{} // closed once base is there, or never will be

	mu       sync.Mutex // held while users come and go
	base     mountable
	mem      string // the file that a client must show open
	buffer   int
	text     string
	ending   bool // nobody can come any more
	sessions int
	users    int
	last     uint32 // the number that was given out last

	modulesMu sync.Mutex     // held while modules come and go; taken before the others
	modules   *loaded        // nil: there are none
	table     *modules.Table // of all that there were: what stands in the process for them writes to its log

	syncMu sync.Mutex // held while somebody follows what changes in the target
	pollMu sync.Mutex // held while records are read; taken after the others
	takers map[uint32]*user
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

// user is a command line's part of a target that others use too.
type user struct {
	probed
	h    *host
	con  *console
	id   uint32
	take func(*hit.Hit)
	asks func(*hit.Hit)  // takes hits in place of take, while records are read for it; nil: it does not; of host.pollMu
	n    atomic.Int64    // hits that it was given
	lost map[loss]uint64 // records that Losses has not told of; of host.pollMu
	last bool            // nobody else was left when it ended
	// How its events were armed when they were taken out.
	tactics map[*kprobes.Event]string

	mu    sync.Mutex
	errs  []error // of changes in the target, not told yet
	ended bool
}

// Losses tells of what was lost of the user's events.
func (u *user) Losses(all bool, f func(d *event.Def, cpu int, records uint64)) {
	u.h.pollMu.Lock()
	defer u.h.pollMu.Unlock()
	if all {
		u.h.losses(true)
	}
	for l, records := range u.lost {
		f(l.of, l.cpu, records)
	}
	clear(u.lost)
}

// loss is of what records were lost: on which CPU.
type loss struct {
	of  *event.Def
	cpu int
}

// asked is what a command line asks of the target as a whole.
type asked struct {
	con    *console
	of     *subject
	buffer int    // bytes of the ring for each CPU; 0: the default
	text   string // a word of --text; "": the default
}

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

func (u *user) Names() hit.Namer { return u.h.base.Names() }

func (u *user) Add(defs []*event.Def, o *kprobes.AddOptions) error {
	for _, d := range defs {
		d.User = u.id
	}
	return u.probed.Add(defs, o)
}

// Run lets a program go on that was started for the user. If it cannot, the user has left.
func (u *user) Run() error {
	p, ok := u.h.base.(*tracedProcess)
	if !ok || u.con.of.Program == 0 {
		return nil
	}
	select {
	case <-u.con.of.Gone: // who has started it was killed
		return errors.Join(p.s.proc.Signal(unix.SIGKILL), u.Leave(nil))
	default:
	}
	if err := p.begin(); err != nil {
		return errors.Join(err, u.Leave(nil))
	}
	u.h.mu.Lock()
	once(u.h.opened)
	u.h.mu.Unlock()
	u.con.of.Begun()
	return nil
}

// Poll gives each user the hits of its events, and tells how many came for this one since it was called last. Their
// number is all that the caller needs: f is that of join.
func (u *user) Poll(func(*hit.Hit)) int {
	u.h.poll()
	return int(u.n.Swap(0))
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

// Sync tells each user what went wrong.
func (u *user) Sync() (ended bool, err error) {
	u.h.syncMu.Lock()
	ended, err = u.h.base.Sync()
	u.h.syncMu.Unlock()
	if err != nil || ended {
		u.h.pollMu.Lock()
		for _, o := range u.h.takers {
			o.tell(ended, err)
		}
		u.h.pollMu.Unlock()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	err, u.errs = errors.Join(u.errs...), nil
	return u.ended, err
}

// maxTold bounds what is remembered of errors that nobody asks for.
const maxTold = 100

func (u *user) tell(ended bool, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = u.ended || ended
	if err != nil && len(u.errs) < maxTold {
		u.errs = append(u.errs, err)
	}
}

func (u *user) Exited() <-chan struct{} { return u.h.base.Exited() }

func (u *user) Remarks() []string { return u.h.base.Remarks() }

// Leave takes the user's events out, and the last one's end everything.
func (u *user) Leave(f func(*hit.Hit)) error {
	h := u.h
	h.mu.Lock()
	defer h.mu.Unlock()
	defer close(u.con.left)
	h.users--
	if u.last = h.users == 0; u.last {
		h.end()
		h.pollMu.Lock()
		defer h.pollMu.Unlock()
		return h.base.Leave(f)
	}
	u.tactics = map[*kprobes.Event]string{}
	for _, e := range u.evs {
		u.tactics[e] = formOf(e)
	}
	err := u.core.Remove(u.evs)
	if errors.Is(err, target.ErrGone) {
		err = nil
	}
	h.poll() // what lies in the ring of a target with a clock of its own waits from when it was seen
	time.Sleep(records.SettleTime)
	h.poll()
	h.pollMu.Lock()
	defer h.pollMu.Unlock()
	h.losses(true)
	delete(h.takers, u.id)
	return err
}

func (u *user) Totals() []*total {
	if u.last {
		return u.probed.Totals()
	}
	return totals(u.core, u.evs, func(e *kprobes.Event) string { return u.tactics[e] })
}

func (u *user) Status() error { return nil }

// Close gives the process up after its last user.
func (u *user) Close() error {
	if !u.last {
		return nil
	}
	return u.h.base.Close()
}

// pending are hits for a user that takes them when it polls, so that others do not wait for what it does with them.
type pending struct {
	mu   sync.Mutex
	full batch // nobody has taken them

	giving sync.Mutex
	given  batch // what was taken last, whose room is used again
}

// add adds a copy of a hit.
func (p *pending) add(h *hit.Hit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full.add(h)
}

// give gives the hits out, and returns how many.
func (p *pending) give(f func(*hit.Hit)) int {
	p.giving.Lock()
	defer p.giving.Unlock()
	p.given.clear()
	p.mu.Lock()
	p.full, p.given = p.given, p.full
	p.mu.Unlock()
	p.given.each(f, nil)
	n := len(p.given.hits)
	if cap(p.given.hits) > pendingRoom {
		p.given = batch{}
	}
	return n
}

// pendingRoom is the most hits for which the room is kept.
const pendingRoom = 1 << 17

// mountUser is what the files of a mount know of a target that others use too.
type mountUser struct {
	u    *user
	hits *pending
}

// User implements trace.Shared.
func (m mountUser) User() uint32 { return m.u.id }

// Poll implements trace.Shared. What takes long with hits works on copies, so that others do not wait for it.
func (m mountUser) Poll(f func(*hit.Hit), fast bool) int {
	if !fast {
		m.u.Poll(nil)
		return m.hits.give(f)
	}
	h := m.u.h
	h.pollMu.Lock()
	defer h.pollMu.Unlock()
	n := m.hits.give(f) // what others have read comes first
	m.u.n.Store(0)
	m.u.asks = f
	defer func() { m.u.asks = nil }()
	h.read()
	return n + int(m.u.n.Load())
}

// Losses implements trace.Shared.
func (m mountUser) Losses(all bool, f func(d *event.Def, cpu int, records uint64)) {
	m.u.Losses(all, f)
}

// Follow implements trace.Shared. The verb itself looks whether the target has ended, and tells what goes wrong.
func (m mountUser) Follow() error {
	ended, err := m.u.Sync()
	if ended {
		return errors.Join(err, target.ErrGone)
	}
	return err
}
