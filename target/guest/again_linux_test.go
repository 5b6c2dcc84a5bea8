package guest_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/arch"
	"kprobes.dev/kprobes/internal/engine"
	"kprobes.dev/kprobes/internal/ring"
	"kprobes.dev/kprobes/internal/testguest"
	"kprobes.dev/kprobes/target/guest"
	"kprobes.dev/kprobes/target/guest/qemu"
)

// TestOwnCalls probes what generated code calls, and what serves its faults: each call is a hit
// or missed, once, and returns that are missed give back what the entries took.
func TestOwnCalls(t *testing.T) {
	p := attach(t, testguest.Shared(t), nil)
	evs := p.add(nil, "r:fix fixup_exception $retval a=+0($arg1):u64", "r:kernel copy_from_kernel_nofault $retval a=+0($arg2):u64")
	calls := p.add(&kprobes.AddOptions{Count: true}, "p:fixes fixup_exception", "p:reads copy_from_kernel_nofault")
	before := p.unequal(calls, evs)
	p.add(nil, "p:open do_sys_openat2 a=+0(%di):x64 b=+0x1000(%ip):x64")
	if c := p.g.Hit("open", 500, 0); c.Calls != 500 {
		t.Fatalf("%+v", c)
	}
	if err := p.core.Sync(); err != nil {
		t.Fatal(err)
	}
	for i, more := range p.unequal(calls, evs) {
		if n := p.core.Counts(evs[i]); n.Unwound+n.Active != 0 || n.Missed < 500 || more != before[i] {
			t.Errorf("%s: %d calls more than hits and missed, before that %d: %+v", evs[i].Name, more, before[i], n)
		}
	}
}

// unequal are the calls of functions less what is known of their returns, at a moment between two looks
// that see the same.
func (p *probed) unequal(calls, returns []*kprobes.Event) []int {
	p.Helper()
	p.poll() // what is read counts
	var last []kprobes.Counts
	for {
		var all []kprobes.Counts
		var out []int
		for i := range calls {
			c, r := p.core.Counts(calls[i]), p.core.Counts(returns[i])
			all = append(all, c, r)
			out = append(out, int(c.Hits)-int(r.Hits+r.Missed))
		}
		if slices.Equal(all, last) {
			return out
		}
		last = all
	}
}

// TestFlushed exchanges two pages in the page tables while a CPU writes to one of them all the time, and never changes its page
// table: from then on it writes to the other.
func TestFlushed(t *testing.T) {
	g := testguest.Boot(t, nil)
	p := attach(t, g, nil)
	id := engine.OfEvent(p.add(&kprobes.AddOptions{Count: true}, "p "+getppid)[0]).ID
	g.Shell("hit getppid 1000000000 1 >/dev/null 2>&1 </dev/null &")
	r := p.t.Ring()
	const page = 2 << 20
	at := r.ShardOff(1) + r.CounterOff(id) + ring.CtrHits
	from, to := int(at/page), int(r.Size()/page)-1
	if from == to {
		t.Fatalf("the ring has %d pages", to+1)
	}
	eventually(t, "hit", func() bool { return r.Sum(id).Hits > 1000 })
	var old, now *uint64
	var was, start uint64
	if err := p.m.Stopped(func(s *qemu.Stop) error {
		a, b := p.t.Swap(from, to)
		old, now = (*uint64)(unsafe.Pointer(&a[at%page])), (*uint64)(unsafe.Pointer(&b[at%page]))
		was, start = atomic.LoadUint64(old), atomic.LoadUint64(now)
		return s.FlushTLBs()
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "hit", func() bool { return atomic.LoadUint64(now) > start+1000 || atomic.LoadUint64(old) != was })
	if n := atomic.LoadUint64(old); n != was {
		t.Errorf("%d hits were counted where the page tables do not lead any more", n-was)
	}
}

// TestAgainElsewhere takes probes out and puts a handler in, in a guest of which a CPU runs one program all the time. The mailbox
// is where the ring was that the CPU wrote to.
func TestAgainElsewhere(t *testing.T) {
	g := testguest.Boot(t, nil)
	const first, page = 100, 2 << 20
	guest.PickFree(t, first)
	p := attach(t, g, nil)
	ev := p.add(nil, "p "+getppid)[0]
	r := p.t.Ring()
	shard := int(r.Stride / page)
	if r.Stride%page != 0 || r.ShardOff(0)%page != arch.MailSlotsOff {
		t.Fatalf("no page of the ring is where one of the mailbox could be: the shards have %d bytes from %d on", r.Stride, r.ShardOff(0))
	}
	mailbox, ring := p.t.Parts()
	g.Shell("hit getppid 1000000000 1 >/dev/null 2>&1 </dev/null &")
	eventually(t, "hit", func() bool { return p.core.Counts(ev).Hits > 0 })
	p.close()
	guest.PickFree(t, first+int(ring-mailbox)/page+shard)
	q := attach(t, g, &guest.Options{HandlerWait: never})
	var runs atomic.Uint64
	q.kprobe(&kprobes.Kprobe{SymbolName: getppid, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
		runs.Add(1)
		return 0
	}})
	eventually(t, "run of the handler", func() bool { return runs.Load() > 10 })
	q.close()
}
