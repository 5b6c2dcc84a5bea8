package process

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/procfs"
	"kprobes.dev/kprobes/internal/ptrace"
	"kprobes.dev/kprobes/internal/target"
)

// controlBlock is the tracer's view of a controlBlock: the header's words and the sites, read from or
// written to the process's memory.
type controlBlock struct {
	p      *ptrace.Process
	addr   uint64
	sites  map[*target.Site]int // index of an armed site in the table
	free   []int
	used   int      // entries ever used
	tables []uint64 // of sites: where they are
	heap   uint64   // the first byte that is free
	end    uint64   // of the piece that it is in
	marker uint64
	// more maps memory for the heap; nil: there is no more.
	more func(size uint64) (addr uint64, err error)
}

func controlBlockAt(p *ptrace.Process, addr uint64) *controlBlock {
	return &controlBlock{
		p: p, addr: addr, sites: map[*target.Site]int{}, tables: []uint64{addr + siteOff},
		heap: addr + heapOff, end: addr + controlSize,
	}
}

// init writes the header of a fresh control block. The magic is written last.
func (h *controlBlock) init(marker, holder, since, ringAddr, ringSize uint64) error {
	h.marker = marker
	for _, w := range []struct{ off, v uint64 }{
		{hdrVersion, controlVersion},
		{hdrMarker, marker},
		{hdrHolder, holder},
		{hdrSince, since},
		{hdrRing, ringAddr},
		{hdrRingSize, ringSize},
		{hdrMagic, controlMagic},
	} {
		if err := h.put(w.off, w.v); err != nil {
			return err
		}
	}
	return nil
}

func (h *controlBlock) put(off, v uint64) error {
	return h.p.WriteMem(h.addr+off, binary.LittleEndian.AppendUint64(nil, v))
}

func (h *controlBlock) get(off uint64) (uint64, error) {
	var b [8]byte
	if err := h.p.ReadMem(h.addr+off, b[:]); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// open reads a control block that an earlier tracer left. It believes nothing it reads.
func (h *controlBlock) open() error {
	magic, err := h.get(hdrMagic)
	if err != nil {
		return err
	}
	version, err := h.get(hdrVersion)
	if err != nil {
		return err
	}
	switch {
	case magic != controlMagic:
		return fmt.Errorf("word 0x%x at 0x%x, not 0x%x: %w", magic, h.addr+hdrMagic, uint64(controlMagic), errControlBlock)
	case version == controlOneTable:
		for k := 0; len(h.tables) <= flatTables; k++ {
			h.tables = append(h.tables, h.tables[k]+uint64(tableSites(k))*siteSize)
		}
	case version != controlVersion && version != controlStubs:
		return fmt.Errorf("version %d at 0x%x, not %d: %w", version, h.addr+hdrVersion, controlVersion, errControlBlock)
	}
	return nil
}

// list reads all sites that are in the table.
func (h *controlBlock) list() ([]siteRecord, error) {
	n, err := h.get(hdrSites)
	if err != nil {
		return nil, err
	}
	if n > maxSites {
		return nil, fmt.Errorf("%d sites: %w", n, errControlBlock)
	}
	b, err := h.readTables(n)
	if err != nil {
		return nil, err
	}
	var out []siteRecord
	for ; len(b) >= siteSize; b = b[siteSize:] {
		s, err := decodeSite(b[:siteSize])
		if err != nil {
			return nil, err
		}
		if s.addr != 0 {
			out = append(out, s)
		}
	}
	return out, nil
}

// readTables reads the entries of n sites.
func (h *controlBlock) readTables(n uint64) ([]byte, error) {
	b := make([]byte, n*siteSize)
	rest := b
	for k := 0; len(rest) > 0; k++ {
		if k == len(h.tables) {
			at, err := h.get(hdrTables + uint64(k-1)*8)
			if err != nil {
				return nil, err
			}
			h.tables = append(h.tables, at)
		}
		part := rest[:min(len(rest), tableSites(k)*siteSize)]
		if err := h.p.ReadMem(h.tables[k], part); err != nil {
			return nil, err
		}
		rest = rest[len(part):]
	}
	return b, nil
}

// tableSites is how many sites the k-th table has.
func tableSites(k int) int {
	if k == 0 {
		return firstSites
	}
	return firstSites << (k - 1)
}

// capacity is how many sites the tables have that are there.
func (h *controlBlock) capacity() int { return firstSites << (len(h.tables) - 1) }

// reserve makes room in the tables for n sites more.
func (h *controlBlock) reserve(n int) error {
	if n > len(h.free)+maxSites-h.used {
		return errno.Errorf(unix.ENOSPC, "sites %d: the table holds %d", h.used-len(h.free)+n, maxSites)
	}
	for n > len(h.free)+h.capacity()-h.used {
		k := len(h.tables)
		at, err := h.alloc(uint64(tableSites(k)) * siteSize)
		if err != nil {
			return fmt.Errorf("table of sites: %w", err)
		}
		if err := h.put(hdrTables+uint64(k-1)*8, at); err != nil {
			return err
		}
		h.tables = append(h.tables, at)
	}
	return nil
}

// add puts entries for sites that are about to be patched into the table: runs of
// new entries in one write each, before the count that makes them valid.
func (h *controlBlock) add(sites []*target.Site, entries []byte) error {
	if err := h.reserve(len(sites)); err != nil {
		return err
	}
	at := h.take(len(sites))
	for lo := 0; lo < len(at); {
		hi := lo + 1
		for hi < len(at) && h.entry(at[hi]) == h.entry(at[hi-1])+siteSize {
			hi++
		}
		for i := lo; i < hi; i++ {
			h.sites[sites[i]] = at[i]
		}
		if err := h.p.WriteMem(h.entry(at[lo]), entries[lo*siteSize:hi*siteSize]); err != nil {
			return err
		}
		lo = hi
	}
	return h.put(hdrSites, uint64(h.used))
}

// grow makes room in the tracer's own map for n sites more, which takes longer than to enter them.
func (h *controlBlock) grow(n int) {
	sites := make(map[*target.Site]int, len(h.sites)+n)
	maps.Copy(sites, h.sites)
	h.sites = sites
}

// take gives n entries that are free, in the order in which they stand.
func (h *controlBlock) take(n int) []int {
	old := min(n, len(h.free))
	at := slices.Clone(h.free[len(h.free)-old:])
	h.free = h.free[:len(h.free)-old]
	slices.Sort(at)
	for ; len(at) < n; h.used++ {
		at = append(at, h.used)
	}
	return at
}

// clear wipes the entries of sites whose patches are gone, neighbours in one write.
func (h *controlBlock) clear(sites []*target.Site) error {
	var gone []int
	for _, s := range sites {
		if at, ok := h.sites[s]; ok {
			gone = append(gone, at)
			delete(h.sites, s)
		}
	}
	slices.Sort(gone)
	for len(gone) > 0 {
		n := 1
		for n < len(gone) && h.entry(gone[n]) == h.entry(gone[n-1])+siteSize {
			n++
		}
		if err := h.p.WriteMem(h.entry(gone[0]), make([]byte, n*siteSize)); err != nil {
			return err
		}
		h.free = append(h.free, gone[:n]...)
		gone = gone[n:]
	}
	return nil
}

// entry is the address of an entry.
func (h *controlBlock) entry(i int) uint64 {
	k := bits.Len(uint(i) / firstSites)
	if k > 0 {
		i -= firstSites << (k - 1)
	}
	return h.tables[k] + uint64(i)*siteSize
}

// tableEnd is the number of the first entry behind the table that entry i is in.
func (h *controlBlock) tableEnd(i int) int { return firstSites << bits.Len(uint(i)/firstSites) }

// alloc gives size bytes of zeroed memory in the control block, or in the heap.
func (h *controlBlock) alloc(size uint64) (uint64, error) {
	size = (size + 63) &^ 63
	if size > h.end-h.heap {
		if h.more == nil {
			return 0, errno.Errorf(unix.ENOSPC, "probe data %d bytes: the control block has %d left", size, h.end-h.heap)
		}
		piece := max(procfs.PageUp(size), heapPiece)
		at, err := h.more(piece)
		if err != nil {
			return 0, err
		}
		if piece-size <= h.end-h.heap { // what is left of it is no better
			return at, nil
		}
		h.heap, h.end = at, at+piece
	}
	a := h.heap
	h.heap += size
	return a, nil
}
