package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"

	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/fetch"
	"kprobes.dev/kprobes/internal/target"
)

func handledProgram(t testing.TB, flags ...string) *running {
	t.Helper()
	return run(t, build(t, "handled", flags...))
}

// leafHash is what the program's leaf computes of a if nothing changes its registers.
func leafHash(a uint64) uint64 {
	sum := a + a + 1 + a + 2 + a + 3
	for i, f := range []uint64{3, 5, 7, 11, 13, 17, 19, 23} {
		sum += (a + uint64(i)) * f
	}
	return sum
}

// A handler is given the very arguments, and what it changes is what the program computes
// with; what it does not change stays as it was: all registers and flags.
func TestHandlerRegisters(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	var seen amd64.Regs
	var tid uint64
	change := func(*amd64.Regs) {}
	h.handle("add", func(r *amd64.Regs) arch.Action {
		seen = *r
		tid = h.tg.Task(r)
		change(r)
		return arch.ActionGo
	})
	h.want("add 40 2", "ok 42")
	_, at := h.function("add")
	if seen.DI != 40 || seen.SI != 2 || seen.IP != at.Addr {
		t.Errorf("registers seen: %+v", seen)
	}
	if tid != uint64(h.PID) {
		t.Errorf("thread %d, want %d", tid, h.PID)
	}
	h.want("leaf 1000", fmt.Sprintf("ok %d", leafHash(1000)))
	if seen.R8 != 1004 || seen.R11 != 1007 || seen.X[7][0] != 1002 || seen.X[15][0] != 1003 || seen.Flags&1 != 1 {
		t.Errorf("registers seen: %+v", seen)
	}
	for _, f := range []uint64{0, 0x8d5, 0x801, 0x44} {
		h.want(fmt.Sprint("flags ", f), fmt.Sprint("ok ", f))
		if seen.Flags&0x8d5 != f {
			t.Errorf("flags %#x are seen as %#x", f, seen.Flags)
		}
	}
	change = func(r *amd64.Regs) { r.Flags ^= 0x8d5 }
	h.want("flags 2049", fmt.Sprint("ok ", 0x8d5^0x801))
	h.want("flags 0", fmt.Sprint("ok ", 0x8d5))
	change = func(r *amd64.Regs) { r.DI, r.SP = 1000, 0 } // the stack pointer is not for ActionGo
	h.want("add 40 2", "ok 1002")
	change = func(r *amd64.Regs) {
		for _, p := range []*uint64{&r.DX, &r.CX, &r.R8, &r.R9, &r.R10, &r.R11} {
			*p++
		}
		r.X[7][0] += 100
		r.X[15][0] += 1000
	}
	h.want("leaf 1000", fmt.Sprintf("ok %d", leafHash(1000)+7+11+13+17+19+23+1100))
	h.disarm()
	h.want("leaf 1000", fmt.Sprintf("ok %d", leafHash(1000)))
}

func TestHandlerVectorsAndMemory(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	h.handle("scale", func(r *amd64.Regs) arch.Action {
		if x := math.Float64frombits(r.X[0][0]); x != 1.5 {
			t.Errorf("x is %v", x)
		}
		r.X[1][0] = math.Float64bits(4)
		return arch.ActionGo
	})
	h.want("scale 1.5 3", "ok 6")
	var failed, wrote, bad error
	th := &target.Handler{}
	th.Run = plain(func(r *amd64.Regs) arch.Action {
		var b [8]byte
		failed = th.Point.Mem.Read(r.DI, b[:])
		n := binary.LittleEndian.Uint64(b[:])
		wrote = th.Point.Mem.Write(r.DI, binary.LittleEndian.AppendUint64(nil, n+1))
		bad = errors.Join(th.Point.Mem.Read(16, b[:]), th.Point.Mem.Write(16, b[:]))
		return arch.ActionGo
	})
	h.arm("get", &arch.ProbeOp{Role: arch.RoleCall, Call: h.callOf(th)}, nil)
	h.want("get 41", "ok 42")
	if failed != nil || wrote != nil || !errors.Is(bad, ErrFault) {
		t.Errorf("memory: read %v, write %v, bad address %v", failed, wrote, bad)
	}
}

// order tells the race detector what it can not see: that a handler runs after the command
// that the program was given, and before its answer.
var order atomic.Uint64

// plain makes a handler's function of one that asks for no instance.
func plain(f func(*amd64.Regs) arch.Action) func(*amd64.Regs, uint64) arch.Action {
	return func(r *amd64.Regs, _ uint64) arch.Action {
		order.Add(1)
		defer order.Add(1)
		return f(r)
	}
}

// A handler may let the function return at once, or go on elsewhere: with its stack pointer,
// flags and all registers.
func TestHandlerLeaves(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	_, add := h.function("add")
	th := &target.Handler{}
	th.Run = plain(func(r *amd64.Regs) arch.Action {
		var b [8]byte
		if err := th.Point.Mem.Read(r.SP, b[:]); err != nil {
			t.Error(err)
		}
		r.AX, r.IP, r.SP = 77, binary.LittleEndian.Uint64(b[:]), r.SP+8
		return arch.ActionLeave
	})
	h.arm("parity", &arch.ProbeOp{Role: arch.RoleCall, Call: h.callOf(th)}, nil)
	for range 100 {
		h.want("parity 4", "ok 77")
	}
	h.handle("get", func(r *amd64.Regs) arch.Action { // get(&record) becomes add(5, 6)
		r.DI, r.SI, r.IP = 5, 6, add.Addr
		return arch.ActionLeave
	})
	h.want("get 1", "ok 11")
	bad := 0
	h.handle("scale", func(r *amd64.Regs) arch.Action {
		if bad++; bad == 1 {
			r.SP = 4096
		} else {
			r.IP = 16
		}
		return arch.ActionLeave
	})
	for range 3 {
		h.want("scale 2 3", "ok 6")
	}
	if bad != 1 {
		t.Errorf("a handler that leaves for nowhere has run %d times, want once", bad)
	}
}

// Each hit is a run of the handler, from many threads at once.
func TestHandlerCounts(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	var runs atomic.Uint64
	c := h.handle("add", func(r *amd64.Regs) arch.Action {
		runs.Add(1)
		return arch.ActionGo
	})
	const n = 8 * 1000
	h.want("go 8 1000", fmt.Sprintf("ok %d 0", n))
	m := h.tg.Missed(c)
	if runs.Load() != n || m != (target.Missed{}) {
		t.Errorf("%d runs, %+v missed, the program counts %d", runs.Load(), m, n)
	}
}

// Callers walks the frame pointers.
func TestHandlerCallers(t *testing.T) {
	h := handle(t, handledProgram(t, "-fno-omit-frame-pointer"), never)
	_, add := h.function("add")
	pcs := make([]uint64, 16)
	n := 0
	th := &target.Handler{Point: amd64.Point{Addr: add.Addr}}
	th.Run = plain(func(r *amd64.Regs) arch.Action {
		n = th.Point.Callers(r, pcs)
		return arch.ActionGo
	})
	h.arm("add", &arch.ProbeOp{Role: arch.RoleCall, Call: h.callOf(th)}, nil)
	h.want("add 1 2", "ok 3")
	if n < 2 {
		t.Fatalf("%d callers", n)
	}
	for i, name := range []string{"call", "main"} {
		_, at := h.function(name)
		if pcs[i]-at.Addr >= at.Func.Size {
			t.Errorf("caller %d is 0x%x, want one in %s at 0x%x", i, pcs[i], name, at.Addr)
		}
	}
}

// The handlers of a return probe are given the call's instance, the same at its entry and
// its return, and what the one at the return changes is the result.
func TestHandlerOfReturn(t *testing.T) {
	h := handle(t, handledProgram(t), never)
	var mu sync.Mutex
	open := map[uint64]uint64{}
	entries, returns := 0, 0
	drop, change, fail := false, false, false
	entry := h.callOf(&target.Handler{Run: func(r *amd64.Regs, instance uint64) arch.Action {
		mu.Lock()
		defer mu.Unlock()
		if fail {
			panic("on purpose")
		}
		if drop {
			return arch.ActionDrop
		}
		if _, ok := open[instance]; ok || instance == 0 {
			t.Errorf("instance 0x%x is given twice", instance)
		}
		open[instance] = r.DI
		entries++
		return arch.ActionGo
	}})
	exit := h.callOf(&target.Handler{Run: func(r *amd64.Regs, instance uint64) arch.Action {
		mu.Lock()
		defer mu.Unlock()
		if _, ok := open[instance]; !ok {
			t.Errorf("instance 0x%x has no entry", instance)
		}
		if change {
			r.AX = 10 * open[instance]
		}
		delete(open, instance)
		returns++
		return arch.ActionGo
	}})
	pool, err := h.tg.Pool(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	prog := &fetch.Program{}
	h.arm("add", &arch.ProbeOp{Role: arch.RoleEntry, Pool: pool, Prog: prog, Call: entry}, &arch.ProbeOp{Role: arch.RoleExit, Pool: pool, Prog: prog, Call: exit})
	h.want("go 4 200", "ok 800 0")
	mu.Lock()
	if entries != 800 || returns != 800 || len(open) != 0 {
		t.Errorf("%d entries, %d returns, %d open", entries, returns, len(open))
	}
	change = true
	mu.Unlock()
	h.want("add 4 2", "ok 40")
	mu.Lock()
	drop = true
	mu.Unlock()
	h.want("add 4 2", "ok 6")
	mu.Lock()
	if returns != 801 {
		t.Errorf("%d returns: that of a call that was let go is one", returns)
	}
	drop, fail = false, true
	mu.Unlock()
	h.want("go 1 3", "ok 3 0") // the handler panics, and is switched off
	mu.Lock()
	if m := h.tg.Missed(entry); m.Stopped != 2 || returns != 801 {
		t.Errorf("%+v missed, %d returns: that of a call whose entry was missed is one", m, returns)
	}
	mu.Unlock()
}
