package kprobes_test

import (
	"errors"
	"fmt"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/internal/target"
	"kprobes.dev/kprobes/target/process"
)

// spoiled is a process in which the engine's own probes can be made to fail, and that counts what becomes of them.
type spoiled struct {
	*process.Target
	checkOwn  error           // what CheckOwn says
	noFilters error           // what a change says that arms probes on FilterCalls
	cut       error           // what is said once in place of the next change that follows another in its stop
	calls     map[uint64]bool // where these are
	armed     map[uint64]int  // patches that stand in the process, by address
	put       map[uint64]int  // how often one was put in
	checked   int             // CheckFilters of probes that have just been armed, or could not be
}

var errInjected = errors.New("injected")

func (f *spoiled) Capabilities() target.Capabilities {
	can := f.Target.Capabilities()
	can.Sharer, can.Filterer, can.Sequencer = f, f, f
	return can
}

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
		sharing := others[s.Addr] && f.armed[s.Addr] == 0 // only the probes on what makes threads share blocks, if no other is in the change
		if f.noFilters != nil && f.calls[s.Addr] && !sharing {
			return f.noFilters
		}
	}
	rest := c.Next
	if f.cut != nil {
		c.Next = nil
	}
	err := f.Target.Commit(c)
	if f.cut != nil {
		if c.Next = rest; rest != nil && err == nil {
			err, f.cut = f.cut, nil
		}
	}
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

// TestSharingCheckedInShared: an event in a function that has a probe of the engine's own is not armed either where the look
// whether a thread was faster fails.
func TestSharingCheckedInShared(t *testing.T) {
	f, c := openSpoiled(t)
	k := &kprobes.Kprobe{SymbolName: "vfork"}
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
	must(t, c.Close(nil))
	if n := sum(places, f.armed); n != 0 {
		t.Errorf("after Close %d patches stand on what makes threads share blocks", n)
	}
}

// TestSecondChangeNotMade: of two changes of one stop the first is made, and the second is not. What was made counts: an
// addition that failed arms no second set of the engine's own probes, and Close takes out what stands, once.
func TestSecondChangeNotMade(t *testing.T) {
	blocked := &target.BusyError{Why: "injected"}
	for name, cut := range map[string]error{"refused": errInjected, "blocked": blocked} {
		t.Run(name, func(t *testing.T) {
			f, c := openSpoiled(t)
			k := &kprobes.Kprobe{SymbolName: "target"}
			f.cut = cut
			err := c.RegisterKprobe(k)
			if f.cut != nil {
				t.Fatal("there were no two changes")
			}
			if !errors.Is(err, errInjected) && name == "refused" || err != nil && name == "blocked" {
				t.Fatalf("registering says %v", err)
			}
			places := f.sharers()
			if n := sum(places, f.armed); n != len(places) || n == 0 {
				t.Fatalf("%d patches at %d places", n, len(places))
			}
			if err != nil {
				must(t, c.RegisterKprobe(k))
			}
			for at := range places {
				if n := f.put[at]; n != 1 {
					t.Errorf("%d patches were put in at 0x%x", n, at)
				}
			}
			f.cut = cut
			if err := c.Close(nil); !errors.Is(err, errInjected) && name == "refused" || err != nil && name == "blocked" {
				t.Fatalf("Close says %v", err)
			}
			if f.cut != nil {
				t.Error("Close made no two changes")
			}
			for at, n := range f.armed {
				if own := (places[at] || f.calls[at]) && name == "refused"; own && n != 1 || !own && n != 0 {
					t.Errorf("after Close %d patches stand at 0x%x", n, at)
				}
			}
			must(t, c.Close(nil)) // what was refused is taken out now
			for at, n := range f.armed {
				if n != 0 {
					t.Errorf("%d patches stay at 0x%x", n, at)
				}
			}
		})
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
		if places := f.sharers(); sum(places, f.armed) != len(places) || len(places) == 0 {
			t.Errorf("event %d: %d patches on %d functions that make threads share blocks", i+1, sum(places, f.armed), len(places))
		}
	}
	must(t, c.Close(nil))
	if n := watched(); n != 0 {
		t.Errorf("after Close %d patches stand on what brings filters", n)
	}
}
