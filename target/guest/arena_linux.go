package guest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/guest/kernel"
	"kprobes.dev/kprobes/internal/guest/phys"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/target/patch"
)

// Bits of page table entries (SDM vol. 3A, 4.5.4).
const (
	ptePresent = 1 << 0
	pteWrite   = 1 << 1
	pteUsed    = 1<<5 | 1<<6 // accessed and dirty: the CPU has nothing to write
	pteLarge   = 1 << 7
	pteNX      = 1 << 63

	pteTable = ptePresent | pteWrite | pteUsed
	pteCode  = ptePresent | pteUsed
	pteData  = ptePresent | pteWrite | pteUsed | pteNX
	pteRead  = ptePresent | pteUsed | pteNX

	pteAddress = 1<<52 - pageSize
)

const (
	pageSize  = 4096
	largePage = 2 << 20
	slots     = 512
	imageBase = 0xffffffff80000000 // __START_KERNEL_map, where the kernel's image lies

	// What level2_fixmap_pgt maps: modules, from below, and the fixed mappings at the end. The
	// slots that are taken are those of the upper half of the modules' area, which ends at
	// MODULES_END. Nothing there passes for an address of the kernel's image (virt_addr_valid), so
	// that no struct page belongs to it: a kernel that checks what it copies users' strings to
	// (CONFIG_HARDENED_USERCOPY) would take the ring for an object of somebody else's.
	areaBase  = 0xffffffffc0000000
	areaFirst = 256
	areaEnd   = 504
)

// extent is a run of guest-physical memory.
type extent struct {
	pa  uint64
	mem []byte
}

// part is a run of an extent, and where the guest's kernel sees it.
type part struct {
	extent
	va uint64 // 0: it is not mapped there
}

func (e extent) part(off, size int) part {
	return part{extent: extent{e.pa + uint64(off), e.mem[off : off+size]}}
}

// layout says what an extent holds.
type layout struct {
	shared        bool // an ivshmem device's memory, mapped by large pages
	table         part // page table, if not shared
	control, code part
	data, ring    part // pools and mailbox; the ring
	ringConfig    ring.Config
	va            uint64 // of the first slot
	first, count  int    // slots of level2_fixmap_pgt
	directory     extent // level2_fixmap_pgt
}

// Sizes of the parts of a low extent, in pages.
const (
	lowControl = 4
	lowData    = 8
	lowCode    = 16 // at least
	lowEvents  = 64
	lowRing    = 32 << 10 // bytes of a shard
)

// lowLayout divides pages below 1 MiB.
func lowLayout(e extent, cpus int) (*layout, error) {
	cfg := ring.Config{CPUs: cpus, Events: lowEvents, DataSize: lowRing, LockedOnly: true}
	l, err := ring.NewLayout(cfg)
	if err != nil {
		return nil, err
	}
	pages := len(e.mem) / pageSize
	ringPages := int(l.Size()+pageSize-1) / pageSize
	codePages := pages - 1 - lowControl - lowData - ringPages
	if codePages < lowCode {
		return nil, errno.Errorf(unix.ENOSPC, "the guest has %d unused pages below 1 MiB, and a ring for %d CPUs takes %d of them: give it an ivshmem device (kprobe doctor tells how)",
			pages, cpus, ringPages)
	}
	o := &layout{ringConfig: cfg}
	at := 0
	next := func(n int) part {
		p := e.part(at*pageSize, n*pageSize)
		at += n
		return p
	}
	o.table, o.control, o.code, o.data, o.ring = next(1), next(lowControl), next(codePages), next(lowData), next(ringPages)
	return o, nil
}

// minShared is the least ivshmem memory that is used, in bytes.
const minShared = 8 << 20

// sharedLayout divides an ivshmem device's memory: a thirty-second and 2 MB at least of
// control, an eighth of code, a quarter of pools, the rest is the ring.
func sharedLayout(e extent, cpus int) (*layout, error) {
	if len(e.mem) < minShared || e.pa%largePage != 0 {
		return nil, errno.Errorf(unix.EINVAL, "ivshmem memory of %d bytes at 0x%x: %d bytes at least are wanted, in whole 2 MB pages", len(e.mem), e.pa, minShared)
	}
	all := len(e.mem) / largePage
	code := max(1, all/8)
	data := max(1, all/4)
	at := 0
	next := func(n int) part {
		p := e.part(at*largePage, n*largePage)
		at += n
		return p
	}
	o := &layout{shared: true}
	o.control, o.code, o.data = next(max(1, all/32)), next(code), next(data)
	o.ring = next(all - at)
	var err error
	o.ringConfig, err = largestRing(len(o.ring.mem), cpus, newControl(o.control.mem).capacity())
	return o, err
}

// Events of a ring in ivshmem memory: sharedEvents, and where it has the bytes as many as leave shards
// of manyData bytes, up to all that there can be.
const (
	sharedEvents = 4096
	manyEvents   = 64 << 20
	manyData     = 256 << 10
)

// largestRing is the ring for the most events, and then with the largest shards, that fits. There are
// no more than two events for each of the sites that the control area has room for.
func largestRing(size, cpus, sites int) (ring.Config, error) {
	cfg := ring.Config{CPUs: cpus, Events: sharedEvents, LockedOnly: true}
	if size >= manyEvents {
		for cfg.Events = ring.MaxEvents; cfg.Events > sharedEvents; cfg.Events /= 2 {
			if cfg.Events <= 2*sites && largestData(&cfg, size, manyData) {
				return cfg, nil
			}
		}
	}
	if largestData(&cfg, size, 16<<10) {
		return cfg, nil
	}
	return cfg, errno.Errorf(unix.ENOSPC, "ivshmem memory has %d bytes for the ring, which is too little for %d CPUs: make the device larger", size, cpus)
}

// largestData gives a ring the largest shards that fit, of least bytes at least; false: none do.
func largestData(cfg *ring.Config, size, least int) bool {
	for cfg.DataSize = 4 << 20; cfg.DataSize >= least; cfg.DataSize /= 2 {
		if l, err := ring.NewLayout(*cfg); err == nil && l.Size() <= uint64(size) {
			return true
		}
	}
	return false
}

// mapped lists the parts that the guest's kernel is to see, in the order of their addresses.
func (l *layout) mapped() []*part { return []*part{&l.code, &l.data, &l.ring} }

// slotsWanted is the number of free slots in a row that the layout takes.
func (l *layout) slotsWanted() int {
	if !l.shared {
		return 1
	}
	n := 0
	for _, p := range l.mapped() {
		n += len(p.mem) / largePage
	}
	return n
}

// pickFree chooses one of n places.
var pickFree = rand.IntN

// place chooses the slots and gives the parts their addresses.
func (l *layout) place(directory extent) error {
	l.directory, l.count = directory, l.slotsWanted()
	var free []int
	run := 0
	for i := areaFirst; i < areaEnd; i++ {
		if binary.LittleEndian.Uint64(directory.mem[8*i:]) != 0 {
			run = 0
			continue
		}
		if run++; run >= l.count {
			free = append(free, i-l.count+1)
		}
	}
	if len(free) == 0 {
		return errno.Errorf(unix.ENOSPC, "level2_fixmap_pgt has no %d free entries in a row", l.count)
	}
	l.at(free[pickFree(len(free))])
	return nil
}

// at gives the parts the addresses that they have from a slot on.
func (l *layout) at(slot int) {
	l.first = slot
	l.va = areaBase + uint64(slot)*largePage
	va := l.va
	if !l.shared {
		va += lowControl * pageSize // the control area is seen too: the way back to it
	}
	for _, p := range l.mapped() {
		p.va = va
		va += uint64(len(p.mem))
	}
}

// entries are the values of the slots.
func (l *layout) entries() []uint64 {
	if !l.shared {
		return []uint64{l.table.pa | pteTable}
	}
	var out []uint64
	for _, p := range l.mapped() {
		flags := uint64(pteData)
		if p == &l.code {
			flags = pteCode
		}
		for off := 0; off < len(p.mem); off += largePage {
			out = append(out, p.pa+uint64(off)|flags|pteLarge)
		}
	}
	return out
}

// room is the room for code: that of a layout that was adopted is what lies behind the code that
// its part has held, mark bytes.
func (l *layout) room(adopted bool, mark uint64) *patch.Piece {
	size := uint64(len(l.code.mem))
	if !adopted {
		return patch.NewPiece(l.code.va, size)
	}
	used := min((mark+patch.Align-1)&^(patch.Align-1), size-patch.Align)
	return patch.NewPiece(l.code.va+used, size-used)
}

// install fills the page table and, last, the slots: from then on the guest sees the parts.
func (l *layout) install() {
	if !l.shared {
		n := 0
		put := func(p *part, flags uint64) {
			for off := 0; off < len(p.mem); off += pageSize {
				binary.LittleEndian.PutUint64(l.table.mem[8*n:], p.pa+uint64(off)|flags)
				n++
			}
		}
		put(&l.control, pteRead)
		put(&l.code, pteCode)
		put(&l.data, pteData)
		put(&l.ring, pteData)
	}
	for i, v := range l.entries() {
		l.setSlot(i, v)
	}
}

// remove clears the slots.
func (l *layout) remove() {
	for i := range l.count {
		l.setSlot(i, 0)
	}
}

func (l *layout) setSlot(i int, v uint64) {
	storeWord(l.directory.mem[8*(l.first+i):], v)
}

// inForce says whether the slots have the layout's entries.
func (l *layout) inForce() bool {
	for i, v := range l.entries() {
		have := binary.LittleEndian.Uint64(l.directory.mem[8*(l.first+i):])
		if have != v {
			return false
		}
	}
	return true
}

// Page directories: the one whose entries are taken, and the one whose entries version 1 of the
// control area took.
const (
	directoryName = "level2_fixmap_pgt"
	directoryOld  = "level2_kernel_pgt"
)

// directoryOf finds a page directory of the kernel.
func directoryOf(k *kernel.Kernel, m phys.Memory, name string) (extent, error) {
	va, ok := k.Addr(name)
	if !ok {
		return extent{}, errno.Errorf(unix.EOPNOTSUPP, "the guest's kernel has no symbol %s (CONFIG_KALLSYMS_ALL is needed)", name)
	}
	pa, err := physical(k, va)
	if err != nil {
		return extent{}, err
	}
	mem := m.Bytes(pa, pageSize)
	if mem == nil || pa%pageSize != 0 {
		return extent{}, fmt.Errorf("%s at 0x%x, physical 0x%x: %w", name, va, pa, errMemory)
	}
	return extent{pa, mem}, nil
}
