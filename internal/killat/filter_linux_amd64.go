package killat

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// envCalls names the system calls that are points, to the program.
const envCalls = "KILLAT_CALLS"

// variable tells the program which system calls are points.
func (p *Program) variable() string {
	var nrs []string
	for _, nr := range p.Calls {
		nrs = append(nrs, strconv.FormatUint(nr, 10))
	}
	return envCalls + "=" + strings.Join(nrs, " ")
}

// filtered has the kernel stop the calling program at the system calls that are points, and at
// none between them, if the injector has asked for that.
var filtered = sync.OnceFunc(func() {
	nrs := strings.Fields(os.Getenv(envCalls))
	if len(nrs) == 0 {
		return
	}
	// The number of the call is the first word of what a filter is given.
	load := unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}
	filter := []unix.SockFilter{load}
	for _, s := range append(nrs, strconv.Itoa(unix.SYS_PRCTL)) { // by which Mark tells the phase
		nr, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			panic(err)
		}
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: uint32(nr)},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_TRACE})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: unsafe.SliceData(filter)}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if e != 0 {
		panic(fmt.Sprintf("seccomp: %v", e))
	}
})
