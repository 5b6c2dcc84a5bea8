//go:build !race

// Atomic handlers are not to be had under the race detector.

package kprobes_test

import (
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/arch/amd64"
)

//go:noinline
func faulty(a int) int { return a + 1 }

// lockedError can not tell its text.
type lockedError struct{ never chan bool }

func (e lockedError) Error() string { <-e.never; return "" }

var (
	anyText any = struct {
		n int
		s string
	}{7, "x"}
	lockedText any = lockedError{make(chan bool)}
)

// A handler that goes wrong is abandoned, and its probe is disabled with the reason.
func TestSelfHandlerFails(t *testing.T) {
	var nothing *int
	var none map[string]int
	var some []int
	wrapped := fmt.Errorf("wrapped: %w", os.ErrClosed)
	for name, bad := range map[string]func(){
		"panic: wrapped: file already closed": func() { panic(wrapped) },
		"panic: {7 x}":                        func() { panic(anyText) },
		"panic of a kprobes_test.lockedError, which does not tell its text": func() { panic(lockedText) },
		"nil dereference": func() { *nothing = 1 },
		"panic":           func() { panic("on purpose") },
		"nil map":         func() { none["x"] = 1 },
		"index":           func() { some[faulty(3)] = 1 },
		"division":        func() { some = make([]int, 1/len(some)) },
		"assertion":       func() { _ = any(some).(string) },
	} {
		t.Run(name, func(t *testing.T) {
			const fn = "kprobes.dev/kprobes_test.faulty"
			runs := 0
			k := &kprobes.Kprobe{SymbolName: fn, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
				runs++
				bad()
				runs += 100
				return 0
			}}
			if err := kprobes.RegisterKprobe(k); err != nil {
				t.Fatal(err)
			}
			defer kprobes.UnregisterKprobe(k)
			for i := range 10 {
				if faulty(i) != i+1 {
					t.Error("the probed function computes something else")
				}
			}
			if runs != 1 {
				t.Errorf("%d runs of the handler, want 1", runs)
			}
			err := k.Fault()
			if s := k.State(); err != nil && (!s.Disabled || !s.Registered) {
				t.Errorf("the handler went wrong, and the state is %+v", s)
			}
			t.Log(err)
			if err == nil || !strings.Contains(err.Error(), "disabled") || strings.HasPrefix(name, "panic") && !strings.Contains(err.Error(), name) {
				t.Errorf("fault: %v", err)
			}
		})
	}
}

// The first instruction of these reads what the argument points to.
//
//go:noinline
func readAt(p *int) int { return *p }

//go:noinline
func readThere(p *int) int { return *p + 1 }

var (
	faultTraps [8]int
	faultCount int
	faultIP    uint64
	good       = 42
)

// note runs where nothing may be allocated.
func note(r *kprobes.Regs, trap int) {
	if faultCount < len(faultTraps) {
		faultTraps[faultCount] = trap
	}
	faultCount++
	faultIP = r.IP
}

// TestSelfFaultHandler: a fault of the probed instruction itself is told to the fault handler
// with the trap number; when it has dealt with it the thread goes on where it says.
func TestSelfFaultHandler(t *testing.T) {
	const fn = "kprobes.dev/kprobes_test.readAt"
	for _, c := range []struct {
		name   string
		at     uintptr
		trap   int
		handle func(r *kprobes.Regs) int
		want   int
	}{
		{"repaired", 0, 14, func(r *kprobes.Regs) int { r.AX = uint64(uintptr(unsafe.Pointer(&good))); return 1 }, 42},
		{"protection", 1 << 63, 13, func(r *kprobes.Regs) int { r.AX = uint64(uintptr(unsafe.Pointer(&good))); return 1 }, 42},
		{"left", 8, 14, func(r *kprobes.Regs) int { r.Return(); r.AX = 7; return 1 }, 7},
		{"not dealt with", 0, 14, func(*kprobes.Regs) int { return 0 }, -1},
	} {
		for _, pre := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, pre=%t", c.name, pre), func(t *testing.T) {
				k := &kprobes.Kprobe{SymbolName: fn, FaultHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs, trap int) int {
					note(r, trap)
					return c.handle(r)
				}}
				if pre {
					k.PreHandler = func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }
				}
				if err := kprobes.RegisterKprobe(k); err != nil {
					t.Fatal(err)
				}
				defer kprobes.UnregisterKprobe(k)
				faultCount = 0
				for range 3 {
					if got := readOr(*(**int)(unsafe.Pointer(&c.at)), -1); got != c.want {
						t.Errorf("%d, want %d", got, c.want)
					}
				}
				if faultCount != 3 || !slices.Equal(faultTraps[:3], []int{c.trap, c.trap, c.trap}) || faultIP != k.Addr {
					t.Errorf("%d faults: %d at 0x%x, want 3 of %d at 0x%x", faultCount, faultTraps, faultIP, c.trap, k.Addr)
				}
				if s := k.State(); s.Hits != 3 || s.Misses.Total() != 0 || s.Disabled || k.Fault() != nil {
					t.Errorf("%+v, %v", s, k.Fault())
				}
				if got := readAt(&good); got != good {
					t.Errorf("%d", got)
				}
			})
		}
	}
}

// readOr calls readAt, which may panic.
func readOr(p *int, other int) (got int) {
	defer func() {
		if err := recover(); err != nil {
			if !strings.Contains(fmt.Sprint(err), "nil pointer dereference") {
				panic(err)
			}
			got = other
		}
	}()
	return readAt(p)
}

//go:noinline
func callFunc(f func() int) int { return f() + 1 }

// badFunc is a function value whose code is at no address.
var badFunc = &struct{ code uint64 }{1 << 63}

// TestSelfFaultHandlerCall: an indirect call is copied as a push and a jump. When the jump faults
// the handler has the registers, the stack pointer too, that the call has.
func TestSelfFaultHandlerCall(t *testing.T) {
	goodFunc := func() int { return good }
	callee := *(*uint64)(unsafe.Pointer(&goodFunc))
	code := *(*uint64)(*(*unsafe.Pointer)(unsafe.Pointer(&goodFunc)))
	for _, answer := range []int{0, 1} {
		t.Run(fmt.Sprint("answer ", answer), func(t *testing.T) {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			var sp, faultSP uint64
			k := &kprobes.Kprobe{
				SymbolName: "kprobes.dev/kprobes_test.callFunc", Offset: callOffset(t, callFunc),
				PreHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs) int { sp = r.SP; return 0 },
				FaultHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs, trap int) int {
					note(r, trap)
					faultSP = r.SP
					if answer == 1 { // whichever register is called: none of these is kept over a call
						r.AX, r.BX, r.CX, r.SI, r.DI, r.R8, r.DX = code, code, code, code, code, code, callee
					}
					return answer
				},
			}
			if err := kprobes.RegisterKprobe(k); err != nil {
				t.Fatal(err)
			}
			defer kprobes.UnregisterKprobe(k)
			faultCount = 0
			want := -1
			if answer == 1 {
				want = good + 1
			}
			for range 3 {
				if got := callOr(*(*func() int)(unsafe.Pointer(&badFunc)), -1); got != want {
					t.Errorf("%d, want %d", got, want)
				}
			}
			if faultCount != 3 || !slices.Equal(faultTraps[:3], []int{13, 13, 13}) || faultIP != k.Addr || faultSP != sp {
				t.Errorf("%d faults: %d at 0x%x, stack pointer 0x%x, want 3 of 13 at 0x%x, 0x%x", faultCount, faultTraps, faultIP, faultSP, k.Addr, sp)
			}
			if s := k.State(); s.Hits != 3 || s.Misses.Total() != 0 || s.Disabled || k.Fault() != nil {
				t.Errorf("%+v, %v", s, k.Fault())
			}
			if got := callFunc(goodFunc); got != good+1 {
				t.Errorf("%d", got)
			}
		})
	}
}

// callOffset finds the first indirect call of a function.
func callOffset(t *testing.T, f func(func() int) int) uint64 {
	t.Helper()
	text := unsafe.Slice((*byte)(*(*unsafe.Pointer)(*(*unsafe.Pointer)(unsafe.Pointer(&f)))), 64)
	for off := 0; off < len(text); {
		in, err := amd64.Decode(text[off:])
		if err != nil {
			t.Fatal(err)
		}
		if in.Kind == amd64.KindCallInd {
			return uint64(off)
		}
		off += int(in.Len)
	}
	t.Fatal("no indirect call")
	return 0
}

// callOr calls callFunc, which may panic.
func callOr(f func() int, other int) (got int) {
	defer func() {
		if err := recover(); err != nil {
			if !strings.Contains(fmt.Sprint(err), "invalid memory address") {
				panic(err)
			}
			got = other
		}
	}()
	return callFunc(f)
}

// TestSelfFaultHandlersShare: of several probes at an instruction only the one whose handler
// goes wrong has its fault handler called; of a fault of the instruction they are told in turn,
// until one deals with it.
func TestSelfFaultHandlersShare(t *testing.T) {
	const fn = "kprobes.dev/kprobes_test.readThere"
	var nothing *int
	bad := true
	var asked [3]int
	var trapped [3]int
	var ks []*kprobes.Kprobe
	for i := range asked {
		k := &kprobes.Kprobe{SymbolName: fn}
		k.PreHandler = func(*kprobes.Kprobe, *kprobes.Regs) int {
			if i == 1 && bad {
				*nothing = 1
			}
			return 0
		}
		k.FaultHandler = func(_ *kprobes.Kprobe, r *kprobes.Regs, trap int) int {
			asked[i]++
			trapped[i] = trap
			if r.AX == 0 && i == 1 {
				r.AX = uint64(uintptr(unsafe.Pointer(&good)))
				return 1
			}
			if r.AX != 0 {
				return 1 // of a handler
			}
			return 0
		}
		ks = append(ks, k)
	}
	if err := kprobes.RegisterKprobes(ks); err != nil {
		t.Fatal(err)
	}
	defer kprobes.UnregisterKprobes(ks)
	if got := readThere(&good); got != good+1 || asked != [3]int{0, 1, 0} || trapped[1] != 14 {
		t.Errorf("%d; a fault in the second probe's handler is told to %d", got, asked)
	}
	asked, bad = [3]int{}, false
	if got := readThere(nothing); got != good+1 || asked != [3]int{1, 1, 0} || trapped[0] != 14 {
		t.Errorf("%d; a fault of the instruction is told to %d", got, asked)
	}
	for i, k := range ks {
		if s := k.State(); s.Hits != 2 || s.Disabled || k.Fault() != nil {
			t.Errorf("probe %d: %+v, %v", i, s, k.Fault())
		}
	}
}

// TestSelfSignalSent: a signal of a fault that somebody sends while a handler runs is the program's,
// and no failure of the handler.
func TestSelfSignalSent(t *testing.T) {
	pid := os.Getpid()
	for _, sig := range []unix.Signal{unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL} {
		t.Run(sig.String(), func(t *testing.T) {
			got := make(chan os.Signal, 10)
			signal.Notify(got, sig)
			defer signal.Stop(got)
			runs := 0
			k := &kprobes.Kprobe{SymbolName: "kprobes.dev/kprobes_test.faulty", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
				tid, _, _ := unix.RawSyscall(unix.SYS_GETTID, 0, 0, 0)
				if _, _, e := unix.RawSyscall(unix.SYS_TGKILL, uintptr(pid), tid, uintptr(sig)); e == 0 {
					runs++
				}
				return 0
			}}
			if err := kprobes.RegisterKprobe(k); err != nil {
				t.Fatal(err)
			}
			defer kprobes.UnregisterKprobe(k)
			for i := range 3 {
				_ = faulty(i)
				select {
				case <-got:
				case <-time.After(time.Minute):
					t.Fatalf("the signal is lost: %d runs of the handler, %+v, %v", runs, k.State(), k.Fault())
				}
			}
			if s := k.State(); runs != 3 || s.Hits != 3 || s.Disabled || k.Fault() != nil {
				t.Errorf("%d runs, %+v, %v", runs, s, k.Fault())
			}
		})
	}
}
