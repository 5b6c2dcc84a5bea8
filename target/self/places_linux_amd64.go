package self

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/errno"
	"kprobes.dev/kprobes/internal/interval"
	"kprobes.dev/kprobes/internal/symbol"
)

// findPlaces finds the functions and variables of the runtime that a stopped world is
// looked at with.
func (t *Target) findPlaces() error {
	t.places.gate = interval.Range{Start: uint64(gatePC()), End: uint64(gateEndPC())}
	for name, s := range map[string]*interval.Range{
		"runtime.asyncPreempt":  &t.places.async,
		"runtime.asyncPreempt2": &t.places.async2,
		"runtime.allgadd":       &t.places.allgadd,
	} {
		fn, m, err := t.runtimeFunc(name)
		if err != nil {
			return err
		}
		*s = interval.Range{Start: m.Runtime(fn.Addr), End: m.Runtime(fn.End())}
	}
	fn, m, err := t.runtimeFunc("runtime.systemstack_switch")
	if err != nil {
		return err
	}
	gateSwitch = m.Runtime(fn.Addr) + switchBody
	t.places.allgs, err = t.findAllgs()
	return err
}

// switchBody is the length of systemstack_switch's prologue (runtime/asm_amd64.s).
const switchBody = 8

func (t *Target) runtimeFunc(name string) (*symbol.Func, *symbol.Module, error) {
	m := t.Space().Main()
	fns, err := m.Image.Lookup(name)
	if err != nil || len(fns) == 0 {
		return nil, nil, errno.Errorf(unix.EOPNOTSUPP, "go runtime: %s can not be found: %w", name, err)
	}
	return fns[0], m, nil
}

// findAllgs finds the list of all goroutines: by its symbol, or in a stripped program in the
// code of runtime.forEachG, which reads its length and its pointer, two adjacent words.
func (t *Target) findAllgs() (uint64, error) {
	m := t.Space().Main()
	if s, err := m.Image.Data("runtime.allgs"); err == nil {
		if addr := m.Runtime(s.Addr); t.plausibleAllgs(addr) {
			return addr, nil
		}
	}
	fn, m, err := t.runtimeFunc("runtime.forEachG")
	if err != nil {
		return 0, err
	}
	code := make([]byte, fn.Size)
	if err := m.Image.ReadAt(fn.Addr, code); err != nil {
		return 0, err
	}
	refs := amd64.RIPLoads(code, fn.Addr)
	for _, r := range refs {
		for _, o := range refs {
			if addr := m.Runtime(r); o == r+8 && t.plausibleAllgs(addr) {
				return addr, nil
			}
		}
	}
	return 0, errno.Errorf(unix.EOPNOTSUPP, "go runtime: runtime.forEachG does not show the list of goroutines")
}

// plausibleAllgs checks that a slice of at least four goroutines stands at an address, with
// the running one among them.
func (t *Target) plausibleAllgs(addr uint64) bool {
	var head [24]byte
	if t.Read(addr, head[:]) != nil {
		return false
	}
	p, n, c := le.Uint64(head[:]), le.Uint64(head[8:]), le.Uint64(head[16:])
	if p == 0 || n < 2 || n > c || c > 1<<32 {
		return false
	}
	list := make([]byte, 8*n)
	if t.Read(p, list) != nil {
		return false
	}
	for i := uint64(0); i < n; i++ {
		if le.Uint64(list[8*i:]) == currentG() {
			return true
		}
	}
	return false
}

// words are the control block's words that name the tables.
//
//go:nocheckptr
func (h *controlBlock) words() *[4]uint64 { return *(**[4]uint64)(unsafe.Pointer(&h.addr)) }

func readTask(tid int32, name string) ([]byte, error) {
	return os.ReadFile(fmt.Sprintf("/proc/self/task/%d/%s", tid, name))
}

// fitsGate checks the offsets that the gate's assembly has as constants.
func (l *layout) fitsGate() error {
	if l.M != gateM || l.G0 != gateG0 || l.SchedSP != gateSchedSP || l.SchedPC != gateSchedPC || l.SchedBP != gateSchedBP || l.StackLo != 0 || l.ProcID != gateProcID {
		return errno.Errorf(unix.EOPNOTSUPP, "go runtime: the assembly of package self does not fit the layout of Go 1.%d: use a version of kprobes that does", l.Minor)
	}
	gateCurG, gateP = uint64(l.CurG), uint64(l.P)
	gateLocks, gateMallocing, gateBarrier = uint64(l.Locks), uint64(l.Mallocing), uint64(l.WBNext)
	return nil
}
