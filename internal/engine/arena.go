package engine

import (
	"runtime"
	"sync"
	"sync/atomic"

	"kprobes.dev/kprobes/internal/arch/native"
	"kprobes.dev/kprobes/internal/engine/plan"
	"kprobes.dev/kprobes/internal/symbol"
	"kprobes.dev/kprobes/internal/target"
)

// codeArena is room for the code of several detours, taken from the target at once.
type codeArena struct {
	ed      *editor
	size    int // what is taken at a time
	at, end uint64
	mod     *symbol.Module // that was last asked about, see span
	lo, hi  uint64         // its range
	ops     plan.Ops       // of the function at hand
}

// Take implements plan.Room.
func (y *codeArena) Take(lo, hi uint64, size int) (uint64, error) {
	if y.end-y.at >= uint64(size) && max(hi, y.end)-min(lo, y.at) < native.Reach {
		return y.at, nil
	}
	y.close()
	n := max(size, y.size)
	y.ed.room.Lock()
	defer y.ed.room.Unlock()
	a, err := y.ed.t.Code(lo, hi, n)
	if err != nil {
		return 0, err
	}
	y.at, y.end = a, a+uint64(n)
	return a, nil
}

// Keep implements plan.Room.
func (y *codeArena) Keep(n int) { y.at += uint64(n) }

// close gives the rest back.
func (y *codeArena) close() {
	if y.end > y.at {
		y.ed.free(y.at, int(y.end-y.at))
	}
	y.at, y.end = 0, 0
}

// Span implements plan.Room: the range is the module, if that
// is not too large.
func (y *codeArena) Span(addr uint64) (lo, hi uint64) {
	m := y.ed.t.Space().ModuleAt(addr)
	if m == nil {
		return addr, addr
	}
	if m != y.mod {
		y.mod, y.lo, y.hi = m, addr, addr
		for _, s := range m.Image.Segments() {
			y.lo = min(y.lo, m.Runtime(s.Vaddr))
			y.hi = max(y.hi, m.Runtime(s.Vaddr+s.Memsz))
		}
	}
	if y.hi-y.lo > 1<<30 {
		return addr, addr
	}
	return min(y.lo, addr), max(y.hi, addr)
}

// yardRoom is the room that a batch takes at a time, in bytes.
const yardRoom = 64 << 10

func (ed *editor) free(addr uint64, size int) {
	ed.room.Lock()
	defer ed.room.Unlock()
	ed.t.FreeCode(addr, size)
}

// batchStep is the number of neighbours that one processor takes at a time: they are read
// from the same window of the file.
const batchStep = 16

// each calls f for every number i below n, on several goroutines if that are many. No two
// calls at a time have the same worker, a number below GOMAXPROCS.
func each(n int, f func(worker, i int)) {
	var next atomic.Int64
	work := func(w int) {
		for {
			hi := int(next.Add(batchStep))
			for i := hi - batchStep; i < min(hi, n); i++ {
				f(w, i)
			}
			if hi >= n {
				return
			}
		}
	}
	var wg sync.WaitGroup
	for w := 1; w < runtime.GOMAXPROCS(0) && w*batchStep < n; w++ {
		wg.Go(func() { work(w) })
	}
	work(0)
	wg.Wait()
}

// release gives back the room of detours that were not installed.
func (ed *editor) release(sites []*target.Site) {
	for _, s := range sites {
		ed.free(s.Detour.Addr, s.Room)
	}
}
