// Goswitch runs functions with switches of the kinds that Go makes jump tables for.
package main

import (
	"fmt"
	"os"
	"runtime"
)

var sink int

//go:noinline
func callee(x int) int { return x*3 + sink }

//go:noinline
func swDense(x int) int {
	switch x {
	case 0:
		return callee(7)
	case 1:
		return callee(x) + 1
	case 2:
		sink = 3
		return 11
	case 3:
		return callee(x+5) * 2
	case 4:
		sink += 9
		return 4
	case 5:
		return callee(1) - callee(2)
	case 6:
		sink ^= 1
		return -6
	case 7:
		return callee(sink)
	case 8:
		return callee(x) ^ 3
	}
	return -1
}

//go:noinline
func swString(s string) int {
	switch s {
	case "alpha":
		return callee(1)
	case "bravo":
		return callee(2)
	case "charlie":
		return callee(3)
	case "delta":
		return callee(4)
	case "echo":
		return callee(5)
	case "foxtrot":
		return callee(6)
	case "golf":
		return callee(7)
	case "hotel":
		return callee(8)
	case "india":
		return callee(9)
	case "kilo":
		return callee(10)
	case "juliett":
		return callee(11)
	}
	return 0
}

//go:noinline
func swType(x any) int {
	switch v := x.(type) {
	case int:
		return v
	case int8:
		return callee(int(v))
	case uint8:
		return callee(int(v)) + 1
	case int16:
		return callee(int(v)) + 2
	case uint16:
		return callee(int(v)) + 3
	case int32:
		return callee(int(v)) + 4
	case uint32:
		return callee(int(v)) + 5
	case string:
		return len(v)
	case []byte:
		return len(v) + 1
	case error:
		return 9
	}
	return -1
}

//go:noinline
func swDefer(x int) (r int) {
	defer func() {
		if e := recover(); e != nil {
			r = callee(x)
		}
	}()
	a := [4]int{1, 2, 3, 4}
	return a[x]
}

//go:noinline
func run() int {
	r := 0
	for i := -2; i < 12; i++ {
		r += swDense(i)
	}
	for _, s := range []string{"alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliett", "kilo", "", "x", "zzzzz"} {
		r += swString(s)
	}
	for _, v := range []any{1, int8(2), uint8(3), int16(4), uint16(5), int32(6), uint32(7), "s", []byte("b"), os.ErrExist, 1.5, nil} {
		r += swType(v)
	}
	return r + swDefer(2) + swDefer(7)
}

func main() {
	runtime.LockOSThread()
	fmt.Println(run())
}

func init() { runtime.LockOSThread() }
