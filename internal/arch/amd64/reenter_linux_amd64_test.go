package amd64

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/ring"
)

// looping jumps to its entry as often as the two low bits of RSI say:
//
//	0 test $3,%sil   4 je 11   6 dec %rsi   9 jmp 0   11 ret
const looping = "40f6c603 7405 48ffce ebf5 c3"

// TestReenterKeepsState has a function entered three times more at the same place on the stack, with
// two events, from random states, undisturbed, under signals whose handler runs it too, and
// interrupted at each instruction of the detours.
func TestReenterKeepsState(t *testing.T) {
	child := buildDetourChild(t)
	for _, v := range detourVariants {
		for mode, name := range []string{"plain", "storm", "steps"} {
			t.Run(v.name+"_"+name, func(t *testing.T) {
				r := rand.New(rand.NewPCG(12, uint64(mode)))
				a := newArena(t, child)
				v.set(a)
				if a.w.Go != nil {
					t.Skip("return addresses of Go are left alone")
				}
				tr := a.trampoline()
				pool := &arch.Pool{Base: arenaPool, Slots: 8, Stride: SlotStride(1)}
				in1, out1 := returnWork(1, tr, pool)
				in2, out2 := returnWork(2, tr, pool)
				a.probe(hexBytes(t, looping), map[uint64][]arch.ProbeOp{0: {in1, in2}}, arch.Policy{})
				a.returns(tr, out2, out1)
				a.handler()
				state := func() ([16]uint64, uint64) {
					regs, flags := a.state(r)
					regs[RSI] |= 3
					return regs, flags
				}
				for range []int{150, 50, 2}[mode] {
					a.add(state())
				}
				if mode != modePlain {
					a.nested(state())
					a.ctl.Mode, a.ctl.Rounds = uint64(mode), 1000
				}
				if mode == modeSteps {
					places := append(a.instructions(), tr.Stubs, tr.Stubs+1)
					a.put64(arenaActions, places...)
					a.ctl.Places, a.ctl.NPlaces = arenaActions, uint64(len(places))
				}
				a.run()
				for event := 1; event <= 2; event++ {
					a.checkReturns(event, 4*(a.ctl.Did+a.ctl.DidNested))
				}
				a.checkFree(pool)
				if n := a.stray(tr); n != 0 {
					t.Errorf("%d returns belonged to no call", n)
				}
			})
		}
	}
}

// checkFree says whether a pool is as it was before the first call.
func (a *arena) checkFree(pool *arch.Pool) {
	a.t.Helper()
	if n := a.get64(arenaActive); pool.Max > 0 && n != 0 {
		a.t.Errorf("%d instances count as active", n)
	}
	for i := range uint64(1<<pool.Slots + bucketLen) {
		if key := a.get64(pool.Base + i<<pool.Stride); key != 0 {
			a.t.Fatalf("slot %d is still taken: %#x", i, key)
		}
	}
}

// leaving jumps to its entry RDI times, through RAX. Then it returns where RSI is 0; where it is 1 it is left
// without a return, to where its return address leads; else it goes on at RSI-1:
//
//	0 sub $1,%rdi   4 jb 9   6 jmp *%rax   9 test %rsi,%rsi   12 je 31   14 dec %rsi   17 jne 29
//	19 pop %rdx   20 mov TrampolineDist(%rdx),%rdx   27 jmp *%rdx   29 jmp *%rsi   31 ret
const leaving = "4883ef01 7203 ffe0 90 4885f6 7411 48ffce 750a 5a 488b9200004000 ffe2 ffe6 c3"

// entered adds a run of leaving with so many entries.
func (a *arena) entered(n, rsi uint64) {
	regs := [16]uint64{RSP: arenaStack, RDI: n - 1, RSI: rsi, RAX: arenaProbed}
	a.runs = append(a.runs, detourRun{Regs: regs, Flags: 0x202, PC: arenaProbed})
}

// TestReenter counts the calls of a function that is entered again at the same place on the stack, for one
// event and for two: those that return, and those that were left, of which the next call tells.
func TestReenter(t *testing.T) {
	type run struct {
		entries uint64
		left    uint64
	}
	for _, c := range []struct {
		name                     string
		max                      uint32
		runs                     []run
		returns, unwound, missed uint64
	}{
		{"once", 0, []run{{1, 0}}, 1, 0, 0},
		{"twice", 0, []run{{2, 0}}, 2, 0, 0},
		{"often", 0, []run{{5, 0}, {1, 0}, {7, 0}}, 13, 0, 0},
		{"all", 0, []run{{maxDepth + 1, 0}}, maxDepth + 1, 0, 0},
		{"more", 0, []run{{1000, 0}, {1, 0}}, maxDepth + 2, 0, 1000 - maxDepth - 1},
		{"maximum", 3, []run{{3, 0}, {4, 0}, {1, 0}}, 7, 0, 1},
		{"maximum_one", 1, []run{{3, 0}, {1, 0}}, 2, 0, 2},
		{"left_one", 0, []run{{1, 1}, {1, 0}}, 1, 1, 0},
		{"left", 0, []run{{4, 1}, {3, 0}}, 3, 4, 0},
		{"left_twice", 0, []run{{2, 1}, {1, 1}, {1, 0}}, 1, 3, 0},
		{"left_maximum", 3, []run{{5, 1}, {2, 0}}, 2, 3, 2},
		{"left_maximum_one", 1, []run{{1, 1}, {2, 1}, {1, 0}}, 1, 2, 1},
	} {
		for _, events := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s_%d", c.name, events), func(t *testing.T) {
				a := newArena(t, buildDetourChild(t))
				tr := a.trampoline()
				var ins, outs []arch.ProbeOp
				for e := range events { // a table of its own for each, which counts for itself
					pool := &arch.Pool{Base: arenaPool + uint64(e)*PoolBytes(8, SlotStride(1)), Slots: 8, Stride: SlotStride(1), Max: c.max, Active: arenaActive + 8*uint64(e)}
					in, out := returnWork(e+1, tr, pool)
					ins, outs = append(ins, in), slices.Insert(outs, 0, out)
				}
				a.probe(hexBytes(t, leaving), map[uint64][]arch.ProbeOp{0: ins}, arch.Policy{})
				a.returns(tr, outs...)
				a.handler()
				for _, r := range c.runs {
					a.entered(r.entries, r.left)
				}
				a.run()
				returns := map[uint32]uint64{}
				for _, rec := range a.records() {
					returns[rec.event]++
				}
				for _, w := range outs {
					n, unwound, missed := returns[uint32(w.Event)], a.counted(w.Event, ring.CtrUnwound), a.counted(w.Event, ring.CtrMissed)
					if n != c.returns || unwound != c.unwound || missed != c.missed {
						t.Errorf("event %d: %d returns, %d unwound, %d missed; want %d, %d, %d", w.Event, n, unwound, missed, c.returns, c.unwound, c.missed)
					}
					a.checkFree(w.Pool)
				}
				if a.stray(tr) != 0 {
					t.Errorf("%d returns belong to no call", a.stray(tr))
				}
			})
		}
	}
}

// TestReenterOrder: at the return each call has what its own entry has kept, the newest first, of each event.
func TestReenterOrder(t *testing.T) {
	a := newArena(t, buildDetourChild(t))
	tr := a.trampoline()
	pool := &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)}
	in1, out1 := returnWork(1, tr, pool)
	in2, out2 := returnWork(2, tr, pool)
	a.probe(hexBytes(t, leaving), map[uint64][]arch.ProbeOp{0: {in1, in2}}, arch.Policy{})
	a.returns(tr, out2, out1)
	a.handler()
	a.entered(4, 0)
	a.run()
	var got []string
	for _, rec := range a.records() {
		got = append(got, fmt.Sprintf("%d:%d", rec.event, u64At(rec.rec, 32)))
	}
	if want := []string{"2:0", "1:0", "2:1", "1:1", "2:2", "1:2", "2:3", "1:3"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// slotAt is the first place for a call's instance.
func slotAt(p *arch.Pool, event int, sp, depth uint64) uint64 {
	key := sp ^ EventSalt(event) ^ depth<<depthShift
	return p.Base + key*hashFactor>>(64-p.Slots)<<p.Stride
}

// TestReenterGone has slots of calls in progress cleared: their calls are passed over at the return. A call that
// finds the slot of its depth taken, by one that was left, counts that as unwound.
func TestReenterGone(t *testing.T) {
	const entries = 4
	for _, c := range []struct {
		name    string
		gone    []uint64 // depths of the slots that are cleared
		left    bool     // the first run is left
		returns uint64   // of both runs
		unwound uint64
	}{
		{"newest", []uint64{3}, false, 3 + 4, 0},
		{"between", []uint64{1, 2}, false, 2 + 4, 0},
		{"all_above", []uint64{1, 2, 3}, false, 1 + 4, 0},
		{"left_first", []uint64{0}, true, 4, 3},
		{"left_above", []uint64{2}, true, 4, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newArena(t, buildDetourChild(t))
			tr := a.trampoline()
			pool := &arch.Pool{Base: arenaPool, Slots: 8, Stride: SlotStride(1)}
			in, out := returnWork(1, tr, pool)
			a.probe(hexBytes(t, leaving), map[uint64][]arch.ProbeOp{0: {in}}, arch.Policy{})
			a.returns(tr, out)
			a.handler()
			code := NewAsm(a.grow(4096))
			for _, depth := range c.gone {
				code.MovRI(RDX, slotAt(pool, 1, arenaStack, depth))
				code.MovMI(8, At(RDX, 0), 0)
			}
			if c.left {
				code.Pop(RDX)
				code.MovRM(8, RDX, At(RDX, TrampolineDist))
				code.JmpR(RDX)
			}
			code.Ret()
			b, err := code.Finish()
			if err != nil {
				t.Fatal(err)
			}
			copy(a.at(code.Base()), b)
			a.entered(entries, code.Base()+1)
			a.entered(entries, 0)
			a.run()
			if n, unwound := uint64(len(a.records())), a.counted(1, ring.CtrUnwound); n != c.returns || unwound != c.unwound {
				t.Errorf("%d returns, %d unwound; want %d, %d", n, unwound, c.returns, c.unwound)
			}
			if missed, strays := a.counted(1, ring.CtrMissed), a.stray(tr); missed+strays != 0 {
				t.Errorf("%d missed, %d returns belong to no call", missed, strays)
			}
			a.checkFree(pool)
		})
	}
}

// TestDepthOfKeys: a stack pointer is read from the key of each depth.
func TestDepthOfKeys(t *testing.T) {
	for _, sp := range []uint64{8, 0x7ffd3a5c1e48, 1<<depthShift - 8} {
		for depth := range uint64(maxDepth + 1) {
			slot := make([]byte, SlotHeader)
			key := (sp ^ EventSalt(77)) ^ depth<<depthShift
			copy(slot, binary.LittleEndian.AppendUint64(nil, key))
			SetEvent(slot, 77)
			if i, ok := ReadInstance(slot, false); !ok || i.SP != sp || i.Event != 77 {
				t.Fatalf("%+v, want 0x%x", i, sp)
			}
		}
	}
	slot, sp := make([]byte, SlotHeader), uint64(0xffffc90000123458)
	copy(slot, binary.LittleEndian.AppendUint64(nil, sp^EventSalt(3)))
	SetEvent(slot, 3)
	if i, _ := ReadInstance(slot, false); i.SP != sp {
		t.Errorf("%+v, want 0x%x", i, sp)
	}
}
