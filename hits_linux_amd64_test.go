package kprobes_test

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"kprobes.dev/kprobes"
)

// nameOf is the name of a func of the program.
func nameOf(fn any) string { return runtime.FuncForPC(reflect.ValueOf(fn).Pointer()).Name() }

// ended is a context that is done.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// withEvents registers events of the own process, which are removed when the test ends.
func withEvents(t *testing.T, texts ...string) (*kprobes.Core, []*kprobes.Event) {
	t.Helper()
	core, err := kprobes.Self()
	if err != nil {
		t.Fatal(err)
	}
	evs := addEvents(t, core, nil, texts...)
	t.Cleanup(func() {
		if err := core.Remove(evs); err != nil {
			t.Error(err)
		}
	})
	return core, evs
}

//go:noinline
func served(thread, n uint64, word string) {
	if len(word) == 0 {
		panic(thread + n)
	}
}

// TestSelfHits: loops that are left in the middle and taken up again, and Poll, give each record of several threads once and in order;
// the hits stay what they were.
func TestSelfHits(t *testing.T) {
	core, evs := withEvents(t, "p:served "+nameOf(served)+" thread=$arg1 n=$arg2 word=$arg3:gostring")
	const threads, calls = 4, 2000
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range uint64(threads) {
		wg.Go(func() {
			for n := range uint64(calls) {
				served(i, n, fmt.Sprint("word", n))
			}
		})
	}
	go func() {
		wg.Wait()
		cancel()
	}()
	var all []*kprobes.Hit
	for part := 1; len(all) < threads*calls/2; part++ { // some loops that are left
		for h := range core.Hits(ctx) {
			if all = append(all, h); len(all)%(100*part) == 99 {
				core.Counts(evs[0]) // the body may call the Core
				break
			}
		}
	}
	wg.Wait()
	core.Poll(func(h *kprobes.Hit) {
		kept := *h
		kept.Rec = append([]byte(nil), h.Rec...)
		all = append(all, &kept)
	})
	for h := range core.Hits(ctx) {
		all = append(all, h)
	}
	var next [threads]uint64
	for i, h := range all {
		thread, n := h.Value("thread").(uint64), h.Value("n").(uint64)
		if next[thread] != n || h.Value("word") != fmt.Sprint("word", n) {
			t.Fatalf("hit %d of thread %d: n=%d word=%v, want %d", i, thread, n, h.Value("word"), next[thread])
		}
		if next[thread]++; i > 0 && h.Nanos < all[i-1].Nanos {
			t.Fatalf("hit %d is older than the one before it", i)
		}
	}
	if next != [threads]uint64{calls, calls, calls, calls} {
		t.Errorf("%d hits, the program has made %d calls of each of %d threads", next, calls, threads)
	}
	if n := core.Counts(evs[0]); n.Read != threads*calls || n.Lost != 0 {
		t.Errorf("%+v", n)
	}
}

// valued is what an event takes values of all types of.
type valued struct {
	s8     int8
	c      byte
	u16    uint16
	s32    [3]int32
	x64    uint64
	text   *byte
	none   *byte
	number uint64
}

//go:noinline
func valuesOf(v *valued, s string) int { return len(s) + int(v.s8) }

// TestSelfHitValues: values are Go values of the types that the documentation tells, by name and in order.
func TestSelfHitValues(t *testing.T) {
	at := func(o uintptr) string { return fmt.Sprintf("+%d($arg1)", o) }
	var o valued
	core, evs := withEvents(t, "p:valuesof "+nameOf(valuesOf)+
		" s8="+at(unsafe.Offsetof(o.s8))+":s8 c="+at(unsafe.Offsetof(o.c))+":char u16="+at(unsafe.Offsetof(o.u16))+":u16"+
		" s32="+at(unsafe.Offsetof(o.s32))+":s32[3] x64="+at(unsafe.Offsetof(o.x64))+":x64 bits="+at(unsafe.Offsetof(o.number))+":b4@8/64"+
		" text=+0("+at(unsafe.Offsetof(o.text))+"):string none=+0("+at(unsafe.Offsetof(o.none))+"):string"+
		" s=$arg2:gostring sym="+at(unsafe.Offsetof(o.number))+`:symbol lit=\"literal" comm=$comm`,
		"r:result "+nameOf(valuesOf)+" v=$retval:s64")
	text := []byte("text\xff\x00more")
	pc := uint64(reflect.ValueOf(valuesOf).Pointer())
	o = valued{s8: -8, c: 'c', u16: math.MaxUint16, s32: [3]int32{-1, 0, math.MaxInt32}, x64: math.MaxUint64, text: &text[0], number: pc}
	if n := valuesOf(&o, "string"); n != -2 {
		t.Fatal(n)
	}
	want := []struct {
		name  string
		value any
	}{
		{"s8", int64(-8)},
		{"c", byte('c')},
		{"u16", uint64(math.MaxUint16)},
		{"s32", []any{int64(-1), int64(0), int64(math.MaxInt32)}},
		{"x64", uint64(math.MaxUint64)},
		{"bits", pc >> 8 & 15},
		{"text", "text\xff"},
		{"none", nil},
		{"s", "string"},
		{"sym", pc},
		{"lit", "literal"},
		{"comm", nil},
	}
	hits := 0
	for h := range core.Hits(ended()) {
		hits++
		if h.Event.Name == "result" {
			if v := h.Value("v"); v != int64(-2) {
				t.Errorf("the result is %v", v)
			}
			continue
		}
		i := 0
		for name, v := range h.Values() {
			if i < len(want) && (name != want[i].name || !reflect.DeepEqual(v, want[i].value)) {
				t.Errorf("%s is %T %v, want %s: %T %v", name, v, v, want[i].name, want[i].value, want[i].value)
			}
			i++
		}
		if i != len(want) || h.Value("other") != nil || h.Value("s") != "string" {
			t.Errorf("%d values, want %d; other is %v, s %v", i, len(want), h.Value("other"), h.Value("s"))
		}
		h.Rec = h.Rec[:20]
		for name := range h.Values() {
			t.Errorf("a damaged record has a value %s", name)
		}
	}
	if hits != 2 {
		t.Errorf("%d hits of %v", hits, evs)
	}
}

// TestHitsEndWithTheProcess: a loop over the hits of another process ends with that, and has all of them.
func TestHitsEndWithTheProcess(t *testing.T) {
	prog, core := attach(t, "work", "2")
	evs := addEvents(t, core, nil, "p:lea f_lea")
	before := prog.Counts("count")["f_lea"]
	got := make(chan uint64)
	go func() {
		n := uint64(0)
		for h := range core.Hits(t.Context()) {
			if h.Event.Name == "lea" {
				n++
			}
		}
		got <- n
	}()
	want := prog.Counts("go 200")["f_lea"] - before
	prog.Kill()
	if n := <-got; n != want || want == 0 {
		t.Errorf("%d hits, the program counts %d calls", n, want)
	}
	if n := core.Counts(evs[0]); n.Read != want {
		t.Errorf("%+v", n)
	}
}
