package guest

import (
	"sync/atomic"
	"unsafe"

	"kprobes.dev/kprobes/internal/arch"
)

// storeWord stores 8 aligned bytes at once, after everything that was stored before.
func storeWord(b []byte, v uint64) { atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[:8][0])), v) }

// threadWords are the words of a task that starts modules (arch.ThreadState): the guest may write to them at any time.
type threadWords []byte

func (w threadWords) state() uint32 { return atomic.LoadUint32(w.statePtr()) }

func (w threadWords) statePtr() *uint32 {
	return (*uint32)(unsafe.Pointer(&w[arch.ThreadState:][:4][0]))
}

// become makes a state of another, unless it is another one by now.
func (w threadWords) become(from, to uint32) bool {
	return atomic.CompareAndSwapUint32(w.statePtr(), from, to)
}

// storeUnserved says whether nobody answers the task any more.
func (w threadWords) storeUnserved(v uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&w[arch.ThreadUnserved:][:4][0])), v)
}

func (w threadWords) long(off int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&w[off:][:8][0])))
}

func (w threadWords) storeLong(off int, v uint64) { storeWord(w[off:], v) }
