package main

import (
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"

	"kprobes.dev/kprobes/internal/toggle"
)

// Sizes of the work.
const (
	threads = 8
	funcs   = 16
)

// tally is what one thread has counted: a call before it is made, and when it has returned.
type tally struct {
	begun, ended [funcs]atomic.Uint64
	bad          atomic.Uint64
	_            [56]byte
}

var tallies [threads]tally

var table = [8]uint64{3, 1, 4, 1, 5, 9, 2, 6}

// What the functions consist of, all of it inlined: different instructions, none of which jumps.

func rotated(a, b uint64) (_, _ uint64) {
	a = bits.RotateLeft64(a, 3) ^ (b + 0x9e3779b97f4a7c15)
	return a + table[b&7], b + a*5
}

func multiplied(a, b uint64) (_, _ uint64) {
	hi, lo := bits.Mul64(a+0x94d049bb133111eb, b+11)
	return hi ^ lo, lo + table[hi&7]
}

func carried(a, b uint64) (_, _ uint64) {
	lo, carry := bits.Add64(a|1<<63, b|1<<63, 0)
	hi, _ := bits.Add64(a, b, carry)
	return lo<<1 ^ hi, hi
}

func borrowed(a, b uint64) (_, _ uint64) {
	lo, borrow := bits.Sub64(a, b, 0)
	hi, borrow := bits.Sub64(b, a, borrow)
	return lo ^ hi<<5 + borrow, b + lo
}

func floated(a, b uint64) (_, _ uint64) {
	d, e := float64(int32(a))*0.5+4, float32(int32(b))+1.5
	return b + uint64(int64(d+float64(e))), a
}

func looked(a, b uint64) (_, _ uint64) {
	a += table[a&7] + table[b&7]<<8
	return a*9 - b, b ^ table[a&3]<<16
}

func swapped(a, b uint64) (_, _ uint64) {
	a = bits.ReverseBytes64(a) + uint64(uint32(b))*uint64(uint32(a>>3))
	return a>>7 | b<<9, a
}

func divided(a, b uint64) (_, _ uint64) {
	return a/10 + b%1000, (a ^ b) / 12345
}

func narrowed(a, b uint64) (_, _ uint64) {
	x, y := uint8(a), uint16(b)
	return uint64(x*3)<<32 + uint64(y+uint16(x))<<8 + uint64(int64(int8(x))>>2), a ^ b
}

// The functions are straight: each instruction runs once in each call. All but the last four
// call nothing and do not check their stack.

//go:noinline
func t0(a, b uint64) uint64 {
	a, b = rotated(a, b)
	a, b = multiplied(a, b)
	a, b = carried(a, b)
	a, b = borrowed(a, b)
	return a - b
}

//go:noinline
func t1(a, b uint64) uint64 {
	a, b = multiplied(a, b)
	a, b = borrowed(a, b)
	a, b = looked(a, b)
	a, b = divided(a, b)
	return a - b
}

//go:noinline
func t2(a, b uint64) uint64 {
	a, b = carried(a, b)
	a, b = looked(a, b)
	a, b = narrowed(a, b)
	a, b = carried(a, b)
	return a - b
}

//go:noinline
func t3(a, b uint64) uint64 {
	a, b = borrowed(a, b)
	a, b = divided(a, b)
	a, b = carried(a, b)
	a, b = swapped(a, b)
	return a - b
}

//go:noinline
func t4(a, b uint64) uint64 {
	a, b = floated(a, b)
	a, b = looked(a, b)
	a, b = swapped(a, b)
	a, b = divided(a, b)
	return a - b
}

//go:noinline
func t5(a, b uint64) uint64 {
	a, b = looked(a, b)
	a, b = divided(a, b)
	a, b = rotated(a, b)
	a, b = carried(a, b)
	return a - b
}

//go:noinline
func t6(a, b uint64) uint64 {
	a, b = swapped(a, b)
	a, b = rotated(a, b)
	a, b = borrowed(a, b)
	a, b = swapped(a, b)
	return a - b
}

//go:noinline
func t7(a, b uint64) uint64 {
	a, b = divided(a, b)
	a, b = carried(a, b)
	a, b = swapped(a, b)
	a, b = multiplied(a, b)
	return a - b
}

//go:noinline
func t8(a, b uint64) uint64 {
	a, b = narrowed(a, b)
	a, b = rotated(a, b)
	a, b = multiplied(a, b)
	a, b = carried(a, b)
	return a - b
}

//go:noinline
func t9(a, b uint64) uint64 {
	a, b = rotated(a, b)
	a, b = carried(a, b)
	a, b = floated(a, b)
	a, b = swapped(a, b)
	return a - b
}

//go:noinline
func t10(a, b uint64) uint64 {
	a, b = multiplied(a, b)
	a, b = floated(a, b)
	a, b = divided(a, b)
	a, b = multiplied(a, b)
	return a - b
}

//go:noinline
func t11(a, b uint64) uint64 {
	a, b = carried(a, b)
	a, b = swapped(a, b)
	a, b = multiplied(a, b)
	a, b = looked(a, b)
	return a - b
}

//go:noinline
func t12(a, b uint64) uint64 {
	a += callMix(a, b)
	a, b = borrowed(a, b)
	a, b = floated(a, b)
	a, b = looked(a, b)
	a, b = swapped(a, b)
	return a - callMix(b, a)
}

//go:noinline
func t13(a, b uint64) uint64 {
	a, b = floated(a, b)
	a += callMix(a, b)
	a, b = swapped(a, b)
	a, b = narrowed(a, b)
	a, b = multiplied(a, b)
	return a - callMix(b, a)
}

//go:noinline
func t14(a, b uint64) uint64 {
	a, b = looked(a, b)
	a, b = narrowed(a, b)
	a += callMix(a, b)
	a, b = carried(a, b)
	a, b = looked(a, b)
	return a - callMix(b, a)
}

//go:noinline
func t15(a, b uint64) uint64 {
	a, b = swapped(a, b)
	a, b = multiplied(a, b)
	a, b = looked(a, b)
	a += callMix(a, b)
	a, b = rotated(a, b)
	return a - callMix(b, a)
}

//go:noinline
func mix(a, b uint64) uint64 { return (a ^ b>>3) * 0x2545f4914f6cdd1d }

// The functions are called through variables: what the compiler sees it may leave out.
var (
	callMix = mix
	calls   = [funcs]func(a, b uint64) uint64{t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15}
	want    [funcs]uint64
)

func init() {
	for i, f := range calls {
		want[i] = f(arguments(i))
	}
}

func arguments(i int) (a, b uint64) { return uint64(i+1) * 0x123456789abcdf, uint64(i) * 7 }

func symbolOf(i int) string { return fmt.Sprintf("main.t%d", i) }

// gate is where the threads wait while nothing is to run.
var gate = struct {
	mu      sync.Mutex
	changed *sync.Cond
	running atomic.Bool
	waiting int
}{}

func init() { gate.changed = sync.NewCond(&gate.mu) }

// work calls all functions in turn, on a thread of its own.
func work(t *tally) {
	runtime.LockOSThread()
	for {
		if !gate.running.Load() {
			wait()
		}
		for i, f := range calls {
			t.begun[i].Add(1)
			if f(arguments(i)) != want[i] {
				t.bad.Add(1)
			}
			t.ended[i].Add(1)
		}
	}
}

func wait() {
	gate.mu.Lock()
	defer gate.mu.Unlock()
	gate.waiting++
	gate.changed.Broadcast()
	for !gate.running.Load() {
		gate.changed.Wait()
	}
	gate.waiting--
	gate.changed.Broadcast()
}

// run has the threads run, or wait, and returns when all do.
func run(on bool) {
	gate.mu.Lock()
	defer gate.mu.Unlock()
	gate.running.Store(on)
	gate.changed.Broadcast()
	for on && gate.waiting > 0 || !on && gate.waiting < threads {
		gate.changed.Wait()
	}
}

// called tells how often each function was called, and how many of these calls have returned.
func called() (begun, ended toggle.Calls) {
	begun, ended = toggle.Calls{}, toggle.Calls{}
	for i := range funcs {
		for t := range threads {
			begun[symbolOf(i)] += tallies[t].begun[i].Load()
			ended[symbolOf(i)] += tallies[t].ended[i].Load()
		}
	}
	return begun, ended
}

func wrongResults() (n uint64) {
	for t := range threads {
		n += tallies[t].bad.Load()
	}
	return n
}
