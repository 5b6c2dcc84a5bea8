package ring

import "sync/atomic"

// lockedWriter follows the locked protocol (L1 to L5) with Go's atomics. Generated code
// does the same; this one exists to test the reader.
type lockedWriter struct {
	ring  *Ring
	shard int
	// at is called after the steps named, so that a test can interrupt there.
	at func(step string)
}

func (w *lockedWriter) step(name string) {
	if w.at != nil {
		w.at(name)
	}
}

// write records args and says whether there was room.
func (w *lockedWriter) write(event uint32, tid uint32, tsc uint64, args ...uint64) bool {
	n := uint64(2 + len(args))
	off := w.ring.ShardOff(w.shard)
	head := word(w.ring.mem, off+ShHead)
	var h uint64
	for {
		t := load(w.ring.mem, off+ShTail)
		h = atomic.LoadUint64(head)
		if (h+n-t)&posMask > w.ring.LockedUnits() {
			atomic.AddUint64(word(w.ring.mem, off+w.ring.CounterOff(int(event))+CtrLost), 1)
			w.step("lost")
			return false
		}
		if atomic.CompareAndSwapUint64(head, h, h+n+reservation) {
			break
		}
	}
	w.step("reserved")
	at := off + w.ring.DataOff() + h%w.ring.Units()*unit
	store(w.ring.mem, at+unit, tsc)
	for i, a := range args {
		store(w.ring.mem, at+uint64(2+i)*unit, a)
	}
	w.step("filled")
	store(w.ring.mem, at, n|uint64(event)<<EventShift|uint64(tid)<<32)
	w.step("committed")
	return true
}

// soloWriter follows the rseq protocol where only one goroutine writes to a shard, so
// that nothing ever restarts.
type soloWriter struct {
	ring  *Ring
	shard int
}

func (w *soloWriter) write(event uint32, tid uint32, tsc uint64, args ...uint64) bool {
	n := uint64(2 + len(args))
	mem, off := w.ring.mem, w.ring.ShardOff(w.shard)
	h := load(mem, off+ShHead)
	if h+n-load(mem, off+ShTail) > w.ring.Units() {
		lost := off + w.ring.CounterOff(int(event)) + CtrLost
		store(mem, lost, load(mem, lost)+1)
		return false
	}
	at := off + w.ring.DataOff() + h%w.ring.Units()*unit
	store(mem, at, n|uint64(event)<<EventShift|uint64(tid)<<32)
	store(mem, at+unit, tsc)
	for i, a := range args {
		store(mem, at+uint64(2+i)*unit, a)
	}
	store(mem, off+ShHead, h+n)
	return true
}
