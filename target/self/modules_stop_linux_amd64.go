package self

import "kprobes.dev/kprobes/internal/arch/amd64"

// lookInLine takes the handlers in line into account that run: where they go back to, and whether the goroutines are being preempted that they have
// interrupted. A thread in the gate, on its way to a slot or from it, goes back where its register says.
//
//go:norace
func lookInLine(p *plan, w *worldState) {
	for n := uint64(0); n < lines.n && p.verdict == changed; n++ {
		at := lines.slots + n*amd64.SlotSize
		if word(lines.keys+8*n) == 0 || word32(at+amd64.SlotAtomic) == 0 {
			continue
		}
		desc := word(at + amd64.SlotDescAt)
		if desc == 0 { // no handler has run in it yet, and the thread has just come
			continue
		}
		p.meet(0, word(at+amd64.SlotBackTo), false)
		for i := uint32(0); i < w.asked; i++ {
			if s := &w.slots[w.list[i]]; s.state&3 == slotParked && s.g != 0 {
				p.preempted(s.tid, uint64(s.g), word(desc+amd64.SlotDescIP), word(at+amd64.SlotSP), word(at+amd64.SlotBP))
			}
		}
	}
}
