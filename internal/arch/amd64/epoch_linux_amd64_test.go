package amd64

import (
	"encoding/binary"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/ring"
)

// TestEpochs: an exit knows the instances that entries of its own epoch have taken, and leaves others alone.
func TestEpochs(t *testing.T) {
	child := buildDetourChild(t)
	const depth = 30
	for _, c := range []struct {
		name        string
		entry, exit uint16
		call        bool
		hits        uint64
	}{
		{"first", 0, 0, false, depth + 1},
		{"later", 7, 7, false, depth + 1},
		{"old", 0, 1, false, 0},
		{"older", 0xfffe, 0xffff, false, 0},
		{"newer", 1, 0, false, 0},
		{"call_later", 7, 7, true, depth + 1},
		{"call_old", 6, 7, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newArena(t, child)
			a.gate()
			pool := &arch.Pool{Base: arenaPool, Slots: 8, Stride: SlotStride(0)}
			entry := arch.ProbeOp{Event: 1, Role: arch.RoleEntry, Pool: pool, Epoch: c.entry}
			exit := arch.ProbeOp{Event: 1, Role: arch.RoleExit, Pool: pool, Instance: 1, Epoch: c.exit, Count: true}
			if c.call {
				exit.Call = called(0)
			}
			a.probe(hexBytes(t, recursive), map[uint64][]arch.ProbeOp{0: {entry}, recursiveExit: {exit}}, arch.Policy{})
			a.handler()
			a.add([16]uint64{RSP: arenaStack, RDI: depth}, 0x202)
			a.run()
			hits := a.counted(1, ring.CtrHits)
			if c.call {
				hits = a.callsOf(0)
			}
			if hits != c.hits {
				t.Errorf("%d returns were seen, want %d", hits, c.hits)
			}
			left := uint64(0)
			for i := range uint64(1<<pool.Slots + bucketLen) {
				var slot [SlotHeader]byte
				for off := 0; off < len(slot); off += 8 {
					binary.LittleEndian.PutUint64(slot[off:], a.get64(pool.Base+i<<pool.Stride+uint64(off)))
				}
				in, ok := ReadInstance(slot[:], false)
				if !ok {
					continue
				}
				left++
				if in.Event != 1 || in.Epoch != c.entry {
					t.Fatalf("slot %d: %+v", i, in)
				}
			}
			if left != depth+1-c.hits {
				t.Errorf("%d instances are left of %d calls, %d of which returned with theirs", left, depth+1, hits)
			}
		})
	}
}

// TestDroppedBeforeLeft: a call whose entry handler drops its instance has none, also where one that was left by unwinding
// stands behind it with the same key.
func TestDroppedBeforeLeft(t *testing.T) {
	a := newArena(t, buildDetourChild(t))
	a.gate()
	pool := &arch.Pool{Base: arenaPool, Slots: 8, Stride: SlotStride(0)}
	entry := arch.ProbeOp{Event: 1, Role: arch.RoleEntry, Pool: pool, Call: called(0)}
	exit := arch.ProbeOp{Event: 1, Role: arch.RoleExit, Pool: pool, Instance: 1, Call: called(1)}
	a.probe(hexBytes(t, recursive), map[uint64][]arch.ProbeOp{0: {entry}, recursiveExit: {exit}}, arch.Policy{})
	a.handler()
	a.put64(callDesc(0)+callAction, uint64(arch.ActionDrop))
	key := arenaStack ^ EventSalt(1)
	home := pool.Base + key*hashFactor>>(64-pool.Slots)<<pool.Stride
	left := home + 3<<pool.Stride
	a.put64(left, key)
	a.put64(left+slotEvent, 1)
	a.add([16]uint64{RSP: arenaStack, RDI: 0}, 0x202)
	a.run()
	if in, out, unwound := a.callsOf(0), a.callsOf(1), a.counted(1, ring.CtrUnwound); in != 1 || out != 0 || unwound != 1 {
		t.Errorf("%d calls at entries, %d at returns, %d unwound; want 1, 0, 1", in, out, unwound)
	}
	if e := a.told(0, 0); e.key != key || e.instance != home || a.get64(left) != 0 {
		t.Errorf("%#x was taken, with key %#x, want %#x and %#x; %#x is left", e.instance, e.key, home, key, a.get64(left))
	}
}
