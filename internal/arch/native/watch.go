package native

import "kprobes.dev/kprobes/internal/arch/amd64"

// Watchpoints is how many watchpoints a processor has at a time.
const Watchpoints = amd64.Watchpoints

// Accessor finds the instruction that has accessed memory, of which a watchpoint tells that next is to run now. code is that
// of the function at addr which next lies in; reads says that the watchpoint waits for reads too.
func Accessor(code []byte, addr, next uint64, reads bool) (at uint64, ok bool) {
	return amd64.Accessor(code, addr, next, reads)
}
