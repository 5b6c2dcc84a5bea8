package handler

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/target"
)

// runs is what the handlers' runs use. Nothing of it changes while they can run, but for what
// is atomic and for frames and slots, which belong to one run, or one call, at a time.
type runs struct {
	Handlers
	Options
	// Mute lets no handler run: the code that calls them has been taken out, and a hit may be on its way. Optimised has the
	// path that a handler changes not be taken.
	Mute, Optimised atomic.Bool

	off      atomic.Bool // handlers are not run any more: one went wrong
	at       uint64      // the instruction
	epoch    *atomic.Uint32
	target   Target
	base     uint64 // of the pool
	shift    int    // log2 of the bytes of its slots
	frames   []frame
	slots    []byte // of each slot of the pool: the key of the call, its Data
	slotSize uint64
	fault    fault

	hits, stopped counter
}

// frame is what a handler of a return probe is called with. Frames are reused, so that no
// hit allocates: whoever sets busy has the frame until it is cleared.
type frame struct {
	busy  atomic.Uint32
	regs  uintptr // of the run that has the frame
	call  Call
	slot  [native.SlotHeader]byte
	mark  []byte // where the call's key is kept for its return
	key   uint64
	epoch uint16
	_     [38]byte // no two runs write to one cache line
}

// The handlers' runs. In the own process they run on a thread's system stack in the middle
// of any function: no allocation, no lock, no defer, no map write, nothing that waits.

// runPre runs a pre handler.
func (r *runs) runPre(_ *target.Handler, regs *Regs, _ uint64) arch.Action {
	if r.off.Load() {
		r.stopped.add(regs)
		return arch.ActionGo
	}
	r.hits.add(regs)
	if r.Pre(regs) == 0 || regs.IP == r.at || r.Optimised.Load() {
		return arch.ActionGo
	}
	return arch.ActionLeave
}

// runPost runs a post handler. Hits are counted by the pre handler if there is one.
func (r *runs) runPost(_ *target.Handler, regs *Regs, _ uint64) arch.Action {
	if r.off.Load() {
		if r.Pre == nil {
			r.stopped.add(regs)
		}
		return arch.ActionGo
	}
	if r.Pre == nil {
		r.hits.add(regs)
	}
	r.Post(regs)
	return arch.ActionGo
}

// runJump counts a run of a jprobe's Entry, which comes next.
func (r *runs) runJump(_ *target.Handler, regs *Regs, _ uint64) arch.Action {
	r.hits.add(regs)
	return arch.ActionGo
}

// runFault runs a fault handler for a fault of the probed instruction. One that is dealt with
// has the thread go on where the handler has left it.
func (r *runs) runFault(_ *target.Handler, regs *Regs, trap uint64) arch.Action {
	was := *regs
	switch {
	case r.off.Load() || r.Fault(regs, int(trap)) != 1:
	case regs.IP == r.at:
		return arch.ActionGo
	default:
		return arch.ActionLeave
	}
	*regs = was
	return arch.ActionDrop
}

// runEntry runs an entry handler. A call that it was not run for has no return handler.
func (r *runs) runEntry(b *target.Handler, regs *Regs, slot uint64) arch.Action {
	if r.off.Load() {
		r.stopped.add(regs)
		return arch.ActionDrop
	}
	f := r.frame(b, regs, slot)
	if f == nil {
		return arch.ActionDrop
	}
	n := 1
	if f.epoch == uint16(r.epoch.Load()) { // else code that was taken out, in which a thread may be for a while, and nobody sees the return
		n = r.Entry(&f.call, regs)
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
func (r *runs) runExit(b *target.Handler, regs *Regs, slot uint64) arch.Action {
	return r.returned(b, regs, slot, false)
}

func (r *runs) runTail(b *target.Handler, regs *Regs, slot uint64) arch.Action {
	return r.returned(b, regs, slot, true)
}

// returned runs a return handler.
func (r *runs) returned(b *target.Handler, regs *Regs, slot uint64, tail bool) arch.Action {
	if r.off.Load() {
		if r.Entry == nil {
			r.stopped.add(regs)
		}
		return arch.ActionGo
	}
	f := r.frame(b, regs, slot)
	if f == nil {
		return arch.ActionGo
	}
	if r.Entry == nil || f.key != 0 && binary.LittleEndian.Uint64(f.mark) == f.key {
		r.hits.add(regs)
		f.call.Tail = tail
		r.Return(&f.call, regs)
		clear(f.mark) // a later call in this slot, with the same key, is marked by its own entry
	}
	f.busy.Store(0)
	return arch.ActionGo
}

// frame takes a frame for the call whose instance stands in a slot, which is 0 if it can not
// be read; nil if that is no slot of the pool. More runs at once than there are frames, which only handlers that sleep can
// be, allocate one.
func (r *runs) frame(b *target.Handler, regs *Regs, slot uint64) *frame {
	i := (slot - r.base) >> r.shift
	if r.slotSize > 0 && i >= uint64(len(r.slots))/r.slotSize {
		return nil
	}
	f := r.claim(regs)
	if r.target.Own {
		f.slot = slotHeader(slot)
	} else if m := b.Point.Mem; m == nil || m.Read(slot, f.slot[:]) != nil {
		clear(f.slot[:])
	}
	in, _ := native.ReadInstance(f.slot[:], r.target.Go)
	if r.target.Return != nil {
		in.Return = r.target.Return(in.Return)
	}
	f.key, f.epoch, f.call.RetAddr, f.call.Task, f.call.Tail = binary.LittleEndian.Uint64(f.slot[:]), in.Epoch, in.Return, in.GoID, false
	if in.GoID == 0 && r.target.Task != nil {
		f.call.Task = r.target.Task(regs)
	}
	if r.slotSize > 0 {
		f.mark = r.slots[i*r.slotSize:][:keySize]
	}
	if r.DataSize > 0 {
		f.call.Data = r.slots[i*r.slotSize+keySize:][:r.DataSize:r.DataSize]
	}
	return f
}

// claim takes a frame that no other run has.
func (r *runs) claim(regs *Regs) *frame {
	at := threadHash(regs)
	for i := range r.frames {
		f := &r.frames[(at+uintptr(i))%uintptr(len(r.frames))]
		if f.busy.Load() == 0 && f.busy.CompareAndSwap(0, 1) {
			f.regs = address(regs)
			return f
		}
	}
	f := new(frame)
	r.NewCall(&f.call)
	return f
}

// faulted is told that a run was abandoned. False: the probe is switched off, at once for
// its handlers and soon in the target.
func (r *runs) faulted(regs *Regs, trap int, why fmt.Stringer) bool {
	for i := range r.frames {
		if f := &r.frames[i]; f.busy.Load() != 0 && f.regs == address(regs) {
			f.busy.Store(0)
		}
	}
	if r.Fault != nil && r.Fault(regs, trap) == 1 {
		return true
	}
	return r.broken(regs, trap, why)
}

// broken is told that a run was abandoned, and switches the probe off.
func (r *runs) broken(_ *Regs, trap int, why fmt.Stringer) bool {
	r.off.Store(true)
	if r.fault.set(trap, why) {
		r.Faults.Add(1)
	}
	return false
}

// keySize is the number of bytes before each call's Data.
const keySize = 8

// run is one of the runs above, of the handler that is bound.
type run func(h *target.Handler, regs *Regs, slot uint64) arch.Action

// counter is a count that several threads increase at once, each mostly its own part.
type counter [8]struct {
	n atomic.Uint64
	_ [56]byte
}

func (c *counter) add(regs *Regs) { c[threadHash(regs)%uintptr(len(c))].n.Add(1) }

func (c *counter) sum() (n uint64) {
	for i := range c {
		n += c[i].n.Load()
	}
	return n
}
