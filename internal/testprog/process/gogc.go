//go:build ignore

// A Go program under memory pressure: goroutines that grow their stacks, allocate and
// block, while the collector runs without end. To each line it answers "ok ROUNDS".
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
)

var rounds, collections atomic.Uint64

type node struct {
	next *node
	data [64]uint64
}

//go:noinline
func deep(n int, seed uint64) uint64 {
	var pad [32]uint64
	for i := range pad {
		pad[i] = seed + uint64(i)
	}
	if n == 0 {
		return pad[seed%32] - seed%32
	}
	s := deep(n-1, seed)
	for i := range pad {
		if pad[i] != seed+uint64(i) {
			panic("stack is damaged")
		}
	}
	return s
}

func work(seed uint64, in <-chan *node, out chan<- *node) {
	for n := range in {
		if deep(int(seed%200), seed) != seed {
			panic("wrong result")
		}
		m := &node{next: n}
		for i := range m.data {
			m.data[i] = seed
		}
		for i := range n.data {
			if n.data[i] != n.data[0] {
				panic("heap is damaged")
			}
		}
		n.next = nil
		rounds.Add(1)
		out <- m
		seed = seed*6364136223846793005 + 1442695040888963407
	}
}

func main() {
	const ring = 32
	var chans [ring]chan *node
	for i := range chans {
		chans[i] = make(chan *node, 1)
	}
	for i := range chans {
		go work(uint64(i), chans[i], chans[(i+1)%ring])
	}
	for i := 0; i < ring/2; i++ {
		chans[i*2] <- &node{}
	}
	go func() {
		for {
			runtime.GC()
			collections.Add(1)
		}
	}()
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		for r, c := rounds.Load(), collections.Load(); rounds.Load() == r || collections.Load() == c; {
			runtime.Gosched()
		}
		fmt.Printf("ok %d %d\n", rounds.Load(), collections.Load())
	}
}
