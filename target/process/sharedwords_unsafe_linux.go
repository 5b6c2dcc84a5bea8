package process

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Load reads a word.
func (m *sharedMemory) Load(off uint64) uint64 {
	defer runtime.KeepAlive(m)
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&m.mem[off:][:8][0])))
}

// Store writes a word.
func (m *sharedMemory) Store(off, v uint64) {
	defer runtime.KeepAlive(m)
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&m.mem[off:][:8][0])), v)
}
