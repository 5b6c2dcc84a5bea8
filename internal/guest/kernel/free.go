package kernel

import (
	"cmp"
	"slices"
	"syscall"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
)

// lowMemory is what Linux reserves for good since 5.13 (setup_arch), and lowUsed what boot
// loaders leave their things in.
const (
	lowMemory = 1 << 20
	lowUsed   = 128 << 10
	lowTop    = 0x9f000 // extended BIOS data, video memory and ROMs follow
)

// Free lists physical pages below 1 MiB that the kernel has reserved for good and that nobody
// has ever written to: they are zero. Pages that touch are one range. Errors: ENOENT if there
// is none, or the kernel does not tell.
func (k *Kernel) Free() ([]interval.Range, error) {
	reserved, err := k.reservedPages(lowMemory / pageSize)
	if err != nil {
		return nil, err
	}
	top := uint64(lowTop)
	if va, ok := k.Addr("real_mode_header"); ok {
		if at, err := k.u64(va); err == nil {
			if pa, _, _, ok := k.Translate(at); ok && pa < lowMemory {
				top = min(top, pa&^(pageSize-1))
			}
		}
	}
	var out []interval.Range
	for pa := uint64(lowUsed); pa < top; pa += pageSize {
		if !reserved[pa/pageSize] || !zero(k.mem.Bytes(pa, pageSize)) {
			continue
		}
		if n := len(out); n > 0 && out[n-1].End == pa {
			out[n-1].End += pageSize
		} else {
			out = append(out, interval.Range{Start: pa, End: pa + pageSize})
		}
	}
	if len(out) == 0 {
		return nil, errno.Errorf(syscall.ENOENT, "no page below 1 MiB that the guest's kernel has reserved and nobody has used: kernels before 5.13 reserve none; start QEMU with an ivshmem device instead")
	}
	return out, nil
}

// zero says whether a page is there and holds nothing.
func zero(b []byte) bool {
	return b != nil && !slices.ContainsFunc(b, func(c byte) bool { return c != 0 })
}

// reservedPages reads PG_reserved of the first n pages from their struct page.
func (k *Kernel) reservedPages(n int) ([]bool, error) {
	t, err := k.Types()
	if err != nil {
		return nil, err
	}
	size, err1 := t.Size("page")
	flags, _, err2 := t.Offset("page", "flags")
	bit, err3 := t.Enum("pageflags", "PG_reserved")
	if err := cmp.Or(err1, err2, err3); err != nil {
		return nil, err
	}
	base := uint64(0xffffea0000000000) // __VMEMMAP_BASE_L4, without CONFIG_RANDOMIZE_MEMORY
	if va, ok := k.Addr("vmemmap_base"); ok {
		if base, err = k.u64(va); err != nil {
			return nil, err
		}
	}
	out := make([]bool, n)
	for i := range out {
		w, err := k.u64(base + uint64(i*size+flags))
		out[i] = err == nil && bit < 64 && w>>bit&1 == 1
	}
	return out, nil
}
