// Package mailbox runs handlers for the threads of a target that wait in a gate (internal/arch/amd64:
// gate.go and kgate.go): it has the registry of the handlers that can be called, takes posts
// out of the mailbox, runs the handlers, and answers. How a target tells of posts, and what
// its memory is, is its Side's.
package mailbox

import (
	"math"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// Side is what differs between the targets.
type Side interface {
	// Wait returns when the bell is not rung any more, or may not be, or the box is closed. It
	// may return earlier. Several workers may wait.
	Wait(bell *uint32, rung uint32)
	// Wake wakes up to n of those who wait at a word of the mailbox: the bell, or the state
	// of a slot.
	Wake(word *uint32, n int)
	// Post reads a post out of a copy of its slot.
	Post(slot []byte) native.Post
	// Bind fills in what the target knows of a point: Mem and Callers.
	Bind(p *native.Point)
	// Block is native.LeaveBlock's for a point.
	Block(sp uint64, p *native.Point) (addr uint64, size int)
	// CanLeave says why a thread can not go on with these registers (arch.ActionLeave), of
	// which the block is free to be written to.
	CanLeave(now *native.Regs, p *native.Point) error
}

// Box serves the threads that wait in the gate. Its workers wait for the bell; each serves
// one thread after another. There is one worker more than run handlers, up to the bound.
type Box struct {
	Mem
	side Side
	addr uint64 // in the target
	who  string // for errors
	most int    // workers

	// retired are the changes that took out sites whose detours are not free yet: the
	// target's, like its own fields.
	retired map[*target.Site]uint64

	turn   atomic.Uint32 // slots are looked through from here on
	tasks  sync.Map      // *native.Regs of handlers that run: id of the thread
	wg     sync.WaitGroup
	closed atomic.Bool // set with mu held
	lost   atomic.Bool // the memory is not ours any more

	mu     sync.Mutex // guards what follows
	over   *sync.Cond // a run of a handler has ended
	calls  map[uint64]*call
	byCall map[*arch.Call]*call
	free   []int       // descriptors
	ended  []endedCall // in order of time
	used   int
	count  int // workers
	idle   int // of them, those that run no handler
}

// call is a handler at a descriptor.
type call struct {
	arch.Call
	h    *target.Handler
	desc int
	runs int // in progress
}

// endedCall is a descriptor that a thread may still be on its way to post, from a detour
// that was removed before or by this change.
type endedCall struct {
	desc   int
	change uint64
}

// New makes a box of a mailbox, which is at addr in the target. At most workers handlers run at
// once, those that are Sleepable apart: of these there are no more than slots. who names the
// target in errors.
func New(m Mem, addr uint64, side Side, workers int, who string) *Box {
	b := &Box{Mem: m, side: side, addr: addr, who: who, most: workers, calls: map[uint64]*call{}, byCall: map[*arch.Call]*call{}, retired: map[*target.Site]uint64{}}
	b.over = sync.NewCond(&b.mu)
	return b
}

// Add makes a handler callable. No thread is in a detour that was removed before the change
// oldest. Errors: ENOSPC, ESHUTDOWN after Shut.
func (m *Box) Add(h *target.Handler, oldest uint64) (*arch.Call, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed.Load() {
		return nil, errno.Errorf(unix.ESHUTDOWN, "%s: its mailbox is closed", m.who)
	}
	for len(m.ended) > 0 && m.ended[0].change < oldest {
		m.free, m.ended = append(m.free, m.ended[0].desc), m.ended[1:]
	}
	var desc int
	switch n := len(m.free); {
	case n > 0:
		desc, m.free = m.free[n-1], m.free[:n-1]
	case m.used < m.Descs:
		desc = m.used
		m.used++
	default:
		return nil, errno.Errorf(unix.ENOSPC, "%s: handlers %d: there is room for %d", m.who, m.used+1, m.Descs)
	}
	at := m.DescAt(desc)
	atomic.StoreUint64(m.Word64(at+arch.MailMissedOff), 0)
	atomic.StoreUint64(m.Word64(at+arch.MailStopOff), 0)
	atomic.StoreUint32(m.Word32(at+arch.MailDeadOff), 0)
	c := &call{Call: arch.Call{Desc: m.addr + uint64(at)}, h: h, desc: desc}
	m.side.Bind(&h.Point)
	m.calls[c.Desc], m.byCall[&c.Call] = c, c
	if m.count == 0 {
		m.hire()
	}
	return &c.Call, nil
}

// End forgets a call, and waits until its handler runs no more. No site uses it since a
// change.
func (m *Box) End(a *arch.Call, change uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.byCall[a]
	if c == nil {
		return
	}
	m.off(c)
	delete(m.calls, c.Desc)
	delete(m.byCall, a)
	for c.runs > 0 {
		m.over.Wait()
	}
	m.ended = append(m.ended, endedCall{c.desc, change})
}

// Quiet waits until a call's handler runs no more. Who comes later sees its Off.
func (m *Box) Quiet(a *arch.Call) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := m.byCall[a]; c != nil && c.runs > 0; {
		m.over.Wait()
	}
}

// off switches a call off: threads that hit it do not wait.
func (m *Box) off(c *call) {
	if m.lost.Load() {
		return
	}
	atomic.StoreUint32(m.Word32(m.DescAt(c.desc)+arch.MailDeadOff), 1)
}

// Missed reads a call's counts; those of a call that has ended are zero.
func (m *Box) Missed(a *arch.Call) target.Missed {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.byCall[a]
	if c == nil || m.lost.Load() {
		return target.Missed{}
	}
	at := m.DescAt(c.desc)
	return target.Missed{
		System:  atomic.LoadUint64(m.Word64(at + arch.MailMissedOff)),
		Stopped: atomic.LoadUint64(m.Word64(at + arch.MailStopOff)),
	}
}

// Task is the id of the thread whose registers a running handler was given, as its post says;
// 0: no handler runs on these.
func (m *Box) Task(r *native.Regs) uint64 {
	tid, _ := m.tasks.Load(r)
	n, _ := tid.(int)
	return uint64(n)
}

// Calls is the number of calls that have not ended.
func (m *Box) Calls() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.calls)
}

// Used is the number of descriptors that were ever used.
func (m *Box) Used() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// Retire notes the sites that a change has taken out.
func (m *Box) Retire(sites []*target.Site, change uint64) {
	for _, s := range sites {
		m.retired[s] = change
	}
}

// Reclaim notes that nobody is in a retired site's detour any more.
func (m *Box) Reclaim(s *target.Site) { delete(m.retired, s) }

// Retired is the change that took a site out; 0: one before there was a mailbox.
func (m *Box) Retired(s *target.Site) uint64 { return m.retired[s] }

// Closed says whether the box serves nobody any more.
func (m *Box) Closed() bool { return m.closed.Load() }

// Shut lets nobody wait any more, lets go who waits, and ends the workers once they have
// done what they are at.
func (m *Box) Shut() {
	m.close()
	m.Disable()
	bell := m.Word32(arch.MailBellOff)
	atomic.AddUint32(bell, 1)
	m.side.Wake(bell, math.MaxInt32)
	m.wg.Wait()
	m.Refuse()
}

// Abandon is for a mailbox that is not there any more, since the target is gone: nothing of
// its memory is used from now on. The workers end when their Side's Wait returns.
func (m *Box) Abandon() {
	m.lost.Store(true)
	m.close()
}

// Done waits for the workers of a box that was abandoned.
func (m *Box) Done() { m.wg.Wait() }

func (m *Box) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed.Store(true)
}

// Refuse lets threads go that nobody serves.
func (m *Box) Refuse() { m.RefuseAll(func(word *uint32) { m.side.Wake(word, 1) }) }

// Forget drops all calls: the memory is going. Precondition: Shut. The counts are gone.
func (m *Box) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.byCall)
	clear(m.calls)
}
