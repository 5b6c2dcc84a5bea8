package amd64

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/ring"
)

// Where a test of the runtime has its code, and the clock.
const (
	lineRuntime = arenaGate + 0x4000
	lineClock   = arenaCalls + 0x3f000
	lineEvent   = 5
	lineText    = arenaData + 0x1000
)

// slotRuntime installs the runtime, and has its loads' faults caught. patience is that of a module's thread, in seconds.
func (a *arena) slotRuntime(patience uint64) *SlotRuntime {
	a.t.Helper()
	env := SlotRuntimeEnv{SlotGateEnv: SlotGateEnv{Keys: lineKeys, Slots: lineSlots, Groups: lineGroups}, Event: lineEvent, Clock: lineClock, Thread: lineThread, Patience: patience}
	r, err := NewSlotRuntime(lineRuntime, env, &a.w)
	if err != nil {
		a.t.Fatal(err)
	}
	copy(a.at(lineRuntime), r.Code)
	a.faults = append(a.faults, r.Faults...)
	a.put64(lineClock, 1000, 5_000_000, 1<<32/2) // half a nanosecond a tick
	copy(a.at(lineText), "a text that is long\x00")
	return r
}

// What the handler of TestSlotRuntime tells, behind its log's first word: where its results are, and what it copies.
const (
	toldSlot, toldTask, toldIDs, toldLeft, toldLen, toldCut, toldBad, toldTime, toldMM = 64, 72, 80, 88, 96, 104, 112, 120, 128

	toldKept   = 136 // and the slot as it is told where RBX has it, and where RBX has toldOthers[i]
	toldOthers = 144

	toldCopy, toldString, toldCutString, toldWords = 256, 288, 320, 352
)

// calling makes a handler that calls the functions of the runtime.
func (a *arena) calling(r *SlotRuntime) {
	a.t.Helper()
	h := NewAsm(lineHandler)
	call := func(name string, to int32) {
		h.MovRI(RAX, r.Symbols[name])
		h.CallR(RAX)
		if to != 0 {
			h.MovMR(8, At(RBX, to), RAX)
		}
	}
	h.Push(RBX)
	h.Push(R12)
	h.Push(R13)
	h.MovRR(8, R12, RDI)
	h.MovRR(8, R13, RBX)
	call("__kp_slot", 0)
	h.MovMR(8, At(R12, toldKept), RAX)
	for i, bx := range otherThanSlots {
		h.MovRI(RBX, bx)
		if bx < SlotSize {
			h.OpRR(OpAdd, 8, RBX, R13)
		}
		call("__kp_slot", 0)
		h.MovMR(8, At(R12, toldOthers+8*int32(i)), RAX)
	}
	h.MovRR(8, RBX, R12)
	h.Lock().IncM(8, At(RBX, lineCalls))
	call("__kp_slot", toldSlot)
	call("__kp_current", toldTask)
	h.MovRM(8, RCX, At(RAX, 0))
	h.MovMR(8, At(RBX, toldIDs), RCX)
	h.MovRM(8, RCX, At(RAX, taskMM-slotTask))
	h.MovRM(8, RCX, At(RCX, 0)) // it is memory
	h.MovMR(8, At(RBX, toldMM), RCX)
	h.Lea(RDI, At(RBX, toldCopy))
	h.MovRI(RSI, arenaHole-5)
	h.MovRI(RDX, 16)
	call("__kp_copy", toldLeft)
	for to, of := range map[int32]struct {
		from uint64
		most uint64
		len  int32
	}{toldString: {lineText, 32, toldLen}, toldCutString: {lineText, 6, toldCut}, toldCopy + 8: {arenaHole, 8, toldBad}} {
		h.Lea(RDI, At(RBX, to))
		h.MovRI(RSI, of.from)
		h.MovRI(RDX, of.most)
		call("__kp_copy_string", of.len)
	}
	call("__kp_nanoseconds", toldTime)
	h.MovMI(8, At(RBX, toldWords), 11)
	h.MovMI(8, At(RBX, toldWords+8), 22)
	h.MovMI(8, At(RBX, toldWords+16), 33)
	h.Lea(RDI, At(RBX, toldWords))
	h.MovRI(RSI, 3)
	call("__kp_record", 0)
	h.OpRR(OpXor, 4, RAX, RAX)
	h.Pop(R13)
	h.Pop(R12)
	h.Pop(RBX)
	h.Ret()
	text, err := h.Finish()
	if err != nil {
		a.t.Fatal(err)
	}
	copy(a.at(lineHandler), text)
}

// otherThanSlots are what RBX has that is not the thread's slot, the small ones to be added to it: places within it, other slots, what lies beside them all.
var otherThanSlots = []uint64{
	8, SlotSize / 2, 0, 1 << 63, lineKeys,
	lineSlots, lineSlots + 3*SlotSize, lineSlots + (lineCount-1)*SlotSize, lineSlots + lineCount*SlotSize, lineSlots - SlotSize,
}

// TestSlotRuntime has a handler call all functions of the runtime.
func TestSlotRuntime(t *testing.T) {
	child := buildDetourChild(t)
	for _, v := range detourVariants[:2] {
		r := rand.New(rand.NewPCG(7, 7))
		a := newArena(t, child)
		v.set(a)
		a.slotGates(SlotPost, false, false)
		a.calling(a.slotRuntime(0))
		a.probe(hexBytes(t, carryFunction), map[uint64][]arch.ProbeOp{0: {{Event: 7, Role: arch.RoleCall, Call: a.inLine(0)}}}, arch.Policy{Force: arch.TacticJump})
		a.handler()
		copy(a.at(arenaHole-5), "edges")
		a.ctl.Hole = arenaHole
		for range 20 {
			a.add(a.state(r))
		}
		a.run()
		a.freed()
		log := lineDesc(0) + lineLog
		told := func(at uint64) uint64 { return a.get64(log + at) }
		slot := told(toldSlot)
		if told(lineCalls) != 20 || slot < lineSlots || (slot-lineSlots)%SlotSize != 0 || slot >= lineSlots+lineCount*SlotSize {
			t.Fatalf("%s: %d calls, slot %#x", v.name, told(lineCalls), slot)
		}
		for i, bx := range otherThanSlots {
			if got := told(toldOthers + 8*uint64(i)); got != slot {
				t.Errorf("%s: slot %#x where RBX has %#x, want %#x", v.name, got, bx, slot)
			}
		}
		if told(toldKept) != slot {
			t.Errorf("%s: slot %#x at the handler's entry, want %#x", v.name, told(toldKept), slot)
		}
		if told(toldTask) != slot+slotTask || told(toldMM) != 0 || a.get64(slot+taskLeader) != slot+slotTask {
			t.Errorf("%s: the task is at %#x, mm has %#x", v.name, told(toldTask), told(toldMM))
		}
		pid, tgid := uint32(told(toldIDs)), uint32(told(toldIDs)>>32)
		if pid == 0 || pid != tgid || string(a.at(slot + taskComm)[:11]) != "detourexec\x00" {
			t.Errorf("%s: thread %d of %d, called %q", v.name, pid, tgid, a.at(slot + taskComm)[:16])
		}
		if told(toldLeft) != 11 || string(a.at(log + toldCopy)[:5]) != "edges" || a.at(log + toldCopy)[5] != 0 {
			t.Errorf("%s: %d bytes are left of 16 that end behind 5: %q", v.name, told(toldLeft), a.at(log + toldCopy)[:8])
		}
		if told(toldLen) != 19 || string(a.at(log + toldString)[:20]) != "a text that is long\x00" {
			t.Errorf("%s: a string of %d bytes, %q", v.name, told(toldLen), a.at(log + toldString)[:20])
		}
		if told(toldCut) != 5 || string(a.at(log + toldCutString)[:6]) != "a tex\x00" {
			t.Errorf("%s: a string that is cut: %d bytes, %q", v.name, told(toldCut), a.at(log + toldCutString)[:6])
		}
		if int64(told(toldBad)) != -efault || a.at(log + toldCopy + 8)[0] != 0 {
			t.Errorf("%s: a string that is not there: %d", v.name, int64(told(toldBad)))
		}
		records := slices.DeleteFunc(a.records(), func(r arenaRecord) bool { return r.event != lineEvent })
		if len(records) != 20 {
			t.Fatalf("%s: %d records", v.name, len(records))
		}
		last := records[19]
		words := last.rec[ring.RecHeader:]
		if len(words) == 32 {
			words = words[8:] // a goroutine
		}
		if last.tid != pid || len(words) != 24 || binary.LittleEndian.Uint64(words) != 11 || binary.LittleEndian.Uint64(words[16:]) != 33 || last.locked == a.w.HasRseq {
			t.Errorf("%s: thread %d recorded % x", v.name, last.tid, words)
		}
		if now := told(toldTime); now > 5_000_000+last.tsc/2 || now < 5_000_000+(last.tsc-1000)/2-1_000_000_000 {
			t.Errorf("%s: time %d, and the record's count %d", v.name, now, last.tsc)
		}
	}
}

// TestSlotAbandon has a handler fault: the thread goes on as if it had not been called, and it is not called again. It has changed all
// registers, and its stack pointer leads nowhere.
func TestSlotAbandon(t *testing.T) {
	child := buildDetourChild(t)
	for _, kind := range []SlotKind{SlotPre, SlotPost} {
		for i := range 2 * SlotUses {
			vectors, use := i%2 == 1, i/2
			r := rand.New(rand.NewPCG(9, 9))
			a := newArena(t, child)
			a.slotGates(kind, vectors, false)
			run := a.slotRuntime(0)
			gate, err := NewSlotGate(arenaGate, kind, SlotGateEnv{Keys: lineKeys, Slots: lineSlots, Groups: lineGroups, Vectors: vectors, Use: use})
			if err != nil {
				t.Fatal(err)
			}
			copy(a.at(arenaGate), gate.Code)
			h := NewAsm(lineHandler)
			h.Lock().IncM(8, At(RDI, lineCalls))
			if vectors {
				h.xmm(0xf10, 3, At(RSP, -64))
			}
			for r := RAX; r <= R15; r++ {
				h.MovRI(r, 0xbad0bad0bad0bad0)
			}
			h.MovMI(8, At(RAX, 0), 1)
			h.Ud2()
			text, err := h.Finish()
			if err != nil {
				t.Fatal(err)
			}
			copy(a.at(lineHandler), text)
			a.faults = append(a.faults, FaultEntry{Lo: lineHandler, Hi: lineHandler + uint64(len(text)), To: run.Abandon})
			pool := &arch.Pool{Base: arenaPool, Slots: 6, Stride: SlotStride(1)}
			work := a.inLineWork(pool)
			a.probe(hexBytes(t, carryFunction), work, arch.Policy{Force: arch.TacticJump})
			for i := range carryPoints {
				a.put64(lineDesc(i)+slotDescAbandon, gate.Abandon)
			}
			a.handler()
			for range 10 {
				a.add(a.state(r))
			}
			a.run()
			a.checkCounts(work)
			a.freed()
			for i := range carryPoints {
				at := lineDesc(i)
				calls, state, missed := a.get64(at+lineLog+lineCalls), a.get64(at+SlotDescOff), a.get64(at+lineMissed)
				if calls != 1 || state != 1|1<<32 || missed != 0 {
					t.Errorf("kind %d: handler %d was called %d times, is %#x and has missed %d", kind, i, calls, state, missed)
				}
			}
		}
	}
}
