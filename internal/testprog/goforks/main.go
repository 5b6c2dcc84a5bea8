// Command goforks is a program of Go with the functions that the modules of Linux's Kprobes documentation probe, in C: forkopen with goroutines.
//
//	goforks   commands: fork N, open N, quit
//
// "fork" has four goroutines, each N times, make sys_clone call do_fork, with the number of the call as clone_flags, 4096 times it as stack_size.
// "open" makes them call sys_open as often: every third call fails, with ENOENT. The collector runs all the time. The answer has the calls so far of do_fork
// ("forks") and sys_open ("opens"), and those of sys_open that have failed ("failed").
package main

/*
#cgo CFLAGS: -fno-omit-frame-pointer
#include <stdint.h>

long sys_clone(unsigned long n);
long try_open(int fails);
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

var forks, opens, failed, bad atomic.Uint64

func check(ok bool) {
	if !ok {
		bad.Add(1)
	}
}

func fork() {
	n := forks.Add(1)
	check(C.sys_clone(C.ulong(n)) == C.long(n+16+4096*n))
}

func open() {
	if opens.Add(1)%3 == 0 {
		check(C.try_open(1) == -2)
		failed.Add(1)
		return
	}
	check(C.try_open(0) >= 0)
}

// spread has four goroutines do something n times each.
func spread(n uint64, do func()) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range n {
				do()
			}
		})
	}
	wg.Wait()
}

func report() {
	all := map[string]uint64{"forks": forks.Load(), "opens": opens.Load(), "failed": failed.Load(), "bad": bad.Load()}
	if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
		os.Exit(1)
	}
}

func main() {
	go func() {
		for {
			runtime.GC()
		}
	}()
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() && in.Text() != "quit" {
		name, arg, _ := strings.Cut(in.Text(), " ")
		n, _ := strconv.ParseUint(arg, 0, 64)
		switch name {
		case "fork":
			spread(n, fork)
		case "open":
			spread(n, open)
		}
		report()
	}
	report()
}
