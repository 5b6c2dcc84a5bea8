// Command gocrowd keeps a crowd of goroutines busy, and says by runtime/metrics how many goroutines it has created and how many objects it has
// allocated meanwhile.
//
//	gocrowd N     N goroutines; commands: go ROUNDS, quit
//
// In a round each of them yields, allocates, creates a goroutine and waits for what it has computed. Between rounds all wait. Gate is 1 from the
// moment that the numbers are read before the rounds until the moment that they are read behind them. The answer has "created", "allocated" and
// "bad", the wrong results. The runtime may allocate, and create goroutines, for itself while the gate is moved: the numbers are read on both sides of it,
// and "slack" says by how much they differ there.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Gate says that the runtime's own numbers are being compared.
var Gate uint32

var bad atomic.Uint64

// member is a goroutine of the crowd: it does a round for each number that it gets.
func member(work <-chan int, done *sync.WaitGroup) {
	child := make(chan int)
	for n := range work {
		runtime.Gosched()
		text := make([]byte, 64+n%2048) // some without room in the runtime's smallest classes
		for i := range text {
			text[i] = byte(n + i)
		}
		go func() { child <- sum(text) }()
		want := 0
		for i := range text {
			want += int(byte(n + i))
		}
		if <-child != want {
			bad.Add(1)
		}
		done.Done()
	}
}

func sum(text []byte) (n int) {
	for _, b := range text {
		n += int(b)
	}
	return n
}

var (
	states  = []metrics.Sample{{Name: "/sched/goroutines/running:goroutines"}, {Name: "/sched/goroutines/runnable:goroutines"}}
	numbers = []metrics.Sample{{Name: "/sched/goroutines-created:goroutines"}, {Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/tiny/allocs:objects"}}
	stats   runtime.MemStats
)

// read reads how many goroutines were created and objects allocated, without an allocation. ReadMemStats brings the numbers up to date: each P
// keeps what it has allocated to itself until then.
func read() (created, allocated uint64) {
	runtime.ReadMemStats(&stats)
	metrics.Read(numbers)
	return numbers[0].Value.Uint64(), numbers[1].Value.Uint64() + numbers[2].Value.Uint64()
}

// settle waits until size goroutines wait, and nobody else is there: each look stops the world, and several must say so.
func settle(size int) {
	for calm := 0; calm < 3; calm++ {
		runtime.Gosched()
		runtime.ReadMemStats(&stats)
		metrics.Read(states)
		if runtime.NumGoroutine() != size+1 || states[0].Value.Uint64() > 1 || states[1].Value.Uint64() > 0 {
			calm = -1
		}
	}
}

func main() {
	size, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	work := make(chan int)
	var done sync.WaitGroup
	for range size {
		go member(work, &done)
	}
	settle(size)
	read() // it allocates once
	fmt.Println("ready")
	answers := json.NewEncoder(os.Stdout)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		command, arg, _ := strings.Cut(in.Text(), " ")
		if command == "quit" {
			break
		}
		rounds, err := strconv.Atoi(arg)
		if err != nil || command != "go" {
			panic(in.Text())
		}
		c0, a0 := read()
		atomic.StoreUint32(&Gate, 1)
		created, allocated := read()
		for round := range rounds {
			done.Add(size)
			for i := range size {
				work <- round + i
			}
			done.Wait()
		}
		settle(size)
		c, a := read()
		atomic.StoreUint32(&Gate, 0)
		c1, a1 := read()
		if err := answers.Encode(map[string]uint64{"created": c - created, "allocated": a - allocated, "slack": created - c0 + c1 - c + allocated - a0 + a1 - a, "bad": bad.Load()}); err != nil {
			panic(err)
		}
	}
	if err := answers.Encode(map[string]uint64{"bad": bad.Load()}); err != nil {
		panic(err)
	}
}
