package guest

import (
	"sync/atomic"
	"unsafe"
)

// storeWord stores 8 aligned bytes at once, after everything that was stored before.
func storeWord(b []byte, v uint64) { atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[:8][0])), v) }
