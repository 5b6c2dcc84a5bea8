//go:build !race

package kprobes_test

import (
	"encoding/binary"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kprobes.dev/kprobes"
)

// selfStays calls itself depth times and does what it is told in the innermost call.
//
//go:noinline
func selfStays(depth int, do func()) int {
	var pad [32]byte
	pad[depth%32] = 1
	if depth > 0 {
		return stays(depth-1, do) + int(pad[depth%32])
	}
	do()
	return int(pad[0]) - 1
}

var stays func(int, func()) int

func init() { stays = selfStays }

const staysName = selfPrefix + "selfStays"

// TestOwnGoroutinesEndInside: instances of goroutines that end inside the probed function are
// taken back, and of calls that a goroutine which lives has left at ever another depth; no call
// is missed for want of one.
func TestOwnGoroutinesEndInside(t *testing.T) {
	const maxActive, each, rounds = 10, 5, 12
	rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: staysName}, MaxActive: maxActive}
	must(t, kprobes.RegisterKretprobe(rp))
	defer kprobes.UnregisterKretprobe(rp)
	left, returned := uint64(0), uint64(0)
	for round := range rounds {
		var wg sync.WaitGroup
		for range each {
			if round%3 == 2 { // left at another depth each time, by a goroutine that goes on
				deeper(int(left), func() {
					defer func() { _ = recover() }()
					stays(0, func() { panic("left") })
				})
			} else {
				wg.Go(func() { stays(0, runtime.Goexit) })
			}
			left++
		}
		wg.Wait()
		eventually(t, "most instances of calls that were left are taken back", func() bool {
			return rp.Unwound()+maxActive-each >= left
		})
		for range 3 {
			stays(0, func() {})
			returned++
		}
		if s := rp.State(); s.Hits != returned || s.Misses.Total() != 0 || s.Unwound > left {
			t.Fatalf("round %d: %+v with %d calls left and %d returned", round, s, left, returned)
		}
	}
}

// TestOwnCallsLeftAreCounted is TestCallsLeftAreCounted with panics, and a goroutine that lives on.
func TestOwnCallsLeftAreCounted(t *testing.T) {
	rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: staysName}}
	must(t, kprobes.RegisterKretprobe(rp))
	defer kprobes.UnregisterKretprobe(rp)
	left := func(n int, do func()) {
		deeper(n, func() {
			defer func() { _ = recover() }()
			stays(0, do)
		})
	}
	left(3, func() { panic("left") })
	left(5, func() { panic("left too") })
	eventually(t, "calls that were left are counted", func() bool {
		s := rp.State()
		return s.Unwound == 2 && s.Active == 0 && s.Hits == 0
	})
	inside, free, done := make(chan bool), make(chan bool), make(chan int)
	go func() {
		done <- stays(9, func() {
			inside <- true
			<-free
		})
	}()
	<-inside
	eventually(t, "calls in progress are told", func() bool { return rp.State().Active == 10 })
	close(free)
	<-done
	eventually(t, "and that they have returned", func() bool { return rp.State().Active == 0 })
	if s := rp.State(); s.Hits != 10 || s.Unwound != 2 || s.Misses.Total() != 0 {
		t.Errorf("%+v", s)
	}
}

// deeper calls f below n frames.
//
//go:noinline
func deeper(n int, f func()) byte {
	var pad [48]byte
	if n > 0 {
		return deeper(n-1, f) + pad[n%48]
	}
	f()
	return pad[0]
}

// TestOwnCallsOutliveTheirProbe: see TestCallsOutliveTheirProbe.
func TestOwnCallsOutliveTheirProbe(t *testing.T) {
	const depth = 60
	var in, out atomic.Int64
	rp := &kprobes.Kretprobe{
		Kp: kprobes.Kprobe{SymbolName: staysName}, MaxActive: depth + 1, DataSize: 8,
		EntryHandler: func(*kprobes.KretprobeInstance, *kprobes.Regs) int { in.Add(1); return 0 },
		Handler:      func(*kprobes.KretprobeInstance, *kprobes.Regs) int { out.Add(1); return 0 },
	}
	for round := range 4 {
		rp.Kp.Addr = 0
		must(t, kprobes.RegisterKretprobe(rp))
		inside, free, done := make(chan bool), make(chan bool), make(chan int)
		go func() {
			done <- stays(depth, func() {
				inside <- true
				<-free
			})
		}()
		<-inside
		if s := rp.State(); in.Swap(0) != depth+1 || s.Misses.Total() != 0 {
			t.Fatalf("round %d: %+v with %d calls in progress", round, s, depth)
		}
		if round%2 == 0 {
			kprobes.UnregisterKretprobe(rp)
		} else {
			must(t, kprobes.DisableKretprobe(rp))
			must(t, kprobes.EnableKretprobe(rp)) // and has forgotten them
		}
		close(free)
		if n := <-done; n != depth {
			t.Errorf("round %d: %d, want %d", round, n, depth)
		}
		if s := rp.State(); s.Hits != 0 || s.Unwound != 0 || in.Load()+out.Load() != 0 {
			t.Fatalf("round %d: after calls have returned that were in progress: %+v, %d and %d runs", round, s, in.Load(), out.Load())
		}
		kprobes.UnregisterKretprobe(rp)
	}
}

// TestOwnNothingRunsLate: see comeAndGo.
func TestOwnNothingRunsLate(t *testing.T) {
	stop := make(chan bool)
	var run sync.WaitGroup
	for range 4 {
		run.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if stays(3, func() {}) != 3 {
					t.Error("a wrong result")
					return
				}
			}
		})
	}
	for _, flags := range []kprobes.Flags{0, kprobes.FlagSleepable} {
		comeAndGo(t, ownCore(t), staysName, flags, 4)
	}
	close(stop)
	run.Wait()
}

// TestOwnMissedInHandler: a hit inside a handler is missed by every probe with handlers at the
// place, each counts it once, and the function runs. A probe without handlers has nothing that
// could be entered again: it counts the hit.
func TestOwnMissedInHandler(t *testing.T) {
	var value atomic.Uint64
	var runs atomic.Int64
	outer := &kprobes.Kprobe{SymbolName: selfPrefix + "selfStays", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
		value.Store(plainFn(7, 1))
		return 0
	}}
	at := kprobes.Kprobe{SymbolName: selfPrefix + "selfPlain"}
	pre, both, silent, ret, retOnly, jump := at, at, at, at, at, at
	count := func(*kprobes.Kprobe, *kprobes.Regs) int { runs.Add(1); return 0 }
	pre.PreHandler = count
	both.PreHandler, both.PostHandler = count, func(*kprobes.Kprobe, *kprobes.Regs, uint64) { runs.Add(1) }
	on := func(*kprobes.KretprobeInstance, *kprobes.Regs) int { runs.Add(1); return 0 }
	rs := []*kprobes.Kretprobe{{Kp: ret, EntryHandler: on, Handler: on}, {Kp: retOnly, Handler: on}}
	j := &kprobes.Jprobe{Kp: jump, Entry: func(a, b uint64) uint64 { runs.Add(1); return 0 }}
	ks := []*kprobes.Kprobe{&pre, &both, &silent, outer}
	must(t, kprobes.RegisterKprobes(ks))
	defer kprobes.UnregisterKprobes(ks)
	must(t, kprobes.RegisterKretprobes(rs))
	defer kprobes.UnregisterKretprobes(rs)
	must(t, kprobes.RegisterJprobe(j))
	defer kprobes.UnregisterJprobe(j)
	stays(0, func() {})
	for name, n := range map[string]uint64{
		"kprobe": pre.NMissed(), "kprobe with a post handler": both.NMissed(), "kretprobe": rs[0].NMissed(),
		"kretprobe without an entry handler": rs[1].NMissed(), "jprobe": j.NMissed(),
	} {
		if n != 1 {
			t.Errorf("%s: nmissed %d, want 1", name, n)
		}
	}
	if value.Load() != 22 || runs.Load() != 0 || silent.NMissed() != 0 || silent.State().Hits != 1 || outer.NMissed() != 0 {
		t.Errorf("the function returned %d in the handler, %d handlers of it ran, %+v", value.Load(), runs.Load(), silent.State())
	}
}

// TestOwnLateEntry: a return probe is enabled while a thread is in its old code, before the
// entry's work, and leaves that code before the new code is in. Nobody sees its return; the
// calls after it begin unseen, and one of them returns seen. It is not given what is the late
// one's: Data, or, where there is no entry handler, the return address.
func TestOwnLateEntry(t *testing.T) {
	for name, bare := range map[string]bool{"with an entry handler": false, "without": true} {
		t.Run(name, func(t *testing.T) { lateEntry(t, bare) })
	}
}

func lateEntry(t *testing.T, bare bool) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would wait for the handler
	runtime.GC()                                     // also one that had begun
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))  // the handler keeps one for itself
	var hold, held, enabling, end atomic.Bool
	var late time.Duration
	k := &kprobes.Kprobe{SymbolName: staysName, PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int {
		if hold.CompareAndSwap(true, false) {
			held.Store(true)
			for !enabling.Load() {
			}
			spin(late)
		}
		return 0
	}}
	var call, entries, exits, wrong atomic.Uint64
	var returns [2]atomic.Uint64 // of the calls with an even and an odd number
	r := &kprobes.Kretprobe{
		Kp: kprobes.Kprobe{SymbolName: staysName}, DataSize: 8,
		EntryHandler: func(ri *kprobes.KretprobeInstance, _ *kprobes.Regs) int {
			binary.NativeEndian.PutUint64(ri.Data, call.Load())
			entries.Add(1)
			return 0
		},
		Handler: func(ri *kprobes.KretprobeInstance, _ *kprobes.Regs) int {
			n := call.Load()
			to := &returns[n%2]
			to.CompareAndSwap(0, ri.RetAddr)
			if to.Load() != ri.RetAddr || !bare && binary.NativeEndian.Uint64(ri.Data) != n {
				wrong.Add(1)
			}
			exits.Add(1)
			return 0
		},
	}
	if bare {
		r.EntryHandler = nil
	}
	must(t, kprobes.RegisterKprobe(k)) // its work comes first
	defer kprobes.UnregisterKprobe(k)
	must(t, kprobes.RegisterKretprobe(r))
	defer kprobes.UnregisterKretprobe(r)
	seen := func(n uint64) {
		t.Helper()
		before := exits.Load()
		eventually(t, "calls return seen", func() bool { return exits.Load() >= before+n })
	}
	var caller sync.WaitGroup
	caller.Go(func() {
		inside := func() { spin(20 * time.Microsecond) } // most of the time
		for !end.Load() {
			call.Add(1)
			stays(0, inside)
			call.Add(1)
			stays(0, inside)
		}
	})
	seen(2) // one from each place
	const rounds = 40
	for range rounds {
		enabling.Store(false)
		hold.Store(true)
		eventually(t, "the thread is on its way to the entry's work", held.Load)
		must(t, kprobes.DisableKretprobe(r))
		enabling.Store(true)
		must(t, kprobes.EnableKretprobe(r))
		seen(3)
		held.Store(false)
		late += time.Millisecond / rounds
	}
	end.Store(true)
	caller.Wait()
	if wrong.Load() > 0 || !bare && exits.Load() > entries.Load() || returns[0].Load() == returns[1].Load() {
		t.Errorf("%d entries and %d returns were seen, %d with what is another call's", entries.Load(), exits.Load(), wrong.Load())
	}
}

// spin takes a while.
func spin(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
	}
}

// TestOwnCallsLeftBeforeUnregister: calls that were left when the probe is unregistered, and that nobody
// has looked for, are told as unwound all the same; one that is in progress is not.
func TestOwnCallsLeftBeforeUnregister(t *testing.T) {
	rp := &kprobes.Kretprobe{Kp: kprobes.Kprobe{SymbolName: staysName}}
	must(t, kprobes.RegisterKretprobe(rp))
	const left = 20
	var wg sync.WaitGroup
	for range left {
		wg.Go(func() { stays(0, runtime.Goexit) })
	}
	wg.Wait()
	inside, free, done := make(chan bool), make(chan bool), make(chan int)
	go func() { done <- stays(0, func() { close(inside); <-free }) }()
	<-inside
	kprobes.UnregisterKretprobe(rp)
	// Active is what was counted some milliseconds ago, until keep has looked.
	eventually(t, "calls that were left are counted after the probe has gone", func() bool {
		s := rp.State()
		return s.Unwound == left && s.Active == 1 && s.Hits == 0
	})
	close(free)
	<-done
	if s := rp.State(); s.Unwound != left || s.Active != 1 || s.Hits != 0 {
		t.Errorf("%+v: the call that was in progress returns silently", s)
	}
}
