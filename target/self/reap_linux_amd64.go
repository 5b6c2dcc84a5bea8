package self

import (
	"sort"
	"time"
	"unsafe"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/target"
)

var _ target.Reaper = (*Target)(nil)

// How instances are taken back. The slots that may be are listed while the program runs. In a
// stop those of them that have not changed are cleared
//
//   - of an event that is armed, if the goroutine is gone, or its stack pointer is above the
//     call's frame, or the return address does not stand there any more: goroutines' ids are
//     not used twice, and who claimed a slot before the stop existed then;
//   - of an event whose code has been taken out, once no thread is in any such code.
//
// A thread that has just claimed a slot may not have written down for which event, so that
// what stands there is an earlier call's: no slot is cleared that a thread in a detour may have
// claimed for any event. Nothing is cleared while a thread is in a signal handler: where its
// goroutine's stack ends is not known then. Calls on system stacks are left alone as long as
// their event is armed.

// reclaimable is a slot that may be cleared.
type reclaimable struct {
	addr, key, event, ret uint64
	goid, dist            uint64
	active                uint64 // address of the pool's count; 0: it has none
	ended                 bool   // its event has no code any more
	runs                  bool   // its call is in progress, or was when it was freed
	freed                 bool
}

const reapTries = 3 // stops in which not all could be cleared

// Reap takes instances back.
func (t *Target) Reap(r *target.Reap) error {
	r.Active, r.Unwound, r.Whole = map[int]int{}, map[int]int{}, true
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.control == nil {
		return nil
	}
	list := t.reclaimable(r)
	if len(list) == 0 {
		return nil
	}
	var salts []uint64
	for _, e := range r.Live {
		salts = append(salts, amd64.EventSalt(e))
	}
	for i := range reapTries {
		if i > 0 {
			time.Sleep(time.Millisecond)
		}
		p := t.newPlan(&target.Change{})
		p.heads = *p.control
		p.goroutines = make([]goroutine, word(t.places.allgs+8)+goroutineSlack)
		p.own, p.reclaimable, p.code, p.salts = currentG(), list, t.codeSpans(), salts
		if err := t.attempt(p); err != nil {
			countFreed(list, r) // by an attempt before
			return err
		}
		if !p.unsettled {
			break
		}
	}
	countFreed(list, r)
	return nil
}

// countFreed tells what has become of the slots.
func countFreed(list []reclaimable, r *target.Reap) {
	for i := range list {
		d := &list[i]
		switch id := int(uint32(d.event)); {
		case !d.freed:
			r.Whole = r.Whole && !d.ended
		case d.runs:
			r.Active[id]++
		default:
			r.Unwound[id]++
		}
	}
}

// codeSpans lists the mappings that detours stand in.
func (t *Target) codeSpans() (out []interval.Range) {
	t.codeMu.Lock()
	defer t.codeMu.Unlock()
	for _, c := range t.code {
		out = append(out, interval.Range{Start: c.Addr, End: c.Addr + c.Size})
	}
	return out
}

// Tally counts the instances of each event.
func (t *Target) Tally(n map[int]int) error {
	t.poolMu.Lock()
	defer t.poolMu.Unlock()
	for _, p := range t.pools {
		if t.idle[p] {
			continue
		}
		size := amd64.PoolBytes(p.Slots, p.Stride)
		for at := p.Base; at < p.Base+size; at += 1 << p.Stride {
			if peek(at) != 0 {
				n[int(uint32(peek(at+slotEvent)))]++
			}
		}
	}
	return nil
}

// reclaimable lists the slots that a Reap is about, in the order of their goroutines.
func (t *Target) reclaimable(r *target.Reap) (out []reclaimable) {
	live := map[int]bool{}
	for _, e := range r.Live {
		live[e] = r.Left
	}
	t.poolMu.Lock()
	defer t.poolMu.Unlock()
	for _, p := range t.pools {
		n := amd64.PoolBytes(p.Slots, p.Stride)
		for at := p.Base; at < p.Base+n; at += 1 << p.Stride {
			d, sp := readSlot(p, at)
			id := int(uint32(d.event))
			if d.ended = r.Ended[id]; d.key != 0 && (d.ended || live[id] && sp == 0) {
				out = append(out, d)
			}
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].goid < out[j].goid })
	return out
}

// readSlot reads a slot that its owner may be writing to; sp is where the return address stands
// of a call on a system stack.
func readSlot(p *arch.Pool, at uint64) (d reclaimable, sp uint64) {
	d = reclaimable{addr: at, key: peek(at), event: peek(at + slotEvent), ret: peek(at + slotReturn)}
	if d.key == 0 {
		return d, 0
	}
	if p.Max > 0 {
		d.active = p.Active
	}
	var b [amd64.SlotHeader]byte
	le.PutUint64(b[:], d.key)
	le.PutUint64(b[slotEvent:], d.event)
	in, _ := amd64.ReadInstance(b[:], true)
	d.goid, d.dist = in.GoID, in.Distance
	return d, in.SP
}

// Where the event and the return address stand in a slot (internal/arch/amd64, instance.go).
const (
	slotEvent  = 8
	slotReturn = 16
)

// peek reads a word of a pool, which others write to.
//
//go:nocheckptr
func peek(addr uint64) uint64 { return load64(*(**uint64)(unsafe.Pointer(&addr))) }

// reap clears slots. The goroutines have been listed, and the world is stopped.
//
//go:norace
func (p *plan) reap(w *worldState) {
	p.unsettled, p.claimed = p.counted == len(p.goroutines), 0
	removed := false // a thread may be in code that was taken out
	for i := uint32(0); i < w.asked && !p.unsettled; i++ {
		if s := &w.slots[w.list[i]]; s.state&3 == slotParked {
			removed = p.places.gate.Contains(word(uint64(s.uc)+ucRIP)) || removed
			p.noteClaimer(s)
		}
	}
	if p.unsettled {
		return
	}
	for i := range p.goroutines[:p.counted] {
		p.callsOf(&p.goroutines[i])
	}
	removed = p.retired.Busy() || removed
	for i := range p.reclaimable {
		d := &p.reclaimable[i]
		switch {
		case d.freed: // by an attempt before: a later call may have the slot, by the same key
		case d.ended && removed, p.mayClaim(d.key):
			p.unsettled = true
		case d.ended || !d.runs && d.goid != 0:
			d.clear()
		}
	}
}

// clear frees the slot, if it is still what it was when it was listed.
//
//go:norace
func (d *reclaimable) clear() {
	if word(d.addr) != d.key || word(d.addr+slotEvent) != d.event || word(d.addr+slotReturn) != d.ret {
		return
	}
	setWord(d.addr, 0)
	if d.active != 0 {
		setWord32(d.active, word32(d.active)-1)
	}
	d.freed = true
}

// claimer is a thread in a detour: it may have claimed a slot a moment ago.
type claimer struct{ goid, sp uint64 }

// claimReach is more than lies between a call's return address and the stack pointer of its
// entry's work, in bytes.
const claimReach = 64 << 10

//go:norace
func (p *plan) noteClaimer(s *slot) {
	uc := uint64(s.uc)
	if word(uc+ucStackFlags)&onStack != 0 { // in a signal handler: it may have interrupted a detour
		p.unsettled = true
		return
	}
	if !p.inCode(word(uc + ucRIP)) {
		return
	}
	if p.claimed == len(p.claimers) {
		p.unsettled = true
		return
	}
	c := claimer{sp: word(uc + ucRSP)}
	if s.g != 0 {
		c.goid = word(uint64(s.g) + uint64(p.lay.GoID))
	}
	p.claimers[p.claimed] = c
	p.claimed++
}

// mayClaim says whether a thread in a detour may have claimed the slot with a key, for any
// event that is armed.
//
//go:norace
func (p *plan) mayClaim(key uint64) bool {
	for _, c := range p.claimers[:p.claimed] {
		for _, salt := range p.salts {
			if id, sp := amd64.SplitGoKey(key ^ salt); sp == 0 && id == c.goid || sp != 0 && sp-c.sp < claimReach {
				return true
			}
		}
	}
	return false
}

// inCode says whether an address is in a detour, or in room for one.
//
//go:norace
func (p *plan) inCode(a uint64) bool {
	for i := range p.code {
		if p.code[i].Contains(a) {
			return true
		}
	}
	return false
}

// callsOf notes which of a goroutine's calls are in progress.
//
//go:norace
func (p *plan) callsOf(g *goroutine) {
	lo, hi := 0, len(p.reclaimable)
	for lo < hi {
		if mid := (lo + hi) / 2; p.reclaimable[mid].goid < g.id {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	for ; lo < len(p.reclaimable) && p.reclaimable[lo].goid == g.id; lo++ {
		d := &p.reclaimable[lo]
		if d.freed {
			continue
		}
		at := g.hi - d.dist
		d.runs = at >= g.sp && at <= g.hi-8 && word(at) == d.ret
	}
}

//go:norace
//go:nocheckptr
func word32(addr uint64) uint32 { return **(**uint32)(unsafe.Pointer(&addr)) }

//go:norace
//go:nocheckptr
func setWord32(addr uint64, v uint32) { **(**uint32)(unsafe.Pointer(&addr)) = v }

// crowdWindow is the number of slots that Crowded looks at of a pool that has no count.
const crowdWindow = 1024

// Crowded says whether half of the instances of a pool with a maximum are taken, or more than
// an eighth of the slots in a part of another one, each time another part.
func (t *Target) Crowded() bool {
	t.poolMu.Lock()
	defer t.poolMu.Unlock()
	for _, p := range t.pools {
		if t.idle[p] {
			continue
		}
		if p.Max > 0 {
			if 2*word32(p.Active) >= p.Max {
				return true
			}
			continue
		}
		taken, n := 0, uint64(1)<<p.Slots
		for i := range uint64(crowdWindow) {
			if peek(p.Base+(t.part+i)%n<<p.Stride) != 0 {
				taken++
			}
		}
		if taken > crowdWindow/8 {
			t.part += crowdWindow
			return true
		}
	}
	t.part += crowdWindow
	return false
}
