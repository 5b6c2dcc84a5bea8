package amd64

import (
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"kprobes.dev/kprobes/internal/arch"
)

// The mailbox of the tests, and the descriptor of their handler.
const (
	kernelMail = arenaCalls
	kernelDesc = arenaCalls + 0x10000
	kernelSlot = kernelMail + arch.MailSlotsOff + kernelCPU*arch.MailSlotSize
)

// kernelGateArena has a handler before the instruction at off of kernelFunction.
func kernelGateArena(t *testing.T, child *detourChild, off, ticks uint64) *arena {
	t.Helper()
	a := newArena(t, child)
	a.asKernel()
	code, err := NewKernelGate(arenaGate, KernelGateEnv{Mailbox: kernelMail, Kernel: a.w.Kernel, Ticks: ticks})
	if err != nil {
		t.Fatal(err)
	}
	copy(a.at(arenaGate), code)
	a.w.Gate = arenaGate
	a.probe(hexBytes(t, kernelFunction), map[uint64][]arch.ProbeOp{
		off: {{Event: 1, Count: true}, {Event: 1, Role: arch.RoleCall, Call: &arch.Call{Desc: kernelDesc}}, {Event: 2, Prog: nil}},
	}, arch.Policy{Force: arch.TacticJump})
	return a
}

const longWait = 1 << 40 // ticks

// state is the state word of the slot in a mapping of the arena.
func slotState(mem []byte) *uint32 {
	return (*uint32)(unsafe.Pointer(&mem[kernelSlot-arenaAddr+arch.MailStateOff]))
}

// answer answers a post if there is one.
func answer(mem []byte, handler func(p *Post, now *Regs) arch.Action) bool {
	if !atomic.CompareAndSwapUint32(slotState(mem), arch.MailSlotPosted, arch.MailSlotTaken) {
		return false
	}
	slot := mem[kernelSlot-arenaAddr:][:arch.MailSlotSize]
	p := ReadKernelPost(slot)
	now := p.Regs
	action := handler(&p, &now)
	block, _ := LeaveBlock(now.SP, true)
	p.PutAnswer(slot, &now, action, block)
	return atomic.CompareAndSwapUint32(slotState(mem), arch.MailSlotTaken, arch.MailSlotAnswered)
}

// TestKernelGate lets handlers in another process look at the registers of every hit, and
// leave them.
func TestKernelGate(t *testing.T) {
	child := buildDetourChild(t)
	r := rand.New(rand.NewPCG(41, 1))
	a := kernelGateArena(t, child, 0, longWait)
	for range 100 {
		a.add(a.kernelState(r))
	}
	var posts []Post
	a.beside = func(mem []byte) {
		answer(mem, func(p *Post, _ *Regs) arch.Action {
			posts = append(posts, *p)
			return arch.ActionGo
		})
	}
	a.run()
	if len(posts) != 100 || a.counted(1, 0) != 100 || len(a.records()) != 100 {
		t.Fatalf("%d posts, %d counted, %d records of 100 runs", len(posts), a.counted(1, 0), len(a.records()))
	}
	for i, p := range posts {
		run := a.runs[2*i]
		for j, v := range p.Regs.general() {
			if *v != run.Regs[j] {
				t.Fatalf("run %d: register %d is %#x, want %#x", i, j, *v, run.Regs[j])
			}
		}
		const system = 0x40ed5
		if p.Desc != kernelDesc || p.Instance != 0 || p.TID != kernelPID || p.Regs.Flags&system != run.Flags&system {
			t.Fatalf("run %d: %+v, flags want %#x", i, p, run.Flags)
		}
	}
	if s := binary.LittleEndian.Uint32(a.at(kernelSlot)); s != arch.MailSlotFree || a.get64(kernelDesc+arch.MailMissedOff) != 0 {
		t.Errorf("state %d, %d missed", s, a.get64(kernelDesc+arch.MailMissedOff))
	}
}

// TestKernelGateChanges lets a handler change all registers, or leave the function.
func TestKernelGateChanges(t *testing.T) {
	child := buildDetourChild(t)
	for _, action := range []arch.Action{arch.ActionGo, arch.ActionLeave} {
		r := rand.New(rand.NewPCG(42, uint64(action)))
		a := kernelGateArena(t, child, 9, longWait) // before adc %rcx, %rax
		for range 50 {
			a.add(a.kernelState(r))
			a.runs[len(a.runs)-1].Like = 0
		}
		var set [][16]uint64
		var flags []uint64
		a.beside = func(mem []byte) {
			answer(mem, func(_ *Post, now *Regs) arch.Action {
				var v [16]uint64
				for i, p := range now.general() {
					if i != int(RSP) {
						*p = r.Uint64()
					}
					v[i] = *p
				}
				now.Flags ^= r.Uint64() & statusFlags
				now.IP = arenaPlain + kernelExit
				set, flags = append(set, v), append(flags, now.Flags)
				return action
			})
		}
		a.run()
		if len(set) != 50 {
			t.Fatalf("%d answers", len(set))
		}
		for i, want := range set {
			run := a.runs[2*i+1]
			if action == arch.ActionGo {
				want[RAX] += want[RCX] + flags[i]&1
			} else if (run.OutFlags^flags[i])&0x40ed5 != 0 {
				t.Fatalf("run %d: flags %#x, want %#x", i, run.OutFlags, flags[i])
			}
			want[RSP] += 8
			if run.Out != want {
				t.Fatalf("action %d, run %d:\nhave %#x\nwant %#x", action, i, run.Out, want)
			}
		}
	}
}

// TestKernelGateInVain has hits that nobody answers: nothing changes, and all are counted.
func TestKernelGateInVain(t *testing.T) {
	child := buildDetourChild(t)
	const runs = 20
	for _, c := range []struct {
		name        string
		ticks       uint64
		set         func(a *arena)
		beside      func(mem []byte)
		state, mute uint32
		stopped     uint64
	}{
		{"nobody", 100_000, nil, nil, arch.MailSlotFree, arch.MailMuted, 0},
		{"nested", longWait, func(a *arena) { a.at(kernelSlot)[0] = arch.MailSlotClaimed }, nil, arch.MailSlotClaimed, arch.MailOn, 0},
		{"muted", longWait, func(a *arena) { a.at(kernelMail + arch.MailOffOff)[0] = arch.MailMuted }, nil, arch.MailSlotFree, arch.MailMuted, 0},
		{"switched off", longWait, func(a *arena) { a.at(kernelDesc + arch.MailDeadOff)[0] = 1 }, nil, arch.MailSlotFree, arch.MailOn, runs},
		{"refused", longWait, nil, func(mem []byte) {
			atomic.CompareAndSwapUint32(slotState(mem), arch.MailSlotPosted, arch.MailSlotRefused)
		}, arch.MailSlotFree, arch.MailOn, 0},
		{"late", 10_000_000, nil, func(mem []byte) {
			late := func(*Post, *Regs) arch.Action {
				for from := time.Now(); atomic.LoadUint32(slotState(mem)) != arch.MailSlotAbandoned && time.Since(from) < time.Minute; {
				}
				return arch.ActionLeave
			}
			if atomic.LoadUint32(slotState(mem)) == arch.MailSlotPosted && answer(mem, late) {
				panic("a late answer was taken")
			}
			if atomic.CompareAndSwapUint32(slotState(mem), arch.MailSlotAbandoned, arch.MailSlotFree) {
				atomic.StoreUint32((*uint32)(unsafe.Pointer(&mem[kernelMail-arenaAddr+arch.MailOffOff])), arch.MailOn)
			}
		}, arch.MailSlotFree, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(43, 1))
			a := kernelGateArena(t, child, 4, c.ticks)
			for range runs {
				a.add(a.kernelState(r))
			}
			if c.set != nil {
				c.set(a)
			}
			a.beside = c.beside
			a.run()
			missed, stopped := a.get64(kernelDesc+arch.MailMissedOff), a.get64(kernelDesc+arch.MailStopOff)
			if missed+stopped != runs || stopped != c.stopped || len(a.records()) != runs {
				t.Errorf("missed %d, stopped %d, recorded %d of %d", missed, stopped, len(a.records()), runs)
			}
			state, off := binary.LittleEndian.Uint32(a.at(kernelSlot)), binary.LittleEndian.Uint32(a.at(kernelMail+arch.MailOffOff))
			if c.name == "late" && state == arch.MailSlotAbandoned { // the last one: nobody was there any more to free it
				state, off = arch.MailSlotFree, arch.MailOn
			}
			if state != c.state || off != c.mute && c.name != "late" {
				t.Errorf("state %d, want %d; switch %d, want %d", state, c.state, off, c.mute)
			}
		})
	}
}
