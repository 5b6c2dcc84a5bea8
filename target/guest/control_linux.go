package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/target"
)

// The control area: a header, and a table of sites. The guest's kernel never writes here, but
// what is read here is believed no more than any other memory of a guest.
const (
	controlMagic   = 0x5453455547504b21 // "!KPGUEST" in memory order
	controlVersion = 3

	siteOff  = pageSize
	siteSize = 64
)

// Header offsets, 8 bytes each.
const (
	hdrMagic   = 0
	hdrVersion = 8
	hdrHolder  = 16 // pid of the tracer
	hdrSince   = 24 // its start time, clock ticks after boot
	hdrSlot    = 32 // first slot of level2_fixmap_pgt
	hdrCPUs    = 40 // of the ring
	hdrSites   = 48 // entries of the table that were ever used
	hdrMark    = 56 // bytes of the code part that have ever held code; below 1 MiB since it was taken
	hdrMail    = 64 // 1 + offset of the mailbox in the data part; 0: there is none
	hdrThread  = 72 // 1 + offset of the words of a task that starts modules; 0: there are none
)

// errMemory says that what stands in the guest's memory is not what was expected there.
var errMemory = errors.New("the guest's memory is not understood")

var le = binary.LittleEndian

// controlBlock is the view of a controlBlock area.
type controlBlock struct {
	mem   []byte
	sites map[*target.Site]int // index of the entry of an armed site, or of a note
	free  []int
	used  int
	// patched has the armed sites as its keys, for those who look at the kernel's code beside a change.
	patched sync.Map
}

func newControl(mem []byte) *controlBlock {
	return &controlBlock{mem: mem, sites: map[*target.Site]int{}}
}

// capacity is the number of entries that the table has.
func (c *controlBlock) capacity() int { return (len(c.mem) - siteOff) / siteSize }

func (c *controlBlock) get(off int) uint64    { return le.Uint64(c.mem[off:]) }
func (c *controlBlock) put(off int, v uint64) { storeWord(c.mem[off:], v) }

// init writes the header, its magic last. What is told of code that was there stays.
func (c *controlBlock) init(holder, since uint64, l *layout) {
	mark := uint64(0)
	switch {
	case c.valid():
		mark = c.get(hdrMark)
	case c.other():
		mark = uint64(len(l.code.mem)) // where it had code is not known
	}
	c.put(hdrMagic, 0)
	clear(c.mem[hdrVersion:])
	for _, w := range []struct {
		off int
		v   uint64
	}{
		{hdrVersion, controlVersion},
		{hdrHolder, holder},
		{hdrSince, since},
		{hdrSlot, uint64(l.first)},
		{hdrCPUs, uint64(l.ringConfig.CPUs)},
		{hdrMark, mark},
		{hdrMagic, controlMagic},
	} {
		c.put(w.off, w.v)
	}
}

// valid says whether a header of this version stands there.
func (c *controlBlock) valid() bool {
	return c.get(hdrMagic) == controlMagic && c.get(hdrVersion) == controlVersion
}

// other says whether a header of another version stands there.
func (c *controlBlock) other() bool {
	return c.get(hdrMagic) == controlMagic && c.get(hdrVersion) != controlVersion
}

// site is an entry of the table.
//
//	0  address     8  length of the patch     16 original bytes     32 patch     48 detour
//	56 up to two points: offset from the address, probes, return probes, a byte each
//	62 target.Reason
//
// An entry without a patch is a note (Target.Note): if its reason is target.ReasonGone a name stands from 16 to 56.
type site struct {
	addr        uint64
	orig, patch []byte
	detour      uint64
	points      []target.Point
	reason      target.Reason
	name        string // of one that is gone
}

const (
	maxPatch  = 16
	nameOff   = 16
	pointOff  = 56
	pointSize = 3
	maxPoints = 2
	reasonOff = 62
)

func (s *site) encode(b []byte) {
	clear(b[:siteSize])
	le.PutUint64(b[8:], uint64(len(s.patch)))
	copy(b[16:32], s.orig)
	copy(b[32:48], s.patch)
	le.PutUint64(b[48:], s.detour)
	b[reasonOff] = byte(s.reason)
	if s.reason == target.ReasonGone {
		copy(b[nameOff:pointOff], s.name)
	}
	for i, p := range s.points[:min(len(s.points), maxPoints)] {
		at := b[pointOff+i*pointSize:]
		at[0], at[1], at[2] = byte(p.Addr-s.addr), byte(min(p.Probes, 255)), byte(min(p.Returns, 255))
	}
	storeWord(b, s.addr)
}

func decodeSite(b []byte) (site, error) {
	n := le.Uint64(b[8:])
	if n > maxPatch {
		return site{}, fmt.Errorf("a site's patch of %d bytes: %w", n, errMemory)
	}
	s := site{
		addr: le.Uint64(b), orig: slices.Clone(b[16 : 16+n]), patch: slices.Clone(b[32 : 32+n]),
		detour: le.Uint64(b[48:]), reason: target.Reason(b[reasonOff]),
	}
	if s.reason == target.ReasonGone && n == 0 {
		name, _, _ := bytes.Cut(b[nameOff:pointOff], []byte{0})
		s.name, s.detour = string(name), 0
	}
	for i := range maxPoints {
		at := b[pointOff+i*pointSize:]
		if at[1]|at[2] != 0 {
			s.points = append(s.points, target.Point{Addr: s.addr + uint64(at[0]), Probes: int(at[1]), Returns: int(at[2])})
		}
	}
	return s, nil
}

// list reads all sites that are in the table.
func (c *controlBlock) list() ([]site, error) {
	n := c.get(hdrSites)
	if n > uint64(c.capacity()) {
		return nil, fmt.Errorf("a table of %d sites: %w", n, errMemory)
	}
	var out []site
	for i := range int(n) {
		b := slices.Clone(c.entry(i))
		if le.Uint64(b) == 0 {
			continue
		}
		s, err := decodeSite(b)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (c *controlBlock) entry(i int) []byte { return c.mem[siteOff+i*siteSize:][:siteSize] }

// add enters sites that are about to be patched, or notes.
func (c *controlBlock) add(sites []*target.Site) error {
	if have := c.capacity() - c.used + len(c.free); len(sites) > have {
		return errno.Errorf(unix.ENOSPC, "%d sites more: the guest's table has room for %d: an ivshmem device has more (kprobe doctor tells how)", len(sites), have)
	}
	for _, s := range sites {
		i := c.used
		if n := len(c.free); n > 0 {
			i, c.free = c.free[n-1], c.free[:n-1]
		} else {
			c.used++
		}
		c.sites[s] = i
		if len(s.Patch) > 0 {
			c.patched.Store(s, nil)
		}
		e := site{addr: s.Addr, orig: s.Orig, patch: s.Patch, points: s.Points, reason: s.Reason, name: s.Name}
		if s.Detour != nil {
			e.detour = s.Detour.Addr
		}
		e.encode(c.entry(i))
	}
	c.put(hdrSites, uint64(c.used))
	return nil
}

// clear drops the entries of sites whose patches are gone.
func (c *controlBlock) clear(sites []*target.Site) {
	for _, s := range sites {
		if i, ok := c.sites[s]; ok {
			storeWord(c.entry(i), 0)
			delete(c.sites, s)
			c.patched.Delete(s)
			c.free = append(c.free, i)
		}
	}
}

// unpatch puts into code, which was read at an address, what the kernel has in the place of patches.
func (c *controlBlock) unpatch(addr uint64, code []byte) {
	c.patched.Range(func(k, _ any) bool {
		s := k.(*target.Site)
		for i, b := range s.Orig[:min(len(s.Orig), len(s.Patch))] {
			if at := s.Addr + uint64(i) - addr; at < uint64(len(code)) {
				code[at] = b
			}
		}
		return true
	})
}
