//go:build !race

package kprobes_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
)

// What typed handlers are put on.
type (
	label   string
	account struct{ owner label }
	coins   struct {
		a int8
		f float32
		n [1]int16
		z struct{}
		b int64
	}
	// wrapping has a method that the compiler generates.
	wrapping struct{ *account }
)

//go:noinline
func (a *account) pay(to label, n int, rate float64) (left int, err error) {
	if n < 0 {
		return n, errNegative
	}
	return n * 2, nil
}

//go:noinline
func (a account) name() label { return a.owner }

var errNegative = errors.New("negative")

//go:noinline
func scalarsOf(a int8, b uint16, c int32, d uint64, e bool, f float32, g float64, h complex64, i complex128) (int8, uint16, int32, uint64, bool, float32, float64, complex64, complex128) {
	return a - 1, b - 1, c - 1, d - 1, !e, f + 1, g + 1, h + 1, i + 1
}

//go:noinline
func wordsOf(a, b, c, d, e, f, g, h, i, j, k, l int) (int, int, int, int, int, int, int, int, int, int, int, int) {
	return l, k, j, i, h, g, f, e, d, c, b, a
}

//go:noinline
func structsOf(c coins, two [2]int32, none [0]uint64, m [3]int8, p *account) (coins, [2]int32, *account) {
	c.b, two[0] = c.b+1, two[0]+1
	return c, two, p
}

//go:noinline
func textsOf(s string, l label, n int) (string, []byte, label, map[string]int) {
	return s + "!", []byte(l), l + "?", map[string]int{s: n}
}

//go:noinline
func ticking() { ticks++ }

var ticks int

//go:noinline
func genericOf[T any](v T) T { return v }

// TestOnCall: handlers get a method's receiver and arguments, also by the method's name.
func TestOnCall(t *testing.T) {
	var self atomic.Pointer[account]
	var calls, sum atomic.Int64
	handler := func(a *account, to label, n int, rate float64) {
		if a == self.Load() && to == "somebody" && rate == 0.5 {
			calls.Add(1)
			sum.Add(int64(n))
		}
	}
	a := &account{"owner"}
	self.Store(a)
	for _, fn := range []any{(*account).pay, selfPrefix + "(*account).pay"} {
		calls.Store(0)
		sum.Store(0)
		j, err := kprobes.OnCall(fn, handler)
		must(t, err)
		want := int64(0)
		for i := range 1000 {
			want += int64(i)
			if left, err := a.pay("somebody", i, 0.5); left != 2*i || err != nil {
				t.Fatal(left, err)
			}
		}
		kprobes.UnregisterJprobe(j)
		_, _ = a.pay("somebody", 1, 0.5)
		if calls.Load() != 1000 || sum.Load() != want || j.State().Hits != 1000 || j.Fault() != nil {
			t.Errorf("%d calls, the sum of n is %d, want %d; %+v", calls.Load(), sum.Load(), want, j.State())
		}
	}
}

// returned has a handler of OnReturn that notes what it is called with, for a call, and compares that.
func returned(t *testing.T, fn any, handler any, got *[]any, call func() []any, args ...any) {
	t.Helper()
	r, err := kprobes.OnReturn(fn, handler)
	if err != nil {
		t.Error(err)
		return
	}
	want := append(append([]any{}, args...), call()...)
	kprobes.UnregisterKretprobe(r)
	if !reflect.DeepEqual(*got, want) || r.State().Hits != 1 || r.Fault() != nil {
		t.Errorf("%T: the handler got %v, want %v; %+v", handler, *got, want, r.State())
	}
	*got = nil
}

// TestOnReturnTypes: handlers get arguments and results of all types and places.
func TestOnReturnTypes(t *testing.T) {
	var got []any
	returned(t, scalarsOf, func(a int8, b uint16, c int32, d uint64, e bool, f float32, g float64, h complex64, i complex128,
		ra int8, rb uint16, rc int32, rd uint64, re bool, rf float32, rg float64, rh complex64, ri complex128,
	) {
		got = []any{a, b, c, d, e, f, g, h, i, ra, rb, rc, rd, re, rf, rg, rh, ri}
	}, &got, func() []any {
		a, b, c, d, e, f, g, h, i := scalarsOf(-5, math.MaxUint16, math.MinInt32+1, math.MaxUint64, true, 1.5, -2.5, 1+2i, 3+4i)
		return []any{a, b, c, d, e, f, g, h, i}
	}, int8(-5), uint16(math.MaxUint16), int32(math.MinInt32+1), uint64(math.MaxUint64), true, float32(1.5), -2.5, complex64(1+2i), 3+4i)

	returned(t, wordsOf, func(a, b, c, d, e, f, g, h, i, j, k, l, ra, rb, rc, rd, re, rf, rg, rh, ri, rj, rk, rl int) {
		got = []any{a, b, c, d, e, f, g, h, i, j, k, l, ra, rb, rc, rd, re, rf, rg, rh, ri, rj, rk, rl}
	}, &got, func() []any {
		wordsOf(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
		return []any{12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1}
	}, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)

	in := coins{-1, 2.5, [1]int16{-3}, struct{}{}, 4}
	who := &account{"owner"}
	address := reflect.ValueOf(who).Pointer()
	returned(t, structsOf, func(c coins, two [2]int32, none [0]uint64, m [3]int8, p uintptr, rc coins, rtwo [2]int32, rp *account) {
		got = []any{c, two, none, m, p, rc, rtwo, rp}
	}, &got, func() []any {
		c, two, p := structsOf(in, [2]int32{7, 8}, [0]uint64{}, [3]int8{1, 2, 3}, who)
		return []any{c, two, p}
	}, in, [2]int32{7, 8}, [0]uint64{}, [3]int8{1, 2, 3}, address)

	long := strings.Repeat("0123456789", 30)
	returned(t, textsOf, func(s string, l label, n int, rs string, rb []byte, rl label, rm map[string]int) {
		got = []any{strings.Clone(s), label(strings.Clone(string(l))), n, rs, rb, rl, rm}
	}, &got, func() []any {
		s, b, l, m := textsOf("", label(long), 3)
		return []any{s, b, l, m}
	}, "", label(long[:256]), 3)

	returned(t, (*account).pay, func(left int, err error) { got = []any{left, err} }, &got, func() []any {
		left, err := who.pay("", -3, 0)
		return []any{left, err}
	})
	returned(t, ticking, func() { got = []any{} }, &got, func() []any {
		ticking()
		return []any{}
	})
	returned(t, account.name, func(l label) { got = []any{l} }, &got, func() []any { return []any{who.name()} })
}

// TestOnReturnAtWork: many goroutines, whose stacks move, with collections: each return has the arguments and results of its own call.
func TestOnReturnAtWork(t *testing.T) {
	const threads, calls = 4, 3000
	var returns, wrong, sum atomic.Int64
	r, err := kprobes.OnReturn(recurring, func(word string, n, depth int, text string, twice int) {
		returns.Add(1)
		sum.Add(int64(n))
		if twice != 2*n || len(text) != len(word)+1 || text[:len(word)] != word || word[0] != byte('a'+n%20) {
			wrong.Add(1)
		}
	})
	must(t, err)
	var wg sync.WaitGroup
	var want, wantSum atomic.Int64
	for g := range threads {
		wg.Go(func() {
			for i := range calls {
				n := g*calls + i
				word := strings.Repeat(string(rune('a'+n%20)), n%50+1)
				text, twice := recurring(word, n, i%40)
				if twice != 2*n || text != word+"." {
					t.Errorf("%q %d", text, twice)
				}
				want.Add(int64(i%40 + 1))
				wantSum.Add(int64(n * (i%40 + 1)))
				if i%500 == 0 {
					runtime.GC()
				}
			}
		})
	}
	wg.Wait()
	s := r.State()
	kprobes.UnregisterKretprobe(r)
	if returns.Load()+int64(s.Misses.Total()) != want.Load() || s.Misses.Total() == 0 && sum.Load() != wantSum.Load() || wrong.Load() != 0 || r.Fault() != nil {
		t.Errorf("%d returns of %d calls, %d wrong, sum %d, want %d; %+v, %v", returns.Load(), want.Load(), wrong.Load(), sum.Load(), wantSum.Load(), s, r.Fault())
	}
}

//go:noinline
func recurring(word string, n, depth int) (string, int) {
	var room [256]byte
	room[n%256] = 1
	if depth > 0 {
		text, twice := recurring(word, n, depth-1)
		return text, twice + int(room[n%256]) - 1
	}
	return word + ".", 2 * n
}

// TestOnReturnAbandoned: a handler that panics leaves the results as they are, and its probe is disabled.
func TestOnReturnAbandoned(t *testing.T) {
	var none *account
	r, err := kprobes.OnReturn(wordsOf, func(a, _, _, _, _, _, _, _, _, _, _, _ int) { none.owner = label(fmt.Sprint(a)) })
	must(t, err)
	for range 2 {
		if a, b, _, _, _, _, _, _, _, _, _, l := wordsOf(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12); a != 12 || b != 11 || l != 1 {
			t.Errorf("%d %d %d", a, b, l)
		}
	}
	kprobes.UnregisterKretprobe(r)
	if r.Fault() == nil {
		t.Error("ticking went wrong")
	}
}

// TestTypedHandlersRefused: what does not fit is refused, with the errno and what to do instead.
func TestTypedHandlersRefused(t *testing.T) {
	var none func(int)
	call := func(fn, handler any) error { _, err := kprobes.OnCall(fn, handler); return err }
	ret := func(fn, handler any) error { _, err := kprobes.OnReturn(fn, handler); return err }
	for _, c := range []struct {
		err  error
		is   error
		text string
	}{
		{call(3, func() {}), unix.EINVAL, "give a func or a function's name"},
		{call(none, func(int) {}), unix.EINVAL, "give a func or a function's name"},
		{call(recurring, none), unix.EINVAL, "give a func that takes what the function takes"},
		{call(recurring, func(string, int, int) int { return 0 }), unix.EINVAL, "nobody takes what it returns"},
		{call(recurring, func(string, int, int64) {}), unix.EINVAL, "a func(string, int, int) (string, int)"},
		{call(recurring, func(string, int) {}), unix.EINVAL, "a func(string, int, int) (string, int)"},
		{call(selfPrefix+"recurring", func(string, int, int64, int) {}), unix.EINVAL, "give a func with the same parameters"},
		{call(selfPrefix+"noSuch", func() {}), unix.ENOENT, "noSuch"},
		{call((&account{}).pay, func(label, int, float64) {}), unix.EINVAL, "(*T).Method"},
		{call(wrapping.pay, func(wrapping, label, int, float64) {}), unix.EINVAL, "generated by the compiler"},
		{call((*account).name, func(*account) {}), unix.EINVAL, "generated by the compiler"},
		{call(genericOf[int], func(int) {}), unix.EINVAL, "generic"},
		{ret(recurring, func(string, int, int, string, int64) {}), unix.EINVAL, "a func(string, int, int) (string, int)"},
		{ret(recurring, func(string, int, string, int) {}), unix.EINVAL, "or what it returns"},
		{ret(selfMixed, func(string, []byte, error, float64, triple, []int, string) {}), unix.EINVAL, "argument 2 is a []uint8"},
		{ret(structsOf, func(coins, [2]int32, [0]uint64, [3]int8, *account, coins, [2]int32, *account) {}), unix.EINVAL, "take it as an uintptr"},
		{ret(selfPrefix+"recurring", func(string, int) {}), unix.EOPNOTSUPP, "no debug information"},
		{ret(genericOf[int], func(int) {}), unix.EINVAL, "generic"},
		{ret(bigOf, func([513]int64, int) {}), unix.E2BIG, "at most 4096"},
	} {
		if !errors.Is(c.err, c.is) || !strings.Contains(c.err.Error(), c.text) {
			t.Errorf("%v, want %v: %q", c.err, c.is, c.text)
		}
	}
}

//go:noinline
func bigOf(a [513]int64) int { return int(a[5]) }
