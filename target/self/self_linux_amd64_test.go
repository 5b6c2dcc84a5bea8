package self_test

import (
	"runtime"
	"sync"
	"testing"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/event"
	"kprobes.dev/kprobes/target/self"
)

//go:noinline
func leaf(a, b int) int { return a*3 + b }

//go:noinline
func work(n int) int {
	s := 0
	for i := range n {
		s += leaf(i, s&7)
	}
	return s
}

func open(t *testing.T) *kprobes.Core {
	t.Helper()
	st, err := self.Attach(nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := kprobes.Open(st, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(nil); err != nil {
			t.Error(err)
		}
	})
	return c
}

func add(t *testing.T, c *kprobes.Core, text string, count bool) *kprobes.Event {
	t.Helper()
	d, err := event.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	es, err := c.Add([]*event.Def{d}, &kprobes.AddOptions{Count: count})
	if err != nil {
		t.Fatal(err)
	}
	return es[0]
}

func TestCount(t *testing.T) {
	c := open(t)
	const pkg = "kprobes.dev/kprobes/target/self_test."
	e := add(t, c, "p:leaf "+pkg+"leaf", true)
	want := work(1000)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				if work(1000) != want {
					t.Error("a probed function computes something else")
				}
			}
		})
	}
	for range 20 {
		runtime.GC()
		f := add(t, c, "p:again "+pkg+"leaf $arg1", false)
		if err := c.Remove([]*kprobes.Event{f}); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	n := c.Counts(e)
	tactic, _ := e.Form()
	t.Logf("%v %+v", tactic, n)
	if n.Hits != 8*1000*1000+1000 {
		t.Errorf("%d hits", n.Hits)
	}
}
