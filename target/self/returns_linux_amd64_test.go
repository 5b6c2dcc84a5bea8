package self_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kprobes.dev/kprobes"
)

func init() { children["returns"] = returns }

// leaving returns n+1 in the ways that there are, or does not return: in the words below by
// its callers.
//
//go:noinline
func leaving(how, n int) (r int) {
	switch how {
	case leavePanic:
		panic("left")
	case leaveGoexit:
		runtime.Goexit()
	case leaveWait:
		<-held
	case leaveDeep:
		if n > 0 {
			return leaving(leaveDeep, n-1) + 1
		}
	}
	return n + 1
}

// recovering recovers from its own panic, and its deferred function changes the result.
//
//go:noinline
func recovering(n int) (r int) {
	defer func() {
		if recover() != nil {
			r = n + 1
		}
	}()
	if n%2 == 0 {
		panic("recovered")
	}
	return -1
}

// Ways to leave a function.
const (
	leaveReturn = iota
	leavePanic
	leaveGoexit
	leaveDeep
	leaveWait
)

// held keeps a call of leaving in progress.
var held = make(chan bool)

// TestReturns: entries are returns, calls that were left by panics and Goexit, calls in
// progress and missed ones, exactly; whatever threads the goroutines run on.
func TestReturns(t *testing.T) { t.Log(child(t, "returns")) }

func returns(c *kprobes.Core) error {
	es, err := addCounts(c, "p:entered "+own+"leaving", "r:left "+own+"leaving", "r:mended "+own+"recovering")
	if err != nil {
		return err
	}
	var sum tally
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { sum.call(i) })
	}
	wg.Wait()
	waits := make(chan int)
	sum.calls.Add(1)
	go func() { waits <- leaving(leaveWait, 1) }()
	for end := time.Now().Add(time.Minute); c.Counts(es[0]).Hits < sum.calls.Load() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if err := c.Close(nil); err != nil {
		return err
	}
	close(held)
	if n := <-waits; n != 2 {
		return fmt.Errorf("a call that the probe left in progress returned %d", n)
	}
	n := c.Counts(es[1])
	told := fmt.Sprintf("%s\n%+v\n%+v", sum.String(), n, c.Counts(es[2]))
	fmt.Println(told)
	all := n.Hits + n.Unwound + n.Active + n.Missed
	switch entered := c.Counts(es[0]).Hits; {
	case sum.wrong.Load() != 0:
		err = fmt.Errorf("%d results wrong", sum.wrong.Load())
	case entered != sum.calls.Load() || all != entered || n.Hits+n.Missed < sum.returned.Load():
		err = fmt.Errorf("%d entries, %d in all", entered, all)
	case n.Unwound > sum.left.Load() || n.Active > 1 || n.Hits > sum.returned.Load() || n.Missed*10 > sum.left.Load(): // of each kind a few may be missed
		err = errors.New("calls that were left are told as something else")
	}
	if m := c.Counts(es[2]); m.Hits != sum.mended.Load() || m.Unwound+m.Active+m.Missed != 0 {
		err = errors.Join(err, fmt.Errorf("%d calls that recover themselves: %+v", sum.mended.Load(), m))
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, told)
	}
	return err
}

// tally is what callers have counted.
type tally struct{ calls, returned, left, mended, wrong atomic.Uint64 }

func (s *tally) String() string {
	return fmt.Sprintf("%d calls, %d returned, %d left, %d recovered", s.calls.Load(), s.returned.Load(), s.left.Load(), s.mended.Load())
}

// call calls the functions in all ways.
func (s *tally) call(i int) {
	const rounds, depth = 300, 200
	for r := range rounds {
		s.count(leaveReturn, r, 1)
		s.count(leaveDeep, depth, depth+1)
		s.panics(i + r%5)
		runtime.Gosched() // and on another thread
		if r%10 == 0 {
			s.exits()
			runtime.GC()
		}
		s.mended.Add(1)
		if n := recovering(r); n != r+1 && n != -1 {
			s.wrong.Add(1)
		}
	}
}

func (s *tally) count(how, n, calls int) {
	if leaving(how, n) != n+1 {
		s.wrong.Add(1)
	}
	s.calls.Add(uint64(calls))
	s.returned.Add(uint64(calls))
}

// panics leaves the function by a panic at some depth of the stack.
//
//go:noinline
func (s *tally) panics(depth int) {
	if depth > 0 {
		s.panics(depth - 1)
		return
	}
	defer func() {
		if recover() != "left" {
			s.wrong.Add(1)
		}
	}()
	s.calls.Add(1)
	s.left.Add(1)
	leaving(leavePanic, 1)
	s.wrong.Add(1)
}

// exits ends a goroutine in the middle of the function.
func (s *tally) exits() {
	done := make(chan bool)
	go func() {
		defer close(done)
		s.calls.Add(1)
		s.left.Add(1)
		leaving(leaveGoexit, 1)
		s.wrong.Add(1)
	}()
	<-done
}
