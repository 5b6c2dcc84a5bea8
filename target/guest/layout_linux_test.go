package guest

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/target"
)

// walk follows the slots as a CPU does (SDM vol. 3A, 4.5.4): what physical address stands
// behind a virtual one, and with which rights.
func walk(t *testing.T, directory, table []byte, va uint64) (pa uint64, write, exec, ok bool) {
	t.Helper()
	pmd := binary.LittleEndian.Uint64(directory[8*((va-areaBase)/largePage):])
	e, size := pmd, uint64(largePage)
	switch {
	case pmd&ptePresent == 0:
		return 0, false, false, false
	case pmd&pteLarge == 0:
		e = binary.LittleEndian.Uint64(table[8*(va%largePage/pageSize):])
		size = pageSize
		if e&ptePresent == 0 {
			return 0, false, false, false
		}
	}
	return e&pteAddress&^(size-1) + va%size, e&pmd&pteWrite != 0, e&pteNX == 0 && pmd&pteNX == 0, true
}

// directory is a level2_fixmap_pgt with the first half and the last entry in use.
func directory() extent {
	d := extent{0x1000, make([]byte, pageSize)}
	for i := range slots / 2 {
		binary.LittleEndian.PutUint64(d.mem[8*i:], 0x1e3)
	}
	binary.LittleEndian.PutUint64(d.mem[8*(slots-1):], 0x63)
	return d
}

// checkMapped walks every page of the parts.
func checkMapped(t *testing.T, l *layout) {
	t.Helper()
	for _, p := range l.mapped() {
		// virt_addr_valid (arch/x86/mm/physaddr.c): behind KERNEL_IMAGE_SIZE no page is meant
		if p.va-imageBase < 1<<30 {
			t.Fatalf("0x%x passes for an address of the kernel's image", p.va)
		}
		for off := 0; off < len(p.mem); off += pageSize {
			pa, write, exec, ok := walk(t, l.directory.mem, l.table.mem, p.va+uint64(off))
			isCode := p == &l.code
			if !ok || pa != p.pa+uint64(off) || exec != isCode || write == isCode {
				t.Fatalf("0x%x: physical 0x%x, want 0x%x; write %v, execute %v, there %v", p.va+uint64(off), pa, p.pa+uint64(off), write, exec, ok)
			}
		}
	}
}

func TestLowLayout(t *testing.T) {
	e := extent{0x21000, make([]byte, 118*pageSize)}
	l, err := lowLayout(e, 2)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := ring.NewLayout(l.ringConfig); err != nil || r.Size() > uint64(len(l.ring.mem)) {
		t.Errorf("ring of %d bytes in %d: %v", r.Size(), len(l.ring.mem), err)
	}
	d := directory()
	if err := l.place(d); err != nil {
		t.Fatal(err)
	}
	if l.inForce() {
		t.Error("in force before it is installed")
	}
	l.install()
	checkMapped(t, l)
	if pa, write, exec, ok := walk(t, d.mem, l.table.mem, l.va); !ok || pa != l.control.pa || write || exec {
		t.Errorf("control area: physical 0x%x, write %v, execute %v, there %v", pa, write, exec, ok)
	}
	if !l.inForce() {
		t.Error("not in force though installed")
	}
	l.remove()
	if string(d.mem) != string(directory().mem) {
		t.Error("the slots are not as before")
	}
}

func TestLowTooSmall(t *testing.T) {
	_, err := lowLayout(extent{0x21000, make([]byte, 118*pageSize)}, 8)
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("8 CPUs: %v", err)
	}
}

func TestSharedLayout(t *testing.T) {
	for _, size := range []int{8 << 20, 16 << 20, 32 << 20} {
		l, err := sharedLayout(extent{0xfd000000, make([]byte, size)}, 4)
		if err != nil {
			t.Fatal(err)
		}
		d := directory()
		if err := l.place(d); err != nil {
			t.Fatal(err)
		}
		l.install()
		checkMapped(t, l)
		l.remove()
		if string(d.mem) != string(directory().mem) {
			t.Error("the slots are not as before")
		}
	}
	if _, err := sharedLayout(extent{0xfd001000, make([]byte, 16<<20)}, 1); !errors.Is(err, unix.EINVAL) {
		t.Errorf("not aligned: %v", err)
	}
}

// TestManyEvents has devices of all sizes for guests of many CPUs: the larger ones take more events, and
// none is refused for having to give them room.
func TestManyEvents(t *testing.T) {
	for _, c := range []struct{ mb, cpus, events int }{
		{32, 4, sharedEvents}, {128, 1, 1 << 16}, {128, 8, 1 << 16}, {256, 2, 1 << 17}, {256, 4, 1 << 17}, {256, 16, 1 << 16}, {512, 64, 1 << 16}, {256, 64, 1 << 15},
	} {
		l, err := sharedLayout(extent{0xfd000000, make([]byte, c.mb<<20)}, c.cpus)
		if err != nil {
			t.Errorf("%d MB, %d CPUs: %v", c.mb, c.cpus, err)
			continue
		}
		if g := l.ringConfig; g.Events < c.events || g.DataSize < 16<<10 || c.mb > 32 && g.DataSize < manyData {
			t.Errorf("%d MB, %d CPUs: room for %d events, shards of %d bytes; want %d events", c.mb, c.cpus, g.Events, g.DataSize, c.events)
		}
	}
}

func TestNoSlots(t *testing.T) {
	l, err := sharedLayout(extent{0xfd000000, make([]byte, 16<<20)}, 1)
	if err != nil {
		t.Fatal(err)
	}
	d := directory()
	for i := slots / 2; i < slots; i += 2 {
		binary.LittleEndian.PutUint64(d.mem[8*i:], 0x63)
	}
	if err := l.place(d); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
}

func testSite(addr uint64, orig, patch string, back uint64) *target.Site {
	return &target.Site{
		Addr: addr, Orig: []byte(orig), Patch: []byte(patch), Room: 64,
		Detour: &arch.Detour{Addr: 0x100000 + addr, Back: 0x100020 + addr, Pairs: []arch.Pair{{Orig: back, Copy: 0x100020 + addr}}},
		Points: []target.Point{{Addr: addr + 1, Probes: 2, Returns: 1}},
	}
}

func TestControl(t *testing.T) {
	l, err := lowLayout(extent{0x21000, make([]byte, 118*pageSize)}, 1)
	if err != nil {
		t.Fatal(err)
	}
	c := newControl(l.control.mem)
	if c.valid() {
		t.Error("zeroed memory is a control area")
	}
	c.init(12, 34, l)
	a, b := testSite(0x1000, "abcde", "12345", 0x1005), testSite(0x2000, "fghijk", "678901", 0x2006)
	if err := c.add([]*target.Site{a, b}); err != nil {
		t.Fatal(err)
	}
	got, err := newControl(l.control.mem).list()
	if err != nil || len(got) != 2 || got[0].addr != 0x1000 || string(got[0].orig) != "abcde" || string(got[1].patch) != "678901" ||
		len(got[1].points) != 1 || got[1].points[0] != b.Points[0] || !c.valid() || c.get(hdrHolder) != 12 || c.get(hdrSince) != 34 {
		t.Fatalf("%+v, %v", got, err)
	}
	c.clear([]*target.Site{a})
	if got, err := c.list(); err != nil || len(got) != 1 || got[0].addr != 0x2000 {
		t.Errorf("%+v, %v", got, err)
	}
	var many []*target.Site
	for i := range c.capacity() {
		many = append(many, testSite(uint64(0x10000+16*i), "abcde", "12345", 0))
	}
	if err := c.add(many); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%d sites in a table of %d: %v", len(many)+1, c.capacity(), err)
	}
	if err := c.add(many[1:]); err != nil {
		t.Errorf("the table has room for %d more: %v", len(many)-1, err)
	}
}

// TestControlHostile has what somebody else may have written into the area.
func TestControlHostile(t *testing.T) {
	c := newControl(make([]byte, 3*pageSize))
	c.put(hdrSites, 1<<40)
	if _, err := c.list(); !errors.Is(err, errMemory) {
		t.Errorf("2^40 sites: %v", err)
	}
	c.put(hdrSites, 1)
	binary.LittleEndian.PutUint64(c.entry(0), 0x1000)
	binary.LittleEndian.PutUint64(c.entry(0)[8:], 17)
	if _, err := c.list(); !errors.Is(err, errMemory) {
		t.Errorf("a patch of 17 bytes: %v", err)
	}
}

// ram is memory in pieces.
type ram []extent

func (r ram) Ranges() []interval.Range { return nil }

func (r ram) Bytes(pa uint64, n int) []byte {
	for _, e := range r {
		if size := uint64(len(e.mem)); pa-e.pa < size && uint64(n) <= size-(pa-e.pa) {
			return e.mem[pa-e.pa:][:n]
		}
	}
	return nil
}

// TestOtherVersion: what another version has left is refused for as long as it is mapped, and
// not taken for memory that never held code.
func TestOtherVersion(t *testing.T) {
	low, shared := extent{0x21000, make([]byte, 118*pageSize)}, extent{0xfd000000, make([]byte, 16<<20)}
	l, err := lowLayout(low, 1)
	if err != nil {
		t.Fatal(err)
	}
	s, err := sharedLayout(shared, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []*layout{l, s} {
		own, old := directory(), directory()
		old.pa += pageSize
		check := func() error { return otherVersion(ram{low}, shared, []extent{own, old}) }
		for _, d := range []extent{own, old} {
			if err := l.place(d); err != nil {
				t.Fatal(err)
			}
			c := newControl(l.control.mem)
			c.init(12, 34, l)
			l.install()
			if err := check(); err != nil {
				t.Errorf("shared %v: this version: %v", l.shared, err)
			}
			c.put(hdrVersion, controlVersion-1)
			if err := check(); !errors.Is(err, unix.EBUSY) {
				t.Errorf("shared %v: another version: %v", l.shared, err)
			}
			l.remove() // as a reboot does
			if err := check(); err != nil {
				t.Errorf("shared %v: another version that is not mapped: %v", l.shared, err)
			}
			c.init(12, 34, l)
			if have := c.get(hdrMark); have != uint64(len(l.code.mem)) || !c.valid() {
				t.Errorf("shared %v: of the %d bytes of code 0x%x may have been used", l.shared, len(l.code.mem), have)
			}
		}
	}
}
