package soak

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"kprobes.dev/kprobes/internal/hit"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/target/process"
)

// plan is what a run with probes does.
type plan struct {
	tactic arch.Tactic // forced; "": the best
	probes []*probe
	late   bool // armed in the middle, not before the program runs
}

// result is what a run with probes has given.
type result struct {
	out     *outcome
	got     map[*probe]uint64 // runs, entries or calls
	tactics map[string]int
	refused map[string]int    // by reason
	parked  map[*probe]string // not armed when the program went on from its middle: why
	records uint64
	lost    uint64
	wrong   []string // records that can not be right, identities that do not hold
	toggles int
}

// session is a program under probes.
type session struct {
	*plan
	s     *Stage
	st    *streams
	proc  *process.Proc
	core  *kprobes.Core
	r     *result
	evs   map[*probe][]*kprobes.Event
	calls map[*probe]*kprobes.Kprobe
	ran   map[*probe]*atomic.Uint64
	names hit.Printer
	done  chan struct{}
	wg    sync.WaitGroup
	seen  map[string]int // records of an event that were looked at
	// starts are the events at a function's start.
	starts map[string]bool
	end    *holder
}

// probed runs the program as a plan says.
func (s *Stage) probed(p *plan) (*result, error) {
	st, err := s.streams()
	if err != nil {
		return nil, err
	}
	defer st.close()
	x := &session{
		plan: p, s: s, st: st, evs: map[*probe][]*kprobes.Event{}, calls: map[*probe]*kprobes.Kprobe{},
		ran: map[*probe]*atomic.Uint64{}, done: make(chan struct{}), seen: map[string]int{}, starts: map[string]bool{}, end: newHolder(),
		r: &result{got: map[*probe]uint64{}, tactics: map[string]int{}, refused: map[string]int{}, parked: map[*probe]string{}},
	}
	x.names.Names = noNames{}
	for _, b := range p.probes {
		if _, off, ok := s.object(b.obj).Image.At(b.addr); ok && off == 0 {
			x.starts[b.name] = true
		}
	}
	proc, held, err := process.Start(s.startCommand(st))
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	x.proc = proc
	st.started()
	late := time.AfterFunc(patience, func() { _ = proc.Signal(9) })
	err = x.run(held)
	if err != nil {
		_ = proc.Signal(9)
	}
	ps, werr := proc.Wait()
	if !late.Stop() {
		err = errors.Join(err, fmt.Errorf("process %d did not end within %v", proc.PID(), patience))
	}
	if err = errors.Join(err, werr); err != nil {
		return nil, err
	}
	x.r.out, err = st.collect(ps)
	return x.r, err
}

func (s *Stage) startCommand(st *streams) *process.Command {
	return &process.Command{Path: s.program, Args: s.args, Env: s.env, Dir: st.dir, Stdin: st.in, Stdout: st.out, Stderr: st.errs}
}

// noNames has no names: records are looked at by their numbers.
type noNames struct{}

func (noNames) Symbol(uint64) (fetch.Sym, bool) { return fetch.Sym{}, false }
func (noNames) Comm(int) string                 { return "" }

// run arms, lets the program run, and takes everything out.
func (x *session) run(held *process.Stopped) error {
	if x.late {
		if err := held.Release(); err != nil {
			return err
		}
		if err := x.middle(); err != nil {
			return err
		}
		held = nil
	}
	switch err := x.attach(held); {
	case err == nil:
	case x.late && x.st.feed == nil && isGone(err):
		return x.finish() // nothing held it up: it has ended by itself
	default:
		return err
	}
	if !x.late {
		if err := x.middle(); err != nil {
			return err
		}
		if err := x.toggle(); err != nil {
			return err
		}
	}
	x.look()
	if err := x.st.rest(); err != nil {
		return err
	}
	return x.finish()
}

// finish waits for the program's end and sums up.
func (x *session) finish() error {
	err := x.ends()
	close(x.done)
	x.wg.Wait()
	if x.core == nil {
		return err
	}
	if cerr := x.core.Close(x.hit); cerr != nil && !isGone(cerr) {
		err = errors.Join(err, fmt.Errorf("close: %w", cerr))
	}
	x.total()
	return err
}

func isGone(err error) bool {
	return errors.Is(err, target.ErrGone) || errors.Is(err, process.ErrNoProcess)
}

// middle waits until the program waits for its second half; one that reads nothing gets a
// little time.
func (x *session) middle() error {
	if x.st.feed == nil && x.late {
		time.Sleep(5 * time.Millisecond)
	}
	return x.st.waiting(x.proc.PID())
}

// attach arms all probes, and begins to read records.
func (x *session) attach(held *process.Stopped) error {
	o := &process.TargetOptions{Stopped: held, HandlerWait: time.Minute, Buffer: 4 << 20, Events: 16384}
	t, err := process.Attach(x.proc, o)
	if err != nil {
		return err
	}
	if x.core, err = kprobes.Open(t, nil); err != nil {
		return err
	}
	if err = x.arm(x.probes); err == nil {
		err = x.holdAtEnd()
	}
	if err != nil {
		if isGone(err) {
			return err
		}
		return errors.Join(err, x.core.Close(nil))
	}
	x.wg.Go(x.read)
	return t.Run()
}

// read takes records until the run is over, and follows what the program maps.
func (x *session) read() {
	for i := 0; ; i++ {
		n := x.core.Poll(x.hit)
		if i%16 == 0 {
			_ = x.core.Sync() // the program may have ended
		}
		if n > 0 {
			continue
		}
		select {
		case <-x.done:
			return
		case <-time.After(500 * time.Microsecond):
		}
	}
}

// looked is how many records of an event are looked at.
const looked = 4

// hit looks at a record: the register %ip is where the probe stands. One at a function's start
// may stand behind what the compiler puts there (Go's check of the stack, ENDBR64).
func (x *session) hit(h *hit.Hit) {
	x.r.records++
	if x.seen[h.Event.Name]++; x.seen[h.Event.Name] > looked || h.Event.Return || x.starts[h.Event.Name] {
		return
	}
	line := x.names.Text(nil, h)
	if bytes.Contains(line, []byte(" at=")) && !bytes.Contains(line, fmt.Appendf(nil, " at=0x%x ", h.Event.Addr)) {
		x.r.wrong = append(x.r.wrong, fmt.Sprintf("%s at 0x%x recorded %s", h.Event.Name, h.Event.Addr, bytes.TrimSpace(line)))
	}
}

// look notes the probes that a thread was in the way of, and that were not armed meanwhile.
func (x *session) look() {
	for _, b := range x.probes {
		evs := x.evs[b]
		if len(evs) == 0 || b.half && x.r.toggles > 0 {
			continue
		}
		if tactic, why := evs[len(evs)-1].Form(); tactic == "" && why != nil {
			x.r.parked[b] = why.Error()
		}
	}
}

func (x *session) gone() bool { return ended(x.proc.PID()) }

// total sums up what probes have counted, and checks the identities.
func (x *session) total() {
	for _, b := range x.probes {
		if k := x.calls[b]; k != nil {
			n := x.ran[b].Load()
			if st := k.State(); st.Hits != n || st.Misses.Total() != 0 {
				x.wrongly("%s (%s): %d calls, state %+v", b.name, b.place, n, st)
			}
			x.r.got[b] = n
			x.r.tactics["handler"]++
			continue
		}
		for _, e := range x.evs[b] {
			n := x.core.Counts(e)
			if !b.count && !b.ret && n.Hits != n.Read+n.Lost {
				x.wrongly("%s (%s): %+v: hits are not read + lost", b.name, b.place, n)
			}
			x.r.lost += n.Lost
			x.r.got[b] += n.Hits
			if end, ok := x.end.calls[e]; ok {
				n.Unwound, n.Active = end.Unwound, end.Active
			}
			if b.ret {
				x.r.got[b] += n.Missed + n.Unwound + n.Active
			}
			back := func() bool { return x.s.object(b.obj).comesBack(b.addr) }
			if n.Missed != 0 && !x.s.Go && !back() {
				x.wrongly("%s (%s): %d missed", b.name, b.place, n.Missed)
			}
			if n.Unwound != 0 && !x.s.Go && !x.s.Leaves && !x.end.vague[e] && !(atExits(e) && back()) {
				x.wrongly("%s (%s): no call is left but by returning, and the return of %d of %d was not seen", b.name, b.place, n.Unwound, n.Hits+n.Unwound)
			}
		}
		if evs := x.evs[b]; len(evs) > 0 {
			tactic, _ := evs[len(evs)-1].Form()
			x.r.tactics[string(tactic)]++
		}
	}
}

// atExits says whether an event sees returns at the function's exits.
func atExits(e *kprobes.Event) bool {
	how, _ := e.Returns()
	return how == kprobes.ReturnsExits
}

func (x *session) wrongly(format string, args ...any) {
	x.r.wrong = append(x.r.wrong, fmt.Sprintf(format, args...))
}
