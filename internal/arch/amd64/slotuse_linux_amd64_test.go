package amd64

import (
	"math/rand/v2"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
)

// TestSlotUseOf: what handlers do with their registers, as their code tells.
func TestSlotUseOf(t *testing.T) {
	const base, slot, other = 0x10000, 0x20000, 0x30000
	for name, c := range map[string]struct {
		code func(a *Asm)
		want SlotUse
	}{
		"nothing":     {func(a *Asm) { a.OpRR(OpXor, 4, RAX, RAX) }, SlotIgnores},
		"counter":     {func(a *Asm) { a.CallAddr(slot); a.IncM(8, At(RAX, 0)) }, SlotIgnores},
		"other":       {func(a *Asm) { a.CallAddr(other) }, SlotChanges},
		"gone_before": {func(a *Asm) { a.OpRR(OpXor, 4, RSI, RSI); a.CallAddr(other) }, SlotIgnores},
		"read":        {func(a *Asm) { a.MovRM(8, RDX, At(RSI, 8)); a.MovRI(RSI, 1); a.CallAddr(other) }, SlotReads},
		"narrow":      {func(a *Asm) { a.MovZXM(1, RSI, At(RSI, 8)); a.CallAddr(other) }, SlotReads},
		"compared":    {func(a *Asm) { a.OpMI(OpCmp, 8, At(RSI, 8), 0) }, SlotReads},
		"kept": {func(a *Asm) {
			a.MovRR(8, RBX, RSI)
			a.CallAddr(slot)
			a.MovRM(8, RAX, At(RBX, 8))
		}, SlotReads},
		"kept_written": {func(a *Asm) {
			a.MovRR(8, RBX, RSI)
			a.CallAddr(slot)
			a.MovMR(8, At(RBX, 8), RAX)
		}, SlotChanges},
		"written":   {func(a *Asm) { a.MovMI(8, At(RSI, 8), 1) }, SlotChanges},
		"added":     {func(a *Asm) { a.IncM(8, At(RSI, 8)) }, SlotChanges},
		"stored":    {func(a *Asm) { a.MovMR(8, At(RDI, 8), RSI) }, SlotChanges},
		"pushed":    {func(a *Asm) { a.Push(RSI); a.Pop(RAX) }, SlotChanges},
		"to_vector": {func(a *Asm) { a.Raw(0x66, 0x48, 0x0f, 0x6e, 0xc6) }, SlotChanges}, // movq %rsi, %xmm0
		"computed":  {func(a *Asm) { a.Lea(RAX, At(RSI, 16)); a.MovMI(8, At(RAX, 0), 1) }, SlotChanges},
		"sum":       {func(a *Asm) { a.MovRI(RAX, 8); a.OpRR(OpAdd, 8, RAX, RSI); a.MovMI(8, At(RAX, 0), 1) }, SlotChanges},
		"short":     {func(a *Asm) { a.MovRR(4, RAX, RSI); a.MovMI(8, At(RAX, 0), 1) }, SlotChanges},
		"copied":    {func(a *Asm) { a.Raw(0xf3, 0x48, 0xa5) }, SlotChanges}, // rep movsq
		"indirect":  {func(a *Asm) { a.CallR(RAX) }, SlotChanges},
		"syscall":   {func(a *Asm) { a.Syscall() }, SlotChanges},
		"one_branch": {func(a *Asm) {
			l := a.Label()
			a.TestRR(8, RDI, RDI)
			a.Jcc(CondE, l)
			a.MovMI(8, At(RSI, 8), 1)
			a.Bind(l)
		}, SlotChanges},
		"loop": {func(a *Asm) { // the second time RAX has the address
			l := a.Here()
			a.MovMI(8, At(RAX, 0), 1)
			a.MovRR(8, RAX, RSI)
			a.Raw(0xe2, byte(int64(a.LabelAddr(l))-int64(a.Addr())-2)) // loop
		}, SlotChanges},
		"inner": {func(a *Asm) { // RSI is the inner function's too
			f, end := a.Label(), a.Label()
			a.Call(f)
			a.Jmp(end)
			a.Bind(f)
			a.MovMI(8, At(RSI, 8), 1)
			a.Ret()
			a.Bind(end)
		}, SlotChanges},
		"inner_gives": {func(a *Asm) {
			f, end := a.Label(), a.Label()
			a.Call(f)
			a.MovMI(8, At(RAX, 8), 1)
			a.Jmp(end)
			a.Bind(f)
			a.Lea(RAX, At(RSI, 8))
			a.OpRR(OpXor, 4, RSI, RSI)
			a.Ret()
			a.Bind(end)
		}, SlotChanges},
		"inner_keeps": {func(a *Asm) { // a compiler may know that R8 is as it was
			f, end := a.Label(), a.Label()
			a.MovRR(8, R8, RSI)
			a.Call(f)
			a.MovMI(8, At(R8, 8), 1)
			a.Jmp(end)
			a.Bind(f)
			a.OpRR(OpXor, 4, RSI, RSI)
			a.Ret()
			a.Bind(end)
		}, SlotChanges},
		"recursive": {func(a *Asm) { l := a.Here(); a.Call(l) }, SlotChanges},
		"tail":      {func(a *Asm) { a.JmpAddr(other) }, SlotChanges},
	} {
		a := NewAsm(base)
		c.code(a)
		a.Ret()
		text, err := a.Finish()
		if err != nil {
			t.Fatal(err)
		}
		if got := SlotUseOf(text, base, base, map[uint64]bool{slot: true}); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if got := SlotUseOf([]byte{0x90}, base, base, nil); got != SlotChanges {
		t.Errorf("code without an end: %d", got)
	}
}

// TestSlotGateUses has handlers that change no registers of the thread, and all that a C function may, and gates that know it. One returns 1: the thread
// goes on where its registers say, with all of them.
func TestSlotGateUses(t *testing.T) {
	child := buildDetourChild(t)
	for _, use := range []SlotUse{SlotReads, SlotIgnores} {
		for _, leaves := range []bool{false, true} {
			for _, stacks := range []bool{false, true} {
				r := rand.New(rand.NewPCG(13, 3))
				a := newArena(t, child)
				a.slotGates(SlotPre, true, stacks)
				gate, err := NewSlotGate(arenaGate, SlotPre, SlotGateEnv{Keys: lineKeys, Slots: lineSlots, Groups: lineGroups, Vectors: true, Stacks: stacks, Use: use})
				if err != nil {
					t.Fatal(err)
				}
				copy(a.at(arenaGate), gate.Code)
				h := NewAsm(lineHandler)
				h.Lock().IncM(8, At(RDI, lineCalls))
				h.MovRM(8, RAX, At(RDI, lineResult))
				for _, r := range []Reg{RCX, RDX, RSI, RDI, R8, R9, R10, R11} {
					h.MovRI(r, 0xbad0bad0bad0bad0)
				}
				h.Ret()
				text, err := h.Finish()
				if err != nil {
					t.Fatal(err)
				}
				copy(a.at(lineHandler), text)
				a.probe(hexBytes(t, "0f1f440000 c3"), map[uint64][]arch.ProbeOp{0: {{Event: 7, Role: arch.RoleCall, Call: a.inLine(0)}}}, arch.Policy{Force: arch.TacticJump})
				a.handler()
				if leaves {
					copy(a.at(arenaProbed+0x100), []byte{0xc3})
					a.put64(lineDesc(0)+slotDescIP, arenaProbed+0x100)
					a.put64(lineDesc(0)+lineLog+lineResult, 1)
				}
				for range 20 {
					a.add(a.directed(r))
				}
				a.run()
				a.freed()
				if n := a.get64(lineDesc(0) + lineLog + lineCalls); n != 20 {
					t.Errorf("use %d: %d calls", use, n)
				}
			}
		}
	}
}

// TestPutThreadBlock: the block says that no area for restartable sequences is registered, or that there is no room to say so.
func TestPutThreadBlock(t *testing.T) {
	for off, want := range map[int32]bool{0: false, 8: true, -64: true, 3072 - 8: true, 3072 - 4: false, -1024 - 8: false} {
		page := make([]byte, 4096)
		w := &arch.CodegenEnv{HasRseq: true, RseqOff: off}
		if got := PutThreadBlock(page, 1024, 0x7000, w); got != want {
			t.Errorf("an area at %d: %t", off, got)
		}
		if at := 1024 + int(off) + rseqCPU; want && string(page[at:at+4]) != "\xff\xff\xff\xff" {
			t.Errorf("an area at %d: % x", off, page[at:at+4])
		}
	}
}
