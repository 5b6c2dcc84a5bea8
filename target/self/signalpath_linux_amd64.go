package self

import (
	"kprobes.dev/kprobes/internal/codescan"
	"kprobes.dev/kprobes/internal/symbol"
)

// signalPath finds the functions that may run while the thread's SIGTRAP is blocked: no breakpoint may stand in them.
func signalPath(sp *symbol.Space) (map[uint64]string, error) {
	mem, err := openOwnMemory()
	if err != nil {
		return nil, err
	}
	defer mem.close()
	return codescan.SignalPath(sp, mem.read)
}
