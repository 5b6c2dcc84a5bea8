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
func (a *codeArena) Take(lo, hi uint64, size int) (uint64, error) {
	if a.end-a.at >= uint64(size) && max(hi, a.end)-min(lo, a.at) < native.Reach {
		return a.at, nil
	}
	a.close()
	n := max(size, a.size)
	a.ed.room.Lock()
	defer a.ed.room.Unlock()
	at, err := a.ed.t.Code(lo, hi, n)
	if err != nil {
		return 0, err
	}
	a.at, a.end = at, at+uint64(n)
	return at, nil
}

// Keep implements plan.Room.
func (a *codeArena) Keep(n int) { a.at += uint64(n) }

// close gives the rest back.
func (a *codeArena) close() {
	if a.end > a.at {
		a.ed.free(a.at, int(a.end-a.at))
	}
	a.at, a.end = 0, 0
}

// Span implements plan.Room: the range is the module, if that
// is not too large.
func (a *codeArena) Span(addr uint64) (lo, hi uint64) {
	m := a.ed.t.Space().ModuleAt(addr)
	if m == nil {
		return addr, addr
	}
	if m != a.mod {
		a.mod, a.lo, a.hi = m, addr, addr
		for _, s := range m.Image.Segments() {
			a.lo = min(a.lo, m.Runtime(s.Vaddr))
			a.hi = max(a.hi, m.Runtime(s.Vaddr+s.Memsz))
		}
	}
	if a.hi-a.lo > 1<<30 {
		return addr, addr
	}
	return min(a.lo, addr), max(a.hi, addr)
}

// batchRoom is the room that a batch takes at a time, in bytes.
const batchRoom = 64 << 10

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
