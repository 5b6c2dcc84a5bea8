package guest_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/arch/amd64"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest"
)

// never is a wait that no handler of a test exceeds: what a program in the guest computes then
// does not depend on the machine's load.
const never = time.Minute

// handlers attaches with a wait for handlers.
func handlers(t testing.TB, wait time.Duration, low bool) *probed {
	t.Helper()
	return attach(t, testguest.Shared(t), &guest.Options{Low: low, HandlerWait: wait})
}

// kprobe arms a probe with handlers, and disarms it with the test.
func (p *probed) kprobe(k *kprobes.Kprobe) *kprobes.Kprobe {
	p.Helper()
	if err := p.core.RegisterKprobe(k); err != nil {
		p.Fatalf("%s+%d: %v", k.SymbolName, k.Offset, err)
	}
	return k
}

const getppid = "__x64_sys_getppid"

// TestHandlerCounts compares the runs of handlers with what programs in the guest count, on
// each CPU and on both at once.
func TestHandlerCounts(t *testing.T) {
	for _, low := range []bool{false, true} {
		p := handlers(t, never, low)
		var runs, wrong atomic.Uint64
		pids := make(chan uint64, 4)
		k := p.kprobe(&kprobes.Kprobe{SymbolName: getppid, PreHandler: func(k *kprobes.Kprobe, r *kprobes.Regs) int {
			runs.Add(1)
			if r.IP-k.Addr > 16 || r.Flags&0x200 == 0 { // it stands behind what is the function tracer's
				wrong.Add(1)
			}
			select {
			case pids <- p.t.Task(r):
			default:
			}
			return 0
		}})
		c := p.g.Hit("getppid", 20000, 0)
		p.g.Hit("getppid", 20000, 1)
		if n := runs.Load(); n < 40000 || n > 40010 || wrong.Load() != 0 {
			t.Errorf("low %v: %d runs, %d of them wrong, for 40000 calls", low, n, wrong.Load())
		}
		if pid := <-pids; pid != uint64(c.PID) {
			t.Errorf("low %v: the task is %d, the program says %d", low, pid, c.PID)
		}
		before := runs.Load()
		p.g.Shell("hit getppid 20000 0 >/tmp/a & hit getppid 20000 1 >/tmp/b; wait")
		if n := runs.Load() - before; n < 40000 || n > 40010 {
			t.Errorf("low %v: %d runs for 2 programs that make 40000 calls", low, n)
		}
		if s := k.State(); s.Hits != runs.Load() || s.Misses.Total() != 0 || s.Tactic != "jump" {
			t.Errorf("low %v: %+v, and %d runs", low, s, runs.Load())
		}
		if err := p.t.Close(); !errors.Is(err, unix.EBUSY) {
			t.Errorf("low %v: closed with a probe in place: %v", low, err)
		}
		other := p.kprobe(&kprobes.Kprobe{SymbolName: "vfs_read", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { return 0 }})
		before = runs.Load()
		p.g.Hit("getppid", 100, 0)
		p.g.Hit("read", 100, 0)
		if n := runs.Load() - before; n < 100 || other.State().Hits < 100 || other.NMissed()+k.NMissed() != 0 {
			t.Errorf("low %v: after a close that was refused %d runs, and of a new probe %+v", low, n, other.State())
		}
		p.core.UnregisterKprobes([]*kprobes.Kprobe{k, other})
		before = runs.Load()
		p.g.Hit("getppid", 100, 0)
		if runs.Load() != before {
			t.Errorf("low %v: a handler runs after its probe is gone", low)
		}
		p.close()
	}
}

// TestHandlerLeavesAll puts handlers that change nothing on all instructions that take one of
// functions that a checksum of a file goes through: it comes out the same.
func TestHandlerLeavesAll(t *testing.T) {
	p := handlers(t, never, false)
	sum := func() string {
		return p.g.Shell("for i in 1 2 3; do dd if=/bin/busybox bs=4k 2>/dev/null | md5sum; done")
	}
	want := sum()
	var runs atomic.Uint64
	var all []*kprobes.Kprobe
	for _, fn := range []string{"vfs_read", "ksys_read", "pipe_write"} {
		for off := range uint64(0x180) {
			k := &kprobes.Kprobe{SymbolName: fn, Offset: off, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
				runs.Add(1)
				return 0
			}}
			if p.core.RegisterKprobe(k) == nil {
				all = append(all, k)
			}
		}
	}
	if have := sum(); have != want {
		t.Errorf("with handlers the checksums are\n%swant\n%s", have, want)
	}
	t.Logf("%d probes, %d runs", len(all), runs.Load())
	if len(all) < 50 || runs.Load() < 10000 {
		t.Errorf("only %d probes and %d runs", len(all), runs.Load())
	}
	p.core.UnregisterKprobes(all)
}

// TestHandlerChanges lets handlers change what the guest's program sees: an argument, a result,
// and a function that is not run at all.
func TestHandlerChanges(t *testing.T) {
	p := handlers(t, never, false)
	const calls, made = 1000, 4321
	rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: getppid}, Handler: func(_ *kprobes.KretprobeInstance, r *kprobes.Regs) int {
		r.SetReturnValue(made)
		return 0
	}}
	if err := p.core.RegisterKretprobe(rp); err != nil {
		t.Fatal(err)
	}
	if c := p.g.Hit("getppid", calls, 0); c.OK != calls || c.Bytes != made*calls {
		t.Errorf("result changed: %+v", c)
	}
	p.core.UnregisterKretprobe(rp)
	leave := func(_ *kprobes.Kprobe, r *kprobes.Regs) int {
		r.SetReturnValue(made + 1)
		if r.Return() != nil {
			return 0
		}
		return 1
	}
	var post atomic.Uint64
	k := p.kprobe(&kprobes.Kprobe{SymbolName: getppid, PreHandler: leave, PostHandler: func(*kprobes.Kprobe, *kprobes.Regs, uint64) { post.Add(1) }})
	if c := p.g.Hit("getppid", calls, 1); c.Bytes != (made+1)*calls || post.Load() != 0 {
		t.Errorf("function not run: %+v, %d post handlers", c, post.Load())
	}
	p.core.UnregisterKprobe(k)
	real := p.g.Hit("getppid", calls, 1)
	k = p.kprobe(&kprobes.Kprobe{SymbolName: getppid, PreHandler: leave})
	if c := p.g.Hit("getppid", calls, 1); c.Bytes != real.Bytes {
		t.Errorf("a changed IP has an effect in an optimised probe: %+v, want %+v", c, real)
	}
	p.core.UnregisterKprobe(k)
	k = p.kprobe(&kprobes.Kprobe{SymbolName: "ksys_read", PreHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs) int {
		if r.DX == 1 && r.DI > 2 {
			r.DX = 0
		}
		return 0
	}})
	if c := p.g.Hit("read", calls, 0); c.Calls != calls || c.OK != calls || c.Bytes != 0 {
		t.Errorf("argument changed: %+v", c)
	}
	p.core.UnregisterKprobe(k)
}

// TestHandlerSees looks at the kernel's memory and stack from a handler.
func TestHandlerSees(t *testing.T) {
	p := handlers(t, never, false)
	banner, ok := p.t.Kernel().Addr("linux_banner")
	if !ok {
		t.Fatal("no banner")
	}
	got := make(chan string, 1)
	stack := make(chan []uint64, 1)
	k := p.kprobe(&kprobes.Kprobe{SymbolName: "vfs_read", PreHandler: func(_ *kprobes.Kprobe, r *kprobes.Regs) int {
		select {
		case got <- look(p.t.Memory(), banner, r):
			stack <- slices.Clone(r.Stack(make([]uint64, 64)))
		default:
		}
		return 0
	}})
	p.g.Hit("read", 10, 0)
	p.core.UnregisterKprobe(k)
	for _, sp := range []uint64{0, 1, 8, 1 << 47, 1 << 63, banner &^ 7, ^uint64(0), ^uint64(7)} { // a guest may post any
		for _, ret := range []int{-1, 0, 8, 1 << 20} {
			pcs := make([]uint64, 4)
			if n := p.t.Callers(sp, ret, pcs); n > len(pcs) {
				t.Errorf("%d callers of stack pointer 0x%x", n, sp)
			}
		}
	}
	text := <-got
	for _, pc := range <-stack {
		if l, ok := p.core.Symbol(pc); ok {
			text += "by " + l.Name + "\n"
		}
	}
	for _, want := range []string{"read \"Linux version\" <nil>\n", "nowhere true\n", "code true\n", "read-only true\n", "data <nil>\nby ksys_read\n", "by do_syscall_64\n", "by entry_SYSCALL_64_after_hwframe\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// look tells what reads and writes of a handler do.
func look(m amd64.Memory, banner uint64, r *kprobes.Regs) string {
	var out strings.Builder
	b := make([]byte, 13)
	err := m.Read(banner, b)
	fmt.Fprintf(&out, "read %q %v\n", b, err)
	fmt.Fprintf(&out, "nowhere %v\n", errors.Is(m.Read(1<<40, b), unix.EFAULT))
	fmt.Fprintf(&out, "code %v\n", errors.Is(m.Write(r.IP, b), unix.EACCES))
	fmt.Fprintf(&out, "read-only %v\n", errors.Is(m.Write(banner, b), unix.EACCES))
	var at [8]byte
	err = m.Read(r.SP-8, at[:])
	fmt.Fprintf(&out, "data %v\n", errors.Join(err, m.Write(r.SP-8, at[:])))
	return out.String()
}
