package kernel

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/guest/phys"
)

const (
	pageShift = 12
	pageSize  = 1 << pageShift
	largePage = 2 << 20
)

// phys64 reads a word of physical memory.
func phys64(m phys.Memory, pa uint64) (uint64, bool) {
	b := m.Bytes(pa, 8)
	if b == nil {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b), true
}

// Read fills buf with the bytes at a kernel address: text, data, direct map, vmalloc,
// modules. The bytes are copied page by page while the guest may be changing them. The error
// is EFAULT and names the first address that has no page in RAM; buf then holds what came
// before it.
func (k *Kernel) Read(va uint64, buf []byte) error {
	for len(buf) > 0 {
		pa, left, _, ok := k.Translate(va)
		if !ok {
			return k.fault(va)
		}
		n := int(min(left, uint64(len(buf))))
		b := k.mem.Bytes(pa, n)
		if b == nil {
			return errno.Errorf(syscall.EFAULT, "kernel address 0x%x: its page, at physical 0x%x, is not in RAM", va, pa)
		}
		copy(buf, b)
		buf, va = buf[n:], va+uint64(n)
	}
	return nil
}

func (k *Kernel) fault(va uint64) error {
	return errno.Errorf(syscall.EFAULT, "kernel address 0x%x: the guest's kernel has no page there", va)
}

// u64, u32 and u8 read a little-endian number at a kernel address.
func (k *Kernel) u64(va uint64) (uint64, error) {
	var b [8]byte
	err := k.Read(va, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

func (k *Kernel) u32(va uint64) (uint32, error) {
	var b [4]byte
	err := k.Read(va, b[:])
	return binary.LittleEndian.Uint32(b[:]), err
}

// bytes reads n bytes, at most limit.
func (k *Kernel) bytes(va, n, limit uint64, what string) ([]byte, error) {
	if n > limit {
		return nil, errno.Errorf(syscall.EINVAL, "%s at 0x%x: %d bytes, at most %d are read: the guest's memory is damaged or was caught changing", what, va, n, limit)
	}
	b := make([]byte, n)
	if err := k.Read(va, b); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return b, nil
}

// cstring reads a string of less than max bytes.
func (k *Kernel) cstring(va uint64, maxLen int) (string, error) {
	var b []byte
	for len(b) < maxLen {
		n := min(maxLen-len(b), int(pageSize-(va+uint64(len(b)))%pageSize), 64)
		part := make([]byte, n)
		if err := k.Read(va+uint64(len(b)), part); err != nil {
			return "", err
		}
		for i, c := range part {
			if c == 0 {
				return string(append(b, part[:i]...)), nil
			}
		}
		b = append(b, part...)
	}
	return "", errno.Errorf(syscall.EINVAL, "kernel address 0x%x: no string of less than %d bytes", va, maxLen)
}
