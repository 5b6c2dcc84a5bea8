package mailbox

import (
	"bytes"
	"runtime"
	"strconv"
	"sync"
)

// running are the goroutines that run handlers, with the side whose handler it is.
var running sync.Map // uint64 → Side

// Running is the side of which a handler calls; nil: none does.
func Running() Side {
	s, _ := running.Load(GoID())
	side, _ := s.(Side)
	return side
}

// GoID is the number of the calling goroutine, which the runtime tells in its traces only;
// 0: it does not.
func GoID() uint64 {
	b := make([]byte, 64)
	b = b[:runtime.Stack(b, false)]
	_, b, _ = bytes.Cut(b, []byte(" "))
	b, _, _ = bytes.Cut(b, []byte(" "))
	n, _ := strconv.ParseUint(string(b), 10, 64)
	return n
}
