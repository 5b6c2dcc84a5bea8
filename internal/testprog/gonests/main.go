// Command gonests makes calls that nest at random, on goroutines that create others, and knows for itself what each call is in.
//
//	gonests     commands: go N (four goroutines make N trees of calls each), count, quit
//
// Each call has a number of its own, and is given that of the call that it is in, 0 if there is none. A goroutine is in the call that has
// created it.
//
//	Handle(id, in, depth)  calls others and creates goroutines; its error is not nil if 7 divides id
//	Query(id, in, text)    calls nothing; returns the length of text, and an error as Handle
//	Grow(id, in, n)        recurses n deep with a large frame, so that its stack moves, and calls Query at the bottom
//	Climb(id, in)          calls Query, and itself if 3 divides id, and panics
//	Guard(id, in)          calls Climb, and recovers; then it returns
//	Quit(id, in)           calls Query and runtime.Goexit, on a goroutine of its own
//
// Handle also calls Climb behind functions that are not counted, which recover, and goes on. The answer has how often each was called, how
// many calls of Handle and Query have given an error ("failed"), how many were left by a panic or with their goroutine ("left"), and
// how many are in none ("roots").
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

var counts struct {
	handle, query, grow, climb, guard, quit, failed, left, roots atomic.Uint64
}

// last is the number that was given out last.
var last atomic.Uint64

func next() uint64 { return last.Add(1) }

var errSeven = errors.New("seven")

// outcome is the error of a call.
func outcome(id uint64) error {
	if id%7 != 0 {
		return nil
	}
	counts.failed.Add(1)
	return errSeven
}

// Query is a call in which there is none.
//
//go:noinline
func Query(id, in uint64, text string) (size int, err error) {
	counts.query.Add(1)
	return len(text), outcome(id)
}

func query(in uint64) {
	id := next()
	text := "query " + strconv.FormatUint(id, 10)
	if n, err := Query(id, in, text); n != len(text) || (err != nil) != (id%7 == 0) {
		panic("a wrong result")
	}
}

// Grow makes the stack grow.
//
//go:noinline
func Grow(id, in uint64, n int) byte {
	counts.grow.Add(1)
	var room [512]byte
	room[n] = byte(n)
	if n == 0 {
		query(id)
		return 1
	}
	return Grow(next(), id, n-1) + room[n%512]
}

// Climb panics.
//
//go:noinline
func Climb(id, in uint64) {
	counts.climb.Add(1)
	if id == 0 {
		return // never: a function without a return takes no return probe
	}
	query(id)
	counts.left.Add(1)
	if id%3 == 0 {
		Climb(next(), id)
	}
	panic("climb")
}

// Guard recovers.
//
//go:noinline
func Guard(id, in uint64) (recovered bool) {
	counts.guard.Add(1)
	defer func() { recovered = recover() != nil }()
	query(id)
	Climb(next(), id)
	return false
}

// behind calls Climb behind n frames that nobody counts, and recovers.
//
//go:noinline
func behind(n int, in uint64) (depth int) {
	if n > 0 {
		return behind(n-1, in) + 1
	}
	defer func() { _ = recover() }()
	Climb(next(), in)
	return 0
}

// Quit ends its goroutine.
//
//go:noinline
func Quit(id, in uint64) {
	counts.quit.Add(1)
	if id == 0 {
		return // never, as in Climb
	}
	query(id)
	counts.left.Add(1)
	runtime.Goexit()
}

// Handle is what a request comes to.
//
//go:noinline
func Handle(id, in uint64, depth int, wait *sync.WaitGroup) error {
	counts.handle.Add(1)
	if in == 0 {
		counts.roots.Add(1)
	}
	if depth == 0 {
		return outcome(id)
	}
	for range rand.IntN(4) {
		switch rand.IntN(10) {
		case 0:
			Guard(next(), id)
		case 1:
			behind(rand.IntN(10), id)
			query(id)
		case 2:
			wait.Go(func() { // and one that is created by a goroutine that is in no call of its own
				query(id)
				wait.Go(func() { _ = Handle(next(), id, depth-1, wait) })
			})
		case 3:
			wait.Go(func() { Quit(next(), id) })
		case 4:
			Grow(next(), id, 10+rand.IntN(40))
		case 5:
			query(id)
		default:
			_ = Handle(next(), id, depth-1, wait)
		}
	}
	return outcome(id)
}

// load makes trees of calls.
func load(trees int) {
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for range trees {
				_ = Handle(next(), 0, 8, &wait)
			}
		})
	}
	wait.Wait()
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for in.Scan() && in.Text() != "quit" {
		words := strings.Fields(in.Text())
		if len(words) == 2 && words[0] == "go" {
			n, err := strconv.Atoi(words[1])
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(2)
			}
			load(n)
		}
		answer()
	}
	fmt.Println("{}")
}

// answer prints the counts.
func answer() {
	b, err := json.Marshal(map[string]uint64{
		"handle": counts.handle.Load(), "query": counts.query.Load(), "grow": counts.grow.Load(), "climb": counts.climb.Load(), "guard": counts.guard.Load(),
		"quit": counts.quit.Load(), "failed": counts.failed.Load(), "left": counts.left.Load(), "roots": counts.roots.Load(),
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(b))
}
