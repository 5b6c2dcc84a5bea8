package kernel

import (
	"encoding/binary"
	"testing"
)

// TestOwns has two kernels of earlier and later boots at other places, whose page tables lead to the
// same page for what lies outside their images: only the one whose page tables a CPU uses owns it.
func TestOwns(t *testing.T) {
	const area, shared = 0xfffffe0000000000, 0x2d00000 // the CPU entry area, and tables for it
	extra := []Symbol{{"__entry_text_start", madeData + 128, 'T'}}
	all := []*made{
		{layout: "6.2", levels: 4, pa: 0x800000, va: 0xffffffff81000000, seqLen: 3, names: 500, state: 3, extra: extra},
		{layout: "6.2", levels: 4, pa: 0x1e00000, va: 0xffffffffa3600000, seqLen: 3, names: 500, state: 3, extra: extra},
	}
	ram := make(plainRAM, 48<<20)
	le := binary.LittleEndian
	for _, d := range all {
		d.write(ram)
		le.PutUint64(ram[d.pa+madePGD+8*(area>>39&511):], shared|0x63)
	}
	le.PutUint64(ram[shared:], (shared+0x1000)|0x63)
	le.PutUint64(ram[shared+0x1000:], (shared+0x2000)|0x63)
	le.PutUint64(ram[shared+0x2000:], (shared+0x3000)|0x63)
	found, err := FindAll(ram)
	if len(found) != 2 {
		t.Fatalf("%d kernels, %v", len(found), err)
	}
	for _, k := range found {
		if pa, _, _, ok := k.Translate(area); !ok || pa != shared+0x3000 {
			t.Fatalf("the CPU entry area is at 0x%x, %v", pa, ok)
		}
		for _, d := range all {
			if _, pa := k.Base(); k.Owns(d.pa+madePGD|5) != (pa == d.pa) {
				t.Errorf("the kernel at 0x%x owns the page tables at 0x%x: %v", pa, d.pa+madePGD, pa != d.pa)
			}
		}
		if k.Owns(0) || k.Owns(1<<40) {
			t.Error("a CR3 that is none")
		}
	}
}
