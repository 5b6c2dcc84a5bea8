// Command gocgo calls C from Go, and Go from there.
//
//	gocgo [WORKERS]     commands: go N (every worker makes N rounds), count, quit
//
// In round i worker w passes v = w<<32 | i:
//
//	c_leaf(v, k)     C, for k from 0 to 3, from c_sum(v, 4): writes 15 values below the stack
//	                 pointer, in the red zone, and sums them up; returns 16*v + 120 + k
//	c_back(v)        C: calls Back(v); returns its result + 1
//	Back(v)          Go, called by C: grows its stack every 8th time; returns 3*v
//
// Results are checked: "bad" counts the wrong ones. Each worker of each command has a thread of
// its own, which ends with it.
package main

/*
#include <stdint.h>

uint64_t c_sum(uint64_t v, uint64_t n);
uint64_t c_back(uint64_t v);
*/
import "C"

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

var leaf, back, bad atomic.Uint64

// Back is called by C.
//
//export Back
func Back(v C.uint64_t) C.uint64_t {
	if v&7 == 0 && grow(20) != 20 {
		bad.Add(1)
	}
	return 3 * v
}

// grow needs about half a kilobyte of stack for each level.
//
//go:noinline
func grow(n uint64) uint64 {
	var pad [64]uint64
	pad[n&63] = n
	if n == 0 {
		return pad[0]
	}
	return grow(n-1) + pad[n&63] - n + 1
}

func check(ok bool) {
	if !ok {
		bad.Add(1)
	}
}

func work(w, rounds uint64) {
	runtime.LockOSThread() // and never let go
	for i := range rounds {
		v := C.uint64_t(w<<32 | i)
		check(C.c_sum(v, 4) == 4*(16*v+120)+6)
		check(C.c_back(v) == 3*v+1)
	}
	leaf.Add(4 * rounds)
	back.Add(rounds)
}

func report() {
	all := map[string]uint64{"c_leaf": leaf.Load(), "c_back": back.Load(), "main.Back": back.Load(), "bad": bad.Load()}
	if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
		os.Exit(1)
	}
}

func main() {
	workers := uint64(2)
	if len(os.Args) > 1 {
		if n, err := strconv.ParseUint(os.Args[1], 0, 64); err == nil && n > 0 {
			workers = n
		}
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() && in.Text() != "quit" {
		if arg, ok := strings.CutPrefix(in.Text(), "go "); ok {
			n, _ := strconv.ParseUint(arg, 0, 64)
			var wg sync.WaitGroup
			for w := range workers {
				wg.Go(func() { work(w, n) })
			}
			wg.Wait()
		}
		report()
	}
	report()
}
