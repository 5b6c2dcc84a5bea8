package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
)

// hot is a function that is hammered.
type hot struct {
	name  string                   // its symbol
	entry func(*runs) any          // makes a jprobe's Entry
	run   func(i uint64) (ok bool) // calls it and checks what it returns
	calls atomic.Uint64            // counted by the function itself
	left  atomic.Uint64            // those of them that a panic left
	_     [64]byte
}

// runs counts what a handler did.
type runs struct {
	n, bad atomic.Uint64
	_      [48]byte
}

func (r *runs) saw(ok bool) {
	r.n.Add(1)
	if !ok {
		r.bad.Add(1)
	}
}

// The functions are called through variables: what the compiler sees it may leave out.
var (
	callLeaf   = leaf
	callSpin   = spin
	callText   = text
	callFloats = floats
	callMany   = many
	callClimb  = climb
	callDeep   func(uint64) uint64       // deep
	box        interface{ Add(int) int } = &adder{}
)

func init() { callDeep = deep }

// The functions' own places in all.
const (
	hotLeaf = iota
	hotSpin
	hotText
	hotFloats
	hotMany
	hotClimb
	hotDeep
	hotAdd
	hotCount
)

var (
	grown    atomic.Uint64
	switched atomic.Uint64
	sink     [workers]atomic.Pointer[[]byte]
)

// leaf calls nothing and does not check its stack.
//
//go:noinline
func leaf(a, b uint64) uint64 {
	all[hotLeaf].calls.Add(1)
	return a*3 + b
}

// spin is a loop in which only a signal can preempt it.
//
//go:noinline
func spin(n uint64) uint64 {
	all[hotSpin].calls.Add(1)
	return spinning(n)
}

func spinning(n uint64) (sum uint64) {
	for i := range n {
		sum += i ^ sum>>3
	}
	return sum
}

// text takes what strings and slices consist of, and allocates.
//
//go:noinline
func text(s string, b []byte) string {
	all[hotText].calls.Add(1)
	return s + string(b)
}

//go:noinline
func floats(a float64, n int, f float32) float64 {
	all[hotFloats].calls.Add(1)
	return a*float64(n) + float64(f)
}

// many has arguments on the stack.
//
//go:noinline
func many(a, b, c, d, e, f, g, h, i, j, k, l int) int {
	all[hotMany].calls.Add(1)
	return a + 2*b + 3*c + 4*d + 5*e + 6*f + 7*g + 8*h + 9*i + 10*j + 11*k + 12*l
}

// climb panics n frames deep if fail is set.
//
//go:noinline
func climb(n int, fail bool) int {
	all[hotClimb].calls.Add(1)
	if n > 0 {
		return climb(n-1, fail) + 1
	}
	if fail {
		panic("as asked")
	}
	return 0
}

// deep recurses, and its stack grows and moves meanwhile.
//
//go:noinline
func deep(n uint64) uint64 {
	all[hotDeep].calls.Add(1)
	var pad [200]byte
	pad[n%200] = 1
	if n == 0 {
		return uint64(pad[0]) - 1
	}
	return callDeep(n-1) + uint64(pad[n%200])
}

type adder struct{ n atomic.Int64 }

// Add is called through an interface.
//
//go:noinline
func (a *adder) Add(n int) int {
	all[hotAdd].calls.Add(1)
	a.n.Add(int64(n))
	return n + 1
}

// All of them, and those that are run.
var (
	all  [hotCount]*hot
	hots []*hot
)

func init() {
	all = [hotCount]*hot{
		hotLeaf: {
			name: "main.leaf", run: func(i uint64) bool { return callLeaf(i, 5) == 3*i+5 },
			entry: func(r *runs) any {
				return func(_, b uint64) uint64 { r.saw(b == 5); return 0 }
			},
		},
		hotSpin: {
			name: "main.spin", run: runSpin,
			entry: func(r *runs) any {
				return func(n uint64) uint64 { r.saw(n < uint64(len(spun)) || n == longSpin); return 0 }
			},
		},
		hotText: {
			name: "main.text", run: runText,
			entry: func(r *runs) any {
				return func(s string, b []byte) string { r.saw(len(s) == cap(b) && s[:len(b)] == string(b)); return "" }
			},
		},
		hotFloats: {
			name: "main.floats", run: func(i uint64) bool { return callFloats(1.5, int(i%100), 0.25) == 1.5*float64(i%100)+0.25 },
			entry: func(r *runs) any {
				return func(a float64, n int, f float32) float64 { r.saw(a == 1.5 && n < 100 && f == 0.25); return 0 }
			},
		},
		hotMany: {
			name: "main.many", run: func(i uint64) bool { return callMany(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, int(i)) == 506+12*int(i) },
			entry: func(r *runs) any {
				return func(a, b, c, d, e, f, g, h, i, j, k, _ int) int {
					r.saw(a == 1 && b == 2 && c+d+e == 12 && f+g+h+i == 30 && j == 10 && k == 11)
					return 0
				}
			},
		},
		hotClimb: {
			name: "main.climb", run: runClimb,
			entry: func(r *runs) any {
				return func(n int, _ bool) int { r.saw(n >= 0 && n < 8); return 0 }
			},
		},
		hotDeep: {
			name: "main.deep", run: runDeep,
			entry: func(r *runs) any {
				return func(n uint64) uint64 { r.saw(n < 400); return 0 }
			},
		},
		hotAdd: {
			name: "main.(*adder).Add", run: func(i uint64) bool { return box.Add(int(i)) == int(i)+1 },
			entry: func(r *runs) any {
				return func(a *adder, n int) int { r.saw(a == box); return 0 }
			},
		},
	}
	for i := range spun {
		spun[i] = spinning(uint64(i))
	}
	spunLong = spinning(longSpin)
	hots = slices.Clone(all[:])
}

// longSpin is how far spin counts at times: for milliseconds.
const longSpin = 3e6

// What spin returns.
var (
	spun     [5000]uint64
	spunLong uint64
)

func runSpin(i uint64) bool {
	if i%200 == 0 {
		return callSpin(longSpin) == spunLong
	}
	n := i % uint64(len(spun))
	return callSpin(n) == spun[n]
}

func runText(i uint64) bool {
	s := words[i%uint64(len(words))]
	b := append(make([]byte, 0, len(s)), s[:len(s)/2]...)
	got := callText(s, b)
	return len(got) == len(s)+len(b) && strings.HasPrefix(got, s) && got[len(s):] == string(b)
}

var words = strings.Fields("jmp call push lea mov cmp probes-inside-a-Go-program " + strings.Repeat("long", 100))

func runClimb(i uint64) (ok bool) {
	n, fail := int(i%8), i%3 == 0
	defer func() {
		if e := recover(); e != nil {
			all[hotClimb].left.Add(uint64(n + 1))
			ok = fail
		}
	}()
	return callClimb(n, fail) == n && !fail
}

// runDeep runs deep on a fresh stack at times, which is small.
func runDeep(i uint64) bool {
	n := i * 7 % 400
	if i%4 != 0 {
		return callDeep(n) == n
	}
	grown.Add(1)
	done := make(chan bool)
	go func() { done <- callDeep(n) == n }()
	return <-done
}

// worker runs all functions by turns.
func worker(w int, stop chan bool) {
	if w%4 == 3 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	tid := syscall.Gettid()
	for i := uint64(w); ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		h := hots[i%uint64(len(hots))]
		if n := i / uint64(len(hots)); !h.run(n) {
			wrong("%s, call %d: a wrong result", h.name, n)
		}
		b := make([]byte, 100+i%1000)
		sink[w].Store(&b)
		if i%64 == 0 {
			runtime.Gosched()
		}
		if now := syscall.Gettid(); now != tid {
			switched.Add(1)
			tid = now
		}
	}
}

// total is what a function has counted.
type total struct{ calls, left uint64 }

func totals() map[string]total {
	out := map[string]total{}
	for _, h := range hots {
		out[h.name] = total{h.calls.Load(), h.left.Load()}
	}
	return out
}

func (t total) String() string { return fmt.Sprintf("%d calls, %d left", t.calls, t.left) }
