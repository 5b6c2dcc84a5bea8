package kernel

import (
	"errors"
	"syscall"
	"testing"

	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
)

// TestImage makes an ELF file of a made-up kernel's memory.
func TestImage(t *testing.T) {
	d := made{"6.2", 4, 0x1e00000, 0xffffffffa3600000, 3, 500, 3, nil, 0, 0}
	ram := make(plainRAM, 48<<20)
	d.write(ram)
	k, err := Find(ram)
	if err != nil {
		t.Fatal(err)
	}
	at := func(off uint64) uint64 { return d.va + off }
	text := []interval.Range{{Start: at(0), End: at(0x1000)}}
	gone := at(madeSize + 0x1000)
	syms := []Symbol{
		{"counter", 0x40, 'A'},
		{"__second", at(0x10), 'T'},
		{"first", at(0x10), 't'},
		{"__pfx_padded", at(0x70), 't'},
		{"padded", at(0x80), 'T'},
		{"weak", at(0x100), 'W'},
		{"table", at(0x180), 'r'},
		{"data", at(madeData), 'D'},
		{"missing", gone, 'B'},
	}
	im, err := k.newImage("made", syms, text, []segment{
		{Range: text[0], exec: true},
		{Range: interval.Range{Start: at(0x1000), End: gone + 0x1000}},
		{Range: interval.Range{Start: 0, End: 0x1000}, bss: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	space := symbol.NewSpace()
	space.Add(im, 0, "")
	for _, c := range []struct {
		off  uint64
		name string
		size uint64
	}{{0x10, "__second", 0x60}, {0x6f, "__second", 0x60}, {0x70, "", 0}, {0x80, "padded", 0x80}, {0x17f, "weak", 0x80}, {0x180, "", 0}} {
		loc, ok := space.SymbolAt(at(c.off))
		if ok != (c.name != "") || loc.Name != c.name || loc.Size != c.size {
			t.Errorf("+0x%x: %+v, %t", c.off, loc, ok)
		}
	}
	if fns, err := im.Lookup("first"); err != nil || fns[0].Addr != at(0x10) {
		t.Errorf("an alias: %v, %v", fns, err)
	}
	for name, addr := range map[string]uint64{"counter": 0x40, "data": at(madeData), "table": at(0x180)} {
		if s, va, err := space.Data("", name); err != nil || va != addr || s.IsFunc {
			t.Errorf("%s: %+v at 0x%x, %v", name, s, va, err)
		}
	}
	checkLive(t, im, ram, d.pa, at(0x20), gone)
}

// checkLive reads through the image while memory changes.
func checkLive(t *testing.T, im *symbol.Image, ram plainRAM, pa, va, gone uint64) {
	t.Helper()
	for _, want := range []byte{0x90, 0xcc} {
		ram[pa+0x20] = want
		var b [1]byte
		if err := im.ReadAt(va, b[:]); err != nil || b[0] != want {
			t.Errorf("read %x, %v", b, err)
		}
	}
	if err := im.ReadAt(gone, make([]byte, 4)); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("a page that is not there: %v", err)
	}
	if err := im.ReadAt(0x40, make([]byte, 4)); err != nil {
		t.Errorf("per-CPU symbols have no contents: %v", err)
	}
}
