package kprobes_test

import (
	"errors"
	"fmt"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/target"
	"kprobes.dev/kprobes/target/process"
)

// spoiled is a process in which the engine's own probes can be made to fail, and that counts what becomes of them.
type spoiled struct {
	*process.Target
	checkOwn  error           // what CheckOwn says
	noFilters error           // what a change says that arms probes on FilterCalls
	calls     map[uint64]bool // where these are
	armed     map[uint64]int  // patches that stand in the process, by address
	put       map[uint64]int  // how often one was put in
	checked   int             // CheckFilters of probes that have just been armed, or could not be
}

var errInjected = errors.New("injected")

func (f *spoiled) CheckOwn() error {
	if f.checkOwn != nil {
		return f.checkOwn
	}
	return f.Target.CheckOwn()
}

func (f *spoiled) FilterCalls() []target.FilterCall {
	out := f.Target.FilterCalls()
	for _, fc := range out {
		f.calls[fc.Place.Addr] = true
	}
	return out
}

func (f *spoiled) CheckFilters(first bool) error {
	if first {
		f.checked++
	}
	return f.Target.CheckFilters(first)
}

func (f *spoiled) Commit(c *target.Change) error {
	others := f.sharers()
	for _, s := range c.All() {
		if f.noFilters != nil && f.calls[s.Addr] && !others[s.Addr] {
			return f.noFilters
		}
	}
	err := f.Target.Commit(c)
	for ; c != nil && c.Made; c = c.Next {
		o := c.Open()
		for _, s := range o.Remove {
			f.armed[s.Addr]--
		}
		for _, s := range o.Add {
			f.armed[s.Addr]++
			f.put[s.Addr]++
		}
	}
	return err
}

// sum adds up what was counted at places.
func sum(places map[uint64]bool, n map[uint64]int) (all int) {
	for at := range places {
		all += n[at]
	}
	return all
}

// sharers are where probes on what makes threads share blocks stand.
func (f *spoiled) sharers() map[uint64]bool {
	out := map[uint64]bool{}
	for _, s := range f.Sharers() {
		out[s.Place.Addr] = true
	}
	return out
}

func openSpoiled(t *testing.T) (*spoiled, *kprobes.Core) {
	t.Helper()
	_, first := attach(t, "conform")
	tg, ok := first.Target().(*process.Target)
	if !ok {
		t.Fatal("not a process")
	}
	f := &spoiled{Target: tg, calls: map[uint64]bool{}, armed: map[uint64]int{}, put: map[uint64]int{}}
	c, err := kprobes.Open(f, nil)
	must(t, err)
	return f, c
}

// TestSharingCheckedAgain: the probes on what makes threads share blocks stand, and the look whether a thread was
// faster fails. The registration is refused; the next one looks again, and arms no second set of them.
func TestSharingCheckedAgain(t *testing.T) {
	f, c := openSpoiled(t)
	k := &kprobes.Kprobe{SymbolName: "target"}
	f.checkOwn = errInjected
	if err := c.RegisterKprobe(k); !errors.Is(err, errInjected) {
		t.Fatalf("the check fails, and registering says %v", err)
	}
	places := f.sharers()
	if n := sum(places, f.armed); n != len(places) || n == 0 {
		t.Fatalf("%d patches at %d places", n, len(places))
	}
	f.checkOwn = nil
	must(t, c.RegisterKprobe(k))
	for at := range places {
		if n := f.put[at]; n != 1 && !f.calls[at] { // where filters come too a second probe was put in
			t.Errorf("%d patches were put in at 0x%x", n, at)
		}
	}
	must(t, c.Close(nil))
	if n := sum(places, f.armed); n != 0 {
		t.Errorf("after Close %d patches stand on what makes threads share blocks", n)
	}
}

// TestFiltersCheckedWithoutWatch: the probes on what brings seccomp filters can not be armed. Whether there is a filter
// is looked at all the same, and the next event tries to arm them again; then nobody does so any more.
func TestFiltersCheckedWithoutWatch(t *testing.T) {
	f, c := openSpoiled(t)
	f.noFilters = errInjected
	watched := func() int { // where there is no other probe of the engine's
		for at := range f.sharers() {
			delete(f.calls, at)
		}
		return sum(f.calls, f.armed)
	}
	for i, fn := range []string{"target", "target2", "sum6", "inner"} {
		if i == 2 {
			f.noFilters = nil
		}
		addEvents(t, c, nil, fmt.Sprintf("p %s a=+0(%%sp):u64", fn))
		stands := watched() > 0
		if want := min(i+1, 3); f.checked != want || stands != (i >= 2) || len(f.calls) == 0 {
			t.Errorf("event %d: filters were looked at %d times, want %d; watched: %v", i+1, f.checked, want, stands)
		}
	}
	must(t, c.Close(nil))
	if n := watched(); n != 0 {
		t.Errorf("after Close %d patches stand on what brings filters", n)
	}
}
