package kernel

import (
	"syscall"

	"kprobes.dev/kprobes/internal/errno"
)

// ReadAs fills buf with the bytes at an address as a CPU with this page table (what CR3 holds) sees it:
// a user's memory too. The error is EFAULT; buf then holds what came before the first address
// that has no page.
func (k *Kernel) ReadAs(table, va uint64, buf []byte) error {
	for len(buf) > 0 {
		pa, left, _, ok := k.walk(table&pteAddr, k.levels, va)
		n := int(min(left, uint64(len(buf))))
		var b []byte
		if ok {
			b = k.mem.Bytes(pa, n)
		}
		if b == nil {
			return errno.Errorf(syscall.EFAULT, "address 0x%x: nothing is there in the address space of the page table 0x%x", va, table)
		}
		copy(buf, b)
		buf, va = buf[n:], va+uint64(n)
	}
	return nil
}
