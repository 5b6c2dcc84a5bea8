package kernel

// Bits of a page-table entry (Intel SDM volume 3, 4.5).
const (
	ptePresent = 1 << 0
	pteWrite   = 1 << 1
	ptePS      = 1 << 7
	pteNX      = 1 << 63
	pteAddr    = 0x000f_ffff_ffff_f000
)

// Access is what the kernel's page tables let the kernel do with a page.
type Access struct{ Write, Exec bool }

// Translate walks the kernel's own page tables (init_top_pgt), in which, unlike those of a
// process under page-table isolation, every kernel address is mapped. It gives the physical
// address of va, and the bytes left from va to the end of its page. ok is false where no page
// is present, or a table lies outside RAM.
func (k *Kernel) Translate(va uint64) (pa, left uint64, acc Access, ok bool) {
	return k.walk(k.root, k.levels, va)
}

func (k *Kernel) walk(root uint64, levels int, va uint64) (pa, left uint64, acc Access, ok bool) {
	top := uint(pageShift + 9*levels)
	if ext := int64(va<<(64-top)) >> (64 - top); uint64(ext) != va {
		return 0, 0, acc, false // not canonical
	}
	acc = Access{Write: true, Exec: true}
	table := root
	for level := levels; ; level-- {
		shift := uint(pageShift + 9*(level-1))
		e, ok := phys64(k.mem, table+(va>>shift)&511*8)
		if !ok || e&ptePresent == 0 {
			return 0, 0, acc, false
		}
		acc.Write = acc.Write && e&pteWrite != 0
		acc.Exec = acc.Exec && e&pteNX == 0
		leaf := level == 1 || e&ptePS != 0
		if leaf && level > 3 {
			return 0, 0, acc, false // no such page size
		}
		table = e & pteAddr
		if leaf {
			size := uint64(1) << shift
			off := va & (size - 1)
			return table&^(size-1) + off, size - off, acc, true
		}
	}
}

// Root gives the physical address of init_top_pgt and the number of page-table levels, 4
// or 5.
func (k *Kernel) Root() (pa uint64, levels int) { return k.root, k.levels }

// Owns says whether a CPU with this page table (what CR3 holds) runs this kernel: its page tables, a
// process's or the kernel's own, isolated or not, map the kernel's entry code, which all of them have,
// to where this kernel lies. It tells a kernel that is running from what an earlier one left in RAM.
// What lies outside the image does not: the same kernel takes the same pages for it in each boot.
func (k *Kernel) Owns(table uint64) bool {
	entry, ok := k.Addr("__entry_text_start")
	if !ok {
		entry = k.image.Start // older kernels, without isolation
	}
	pa, _, _, ok := k.walk(table&pteAddr, k.levels, entry)
	return ok && pa == entry-k.image.Start+k.phys
}
