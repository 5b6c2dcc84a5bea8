package guest_test

import (
	"slices"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/testguest"
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
