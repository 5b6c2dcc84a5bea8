package symbol

import (
	"fmt"
	"slices"
	"strings"
)

// maxSlots bounds the GOT slots that are remembered.
const maxSlots = 1 << 20

// maxPLT bounds the bytes of all PLT sections. Those of gdb have 12 KB.
const maxPLT = 64 << 20

// gotSlots maps GOT slots to what the loader stores in them.
type gotSlots struct {
	names map[uint64]string // slot to the dynamic symbol bound to it
	irel  []IRelative
}

// readSlots reads the relocations that bind GOT slots to functions. The table of
// DT_JMPREL (or .rela.plt of a static program) holds those of the PLT; with all, DT_RELA
// is read too, whose GLOB_DAT entries .plt.got uses.
func (f *elfFile) readSlots(d *dynamic, dynNames func(uint32) string, all bool) (*gotSlots, error) {
	g := &gotSlots{names: map[uint64]string{}}
	add := func(r rela) bool {
		switch {
		case slices.Contains(f.machine.Binds, r.typ):
			if n := dynNames(r.sym); n != "" {
				g.names[r.off] = n
			}
		case r.typ == f.machine.IRelative:
			g.irel = append(g.irel, IRelative{r.off, r.addend})
		}
		return len(g.names)+len(g.irel) < maxSlots
	}
	if f.machine.Binds == nil {
		return g, nil
	}
	if d.jmprel == 0 && d.rela == 0 {
		if s := f.section(".rela.plt"); s != nil {
			return g, f.eachRela(s.addr, s.size, s.name, add)
		}
		return g, nil
	}
	if d.jmprel != 0 {
		if err := f.eachRela(d.jmprel, d.pltsz, "DT_JMPREL", add); err != nil {
			return g, err
		}
	}
	if all && d.rela != 0 {
		return g, f.eachRela(d.rela, d.relasz, "DT_RELA", add)
	}
	return g, nil
}

// pltStub is one named stub of a PLT.
type pltStub struct {
	addr, size uint64
	name       string
}

// pltSections gives the sections that hold stubs, by name.
func (f *elfFile) pltSections() []section {
	var out []section
	for _, s := range f.sects {
		if (s.name == ".plt" || strings.HasPrefix(s.name, ".plt.") || s.name == ".iplt") && s.typ == secProgbits {
			out = append(out, s)
		}
	}
	return out
}

// pltStubs names the stubs of a program's PLT sections as binutils does: sym@plt.
func (f *elfFile) pltStubs(g *gotSlots, resolverName func(uint64) string) ([]pltStub, error) {
	if f.machine.StubSlot == nil {
		return nil, nil
	}
	irel := map[uint64]uint64{}
	for _, r := range g.irel {
		irel[r.Slot] = r.Resolver
	}
	name := func(slot uint64) string {
		if n := g.names[slot]; n != "" {
			return n + "@plt"
		}
		r, ok := irel[slot]
		if !ok {
			return ""
		}
		if n := resolverName(r); n != "" {
			return n + "@plt"
		}
		return fmt.Sprintf("*ABS*+0x%x@plt", r)
	}
	var out []pltStub
	room := uint64(maxPLT)
	for _, s := range f.pltSections() {
		if s.size > room {
			return out, f.fail(s.name, s.off, "more than %d bytes of stubs", maxPLT)
		}
		room -= s.size
		b, err := f.bytesAt(s.off, s.size, s.name)
		if err != nil {
			return out, err
		}
		out = append(out, f.scanStubs(b, s.addr, stubSize(&s), name)...)
	}
	return out, nil
}

// stubSize is the distance of stubs: 8 bytes in a .plt.got without endbr64, else 16.
func stubSize(s *section) uint64 {
	if s.entsize == 8 || s.name == ".plt.got" && s.entsize != 16 {
		return 8
	}
	return 16
}

func (f *elfFile) scanStubs(b []byte, addr, step uint64, name func(slot uint64) string) []pltStub {
	var out []pltStub
	for i := uint64(0); i+8 <= uint64(len(b)); i += step {
		end := min(i+step, uint64(len(b)))
		slot, ok := f.machine.StubSlot(b[i:end], addr+i)
		if !ok {
			continue
		}
		if n := name(slot); n != "" {
			out = append(out, pltStub{addr + i, end - i, n})
		}
	}
	return out
}

// IRelatives gives the IRELATIVE relocations of the PLT, whose slots hold the chosen
// implementations of IFUNCs when the program runs.
func (im *Image) IRelatives() []IRelative { return append([]IRelative(nil), im.table().slots.irel...) }

// SlotName gives the dynamic symbol that the loader binds a GOT slot to; "" if it is no such slot.
func (im *Image) SlotName(slot uint64) string { return im.table().slots.names[slot] }

// Slots gives the link-time addresses of the GOT slots of the PLT that the loader binds
// to a dynamic symbol: what a slot holds at run time is the function that is called, the
// implementation where the symbol is an IFUNC. A slot not bound yet points into the PLT.
func (im *Image) Slots(name string) []uint64 {
	var out []uint64
	for slot, n := range im.table().slots.names {
		if n == name {
			out = append(out, slot)
		}
	}
	return sortedU64(out)
}
