// Calls of leaf from many kinds of Go's frames, the same ones in each run.
//
//	gostacks N   N rounds
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
)

var sum int

//go:noinline
func leaf(n int) int {
	sum++
	return n + 1
}

//go:noinline
func deep(n int) int {
	var room [300]byte // the stack grows
	room[n%len(room)] = byte(n)
	if n == 0 {
		return leaf(n)
	}
	return deep(n-1) + int(room[n%len(room)])
}

func inlined(n int) int { return leaf(n^5) * 3 }

type number struct{ n int }

//go:noinline
func (n *number) value() int { return leaf(n.n) }

type valuer interface{ value() int }

//go:noinline
func deferred(n int) (err error) {
	defer func() {
		sum += leaf(n)
		if r := recover(); r != nil {
			sum += leaf(n + 1)
			err = errors.New("recovered")
		}
	}()
	if n%2 == 0 {
		var none *number
		none.n++
	}
	panic(n)
}

//go:noinline
func generic[T ~int | ~uint8](v T) int { return leaf(int(v)) }

func round(i int) {
	numbers := []int{5, i % 7, 9, 1}
	sum += deep(i % 9 * 4)
	sum += inlined(i)
	var v valuer = &number{i}
	sum += v.value()
	sort.Slice(numbers, func(a, b int) bool { return leaf(numbers[a]) < leaf(numbers[b]) })
	slices.SortFunc(numbers, func(a, b int) int { return leaf(b) - leaf(a) })
	if deferred(i) == nil {
		panic("not recovered")
	}
	sum += generic(i) + generic(uint8(i))
	done := make(chan int)
	go func() { done <- deep(i % 30) }()
	sum += <-done
}

func main() {
	n, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for i := range n {
		round(i)
	}
	fmt.Println(sum)
}
