package ring

import (
	"sync/atomic"
	"unsafe"
)

// word is the 8-byte word of mem at off, which must be a multiple of 8: the shared
// mapping is page-aligned and so are the layout's fields. An offset outside of mem
// panics here and is a mistake of this package, for offsets never come from the ring.
func word(mem []byte, off uint64) *uint64 {
	_ = mem[off+unit-1]
	return (*uint64)(unsafe.Pointer(&mem[off]))
}

func load(mem []byte, off uint64) uint64 { return atomic.LoadUint64(word(mem, off)) }

func store(mem []byte, off, v uint64) { atomic.StoreUint64(word(mem, off), v) }

// touch writes a word without changing it.
func touch(mem []byte, off uint64) { atomic.AddUint64(word(mem, off), 0) }

func swap(mem []byte, off, old, v uint64) bool {
	return atomic.CompareAndSwapUint64(word(mem, off), old, v)
}

// Addr is where the ring is mapped in this process.
func (r *Ring) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(&r.mem[0]))) }

// bytesOf gives the bytes of words.
func bytesOf(words []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*unit)
}
