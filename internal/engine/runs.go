package engine

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
)

// frame is what a handler of a return probe is called with. Frames are reused, so that no
// hit allocates: whoever sets busy has the frame until it is cleared.
type frame struct {
	busy  atomic.Uint32
	regs  uintptr // of the run that has the frame
	call  Call
	slot  [amd64.SlotHeader]byte
	mark  []byte // where the call's key is kept for its return
	key   uint64
	epoch uint16
	_     [38]byte // no two runs write to one cache line
}

// The handlers' runs. In the own process they run on a thread's system stack in the middle
// of any function: no allocation, no lock, no defer, no map write, nothing that waits.

// runPre runs a pre handler.
func (p *Probe) runPre(_ *bound, r *Regs, _ uint64) arch.Action {
	if p.off.Load() {
		p.stopped.add(r)
		return arch.ActionGo
	}
	p.hits.add(r)
	if p.h.Pre(r) == 0 || r.IP == p.at || p.optimised.Load() {
		return arch.ActionGo
	}
	return arch.ActionLeave
}

// runPost runs a post handler. Hits are counted by the pre handler if there is one.
func (p *Probe) runPost(_ *bound, r *Regs, _ uint64) arch.Action {
	if p.off.Load() {
		if p.h.Pre == nil {
			p.stopped.add(r)
		}
		return arch.ActionGo
	}
	if p.h.Pre == nil {
		p.hits.add(r)
	}
	p.h.Post(r)
	return arch.ActionGo
}

// runJump counts a run of a jprobe's Entry, which comes next.
func (p *Probe) runJump(_ *bound, r *Regs, _ uint64) arch.Action {
	p.hits.add(r)
	return arch.ActionGo
}

// runFault runs a fault handler for a fault of the probed instruction. One that is dealt with
// has the thread go on where the handler has left it.
func (p *Probe) runFault(_ *bound, r *Regs, trap uint64) arch.Action {
	was := *r
	switch {
	case p.off.Load() || p.h.Fault(r, int(trap)) != 1:
	case r.IP == p.at:
		return arch.ActionGo
	default:
		return arch.ActionLeave
	}
	*r = was
	return arch.ActionDrop
}

// runEntry runs an entry handler. A call that it was not run for has no return handler.
func (p *Probe) runEntry(b *bound, r *Regs, slot uint64) arch.Action {
	if p.off.Load() {
		p.stopped.add(r)
		return arch.ActionDrop
	}
	f := p.frame(b, r, slot)
	if f == nil {
		return arch.ActionDrop
	}
	n := 1
	if f.epoch == uint16(p.ev.epoch.Load()) { // else code that was taken out, in which a thread may be for a while, and nobody sees the return
		n = p.h.Entry(&f.call, r)
	}
	if n == 0 {
		binary.LittleEndian.PutUint64(f.mark, f.key)
	}
	f.busy.Store(0)
	if n != 0 {
		return arch.ActionDrop
	}
	return arch.ActionGo
}

// runExit runs a return handler where the results are known, runTail where they are not.
func (p *Probe) runExit(b *bound, r *Regs, slot uint64) arch.Action {
	return p.returned(b, r, slot, false)
}

func (p *Probe) runTail(b *bound, r *Regs, slot uint64) arch.Action {
	return p.returned(b, r, slot, true)
}

// returned runs a return handler.
func (p *Probe) returned(b *bound, r *Regs, slot uint64, tail bool) arch.Action {
	if p.off.Load() {
		if p.h.Entry == nil {
			p.stopped.add(r)
		}
		return arch.ActionGo
	}
	f := p.frame(b, r, slot)
	if f == nil {
		return arch.ActionGo
	}
	if p.h.Entry == nil || f.key != 0 && binary.LittleEndian.Uint64(f.mark) == f.key {
		p.hits.add(r)
		f.call.Tail = tail
		p.h.Return(&f.call, r)
		clear(f.mark) // a later call in this slot, with the same key, is marked by its own entry
	}
	f.busy.Store(0)
	return arch.ActionGo
}

// frame takes a frame for the call whose instance stands in a slot, which is 0 if it can not
// be read; nil if that is no slot of the pool. More runs at once than there are frames, which only handlers that sleep can
// be, allocate one.
func (p *Probe) frame(b *bound, r *Regs, slot uint64) *frame {
	i := (slot - p.base) >> p.shift
	if p.slotSize > 0 && i >= uint64(len(p.slots))/p.slotSize {
		return nil
	}
	f := p.claim(r)
	if p.local {
		f.slot = slotHeader(slot)
	} else if m := b.h.Point.Mem; m == nil || m.Read(slot, f.slot[:]) != nil {
		clear(f.slot[:])
	}
	in, _ := amd64.ReadInstance(f.slot[:], p.golang)
	if p.caller != nil {
		in.Return = p.caller(in.Return)
	}
	f.key, f.epoch, f.call.RetAddr, f.call.Task, f.call.Tail = binary.LittleEndian.Uint64(f.slot[:]), in.Epoch, in.Return, in.GoID, false
	if in.GoID == 0 && p.task != nil {
		f.call.Task = p.task(r)
	}
	if p.slotSize > 0 {
		f.mark = p.slots[i*p.slotSize:][:keySize]
	}
	if p.dataSize > 0 {
		f.call.Data = p.slots[i*p.slotSize+keySize:][:p.dataSize:p.dataSize]
	}
	return f
}

// claim takes a frame that no other run has.
func (p *Probe) claim(r *Regs) *frame {
	at := threadHash(r)
	for i := range p.frames {
		f := &p.frames[(at+uintptr(i))%uintptr(len(p.frames))]
		if f.busy.Load() == 0 && f.busy.CompareAndSwap(0, 1) {
			f.regs = address(r)
			return f
		}
	}
	f := new(frame)
	p.h.NewCall(&f.call)
	return f
}

// faulted is told that a run was abandoned. False: the probe is switched off, at once for
// its handlers and soon in the target.
func (p *Probe) faulted(r *Regs, trap int, why fmt.Stringer) bool {
	for i := range p.frames {
		if f := &p.frames[i]; f.busy.Load() != 0 && f.regs == address(r) {
			f.busy.Store(0)
		}
	}
	if p.h.Fault != nil && p.h.Fault(r, trap) == 1 {
		return true
	}
	return p.broken(r, trap, why)
}

// broken is told that a run was abandoned, and switches the probe off.
func (p *Probe) broken(_ *Regs, trap int, why fmt.Stringer) bool {
	p.off.Store(true)
	if p.fault.set(trap, why) {
		p.core.faults.Add(1)
	}
	return false
}

// counter is a count that several threads increase at once, each mostly its own part.
type counter [8]struct {
	n atomic.Uint64
	_ [56]byte
}

func (c *counter) add(r *Regs) { c[threadHash(r)%uintptr(len(c))].n.Add(1) }

func (c *counter) sum() (n uint64) {
	for i := range c {
		n += c[i].n.Load()
	}
	return n
}

// keySize is the number of bytes before each call's Data.
const keySize = 8
