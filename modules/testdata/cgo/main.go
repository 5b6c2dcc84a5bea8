// Command cgo loads the module in its first argument, calls a function of C's from several goroutines, and prints how often, and what the module has written.
package main

// #include <stdlib.h>
//
// __attribute__((noinline)) long work(long a, long b, long c, long d, long e, long f, long g, long h)
// {
//	return a + b + c + d + e + f + g + h;
// }
import "C"

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"

	"kprobes.dev/kprobes/modules"
)

func main() {
	const goroutines, each = 4, 2000
	object, err := os.Open(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	table, err := modules.Of(nil)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	m, err := table.Insert("jumps", object)
	if err != nil {
		for line := range table.Lines(ctx) {
			log.Print(line.Text)
		}
		log.Fatal(err)
	}
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := range C.long(each) {
				if C.work(i, i+1, i+2, i+3, i+4, i+5, i+6, i+7) != 8*i+28 {
					log.Fatal("a wrong result")
				}
			}
		})
	}
	wg.Wait()
	if err := m.Remove(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(goroutines * each)
	for line := range table.Lines(ctx) {
		fmt.Println(line.Text)
	}
}
