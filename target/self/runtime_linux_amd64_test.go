package self

import (
	"encoding/binary"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestFindLayout(t *testing.T) {
	l, err := findLayout()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(runtime.Version(), "go1.") || l.Minor < 25 {
		t.Errorf("layout of Go 1.%d in a program of %s", l.Minor, runtime.Version())
	}
	if r := l.runtime(); r.TLS != l.TLS || r.TLS == 0 || r.StackLo != l.StackLo || r.StackHi != l.StackHi ||
		r.M != l.M || r.GoID != l.GoID || r.ProcID != l.ProcID {
		t.Errorf("runtime() of %+v is %+v", l, r)
	}
}

// TestFindLayoutBusy looks for it from many goroutines at once, whose stacks grow, while
// the collector runs.
func TestFindLayoutBusy(t *testing.T) {
	stop := make(chan struct{})
	var collector, wg sync.WaitGroup
	collector.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	})
	for range 8 {
		wg.Go(func() {
			for depth := range 20 {
				deeper(depth*50, func() {
					if _, err := findLayout(); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
	wg.Wait()
	close(stop)
	collector.Wait()
}

// deeper calls f with a deep stack.
func deeper(n int, f func()) int {
	if n == 0 {
		f()
		return 0
	}
	return deeper(n-1, f) + 1
}

func TestFindLayoutUnknown(t *testing.T) {
	for _, version := range []string{"", "go1.99.1", "devel go1.27-1a2b3c4 Thu", "devel +1a2b3c4", "go2"} {
		_, err := findLayoutOf(version)
		if !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "nothing was changed") ||
			!strings.Contains(err.Error(), version) {
			t.Errorf("%q: %v", version, err)
		}
	}
}

// TestFindLayoutOther: another version's layout does not validate.
func TestFindLayoutOther(t *testing.T) {
	own, err := findLayout()
	if err != nil {
		t.Fatal(err)
	}
	for version, minor := range map[string]int{"go1.26": 26, "go1.25": 25, "go1.24": 24} {
		if minor == int(own.Minor) {
			continue
		}
		if _, err := findLayoutOf(version); !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "offset") {
			t.Errorf("%s: %v", version, err)
		}
	}
}

// TestBarriersEntry: the first entry of the buffer is the address at which the buffer would end if it began one word later. That such
// a layout is wrong is found out all the same.
func TestBarriersEntry(t *testing.T) {
	mem, err := openOwnMemory()
	if err != nil {
		t.Fatal(err)
	}
	defer mem.close()
	const next = 4 // in words
	p := new([next + 2 + 512 + 4]uint64)
	addr := uint64(uintptr(unsafe.Pointer(p)))
	entry := func(i uint64) uint64 { return addr + 8*(next+2+i) }
	p[next], p[next+1], p[next+2] = entry(1), entry(512), entry(513)
	for by, ok := range map[int32]bool{0: true, 8: false, -8: false} {
		l := &layout{}
		l.WBNext = 8*next + by
		c := &checker{mem: mem}
		l.checkBarriers(c, addr)
		if (c.err == nil) != ok {
			t.Errorf("p.wbBuf.next %d bytes off: %v", by, c.err)
		}
	}
	runtime.KeepAlive(p)
}

// TestValidateWrong moves each field by some words. All but mallocing are found out.
func TestValidateWrong(t *testing.T) {
	l, err := findLayout()
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]*int32{
		"g.stack.lo": &l.StackLo, "g.stack.hi": &l.StackHi, "g.stackguard0": &l.StackGuard0, "g.m": &l.M,
		"g.sched.sp": &l.SchedSP, "g.sched.pc": &l.SchedPC, "g.sched.bp": &l.SchedBP,
		"g.atomicstatus": &l.Status, "g.goid": &l.GoID, "m.g0": &l.G0, "m.procid": &l.ProcID,
		"m.gsignal": &l.GSignal, "m.curg": &l.CurG, "m.p": &l.P, "m.id": &l.ID, "m.locks": &l.Locks, "p.wbBuf.next": &l.WBNext,
	}
	for name, field := range fields {
		right := *field
		for _, by := range []int32{-24, -16, -8, 8, 16, 24} {
			*field = right + by
			if err := l.validate(); err == nil {
				t.Errorf("%s at %d instead of %d is not found out", name, right+by, right)
			}
		}
		*field = right
		if err := l.validate(); err != nil {
			t.Fatal(err)
		}
	}
	l.ID = l.ProcID
	if err := l.validate(); err == nil {
		t.Error("m.procid as m.id is not found out")
	}
}

// Words that stand for a goroutine, its thread and its stack, at addresses that do not change.
var (
	waitingG, waitingM [512]uint64
	waitingStack       [64]uint64
)

// TestLookParkedMoving: the collector moves the stack of a goroutine that waits, and its thread has to
// wait in the middle of that. What is seen then is no fault of the layout.
func TestLookParkedMoving(t *testing.T) {
	l, err := findLayout()
	if err != nil {
		t.Fatal(err)
	}
	mem, err := openOwnMemory()
	if err != nil {
		t.Fatal(err)
	}
	defer mem.close()
	at := func(w *uint64) uint64 { return uint64(uintptr(unsafe.Pointer(w))) }
	g := func(off int32) *uint64 { return &waitingG[off/8] }
	pc := uint64(reflect.ValueOf(runtime.Gosched).Pointer())
	*g(l.StackLo), *g(l.StackHi) = at(&waitingStack[0]), at(&waitingStack[63])
	*g(l.SchedSP), *g(l.SchedBP), *g(l.SchedPC) = at(&waitingStack[4]), at(&waitingStack[10]), pc
	waitingStack[10], waitingStack[11] = 0, pc
	*g(l.Status) = statusWaiting | statusScan
	s := &seen{g: at(&waitingG[0]), m: at(&waitingM[0])}
	if err := l.lookSched(mem, s.g); err == nil {
		t.Fatal("a frame that is not there is not found out")
	}
	time.AfterFunc(20*time.Millisecond, func() {
		atomic.StoreUint64(&waitingStack[10], at(&waitingStack[20]))
		atomic.StoreUint64(g(l.Status), statusWaiting)
	})
	if err := l.lookParked(mem, s); err != nil {
		t.Error(err)
	}
}

// TestOwnMemory reads by both ways what can and what can not be read.
func TestOwnMemory(t *testing.T) {
	byCall, err := openOwnMemory()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open("/proc/self/mem", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	byFile := &ownMemory{pid: byCall.pid, fd: fd}
	defer byFile.close()
	page, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(page)
	if err := unix.Mprotect(page[4096:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	addr := uint64(uintptr(unsafe.Pointer(&page[0])))
	binary.LittleEndian.PutUint64(page[4088:], 0xfeedface)
	for name, m := range map[string]*ownMemory{"process_vm_readv": byCall, "/proc/self/mem": byFile} {
		var b [8]byte
		if err := m.read(addr+4088, b[:]); err != nil || binary.LittleEndian.Uint64(b[:]) != 0xfeedface {
			t.Errorf("%s: % x, %v", name, b, err)
		}
		for _, bad := range []uint64{0, 8, 1<<63 - 8, 1<<64 - 8} {
			if err := m.read(bad, b[:]); err == nil {
				t.Errorf("%s: 0x%x can be read", name, bad)
			}
		}
	}
	var b [16]byte
	if err := byCall.read(addr+4088, b[:]); err == nil {
		t.Error("half of a field can be read")
	}
}
