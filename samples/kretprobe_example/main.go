// Command kretprobe_example is Linux's sample module kretprobe_example
// (samples/kprobes) as a Go program. It plants a return probe and prints what the function
// returned and how long it took:
//
//	go run ./samples/kretprobe_example
//	go run ./samples/kretprobe_example -func runtime.mallocgc -calls 1000
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/samples/handover"
)

var (
	funcName = flag.String("func", "main.clone", "the function to report the return value and the time of")
	calls    = flag.Int("calls", 5, "call main.clone so often and end; 0: until Ctrl-C")
	pause    = flag.Duration("pause", 200*time.Millisecond, "time between the calls")
)

// clone is probed by default. It returns its pid.
//
//go:noinline
func clone(pid uint64) uint64 {
	time.Sleep(time.Millisecond)
	return pid
}

// call is what the return handler hands over.
type call struct {
	returned uint64
	took     time.Duration
}

var (
	done  = handover.New[call](room)
	start = time.Now() // all stamps count from here: a monotonic time in one word
)

// dataSize is the size of the data that each call in progress has: one time stamp.
const dataSize = 8

// entryHandler runs at the function's entry. It is atomic: it may not print.
func entryHandler(ri *kprobes.KretprobeInstance, _ *kprobes.Regs) int {
	if ri.Task.ID == 0 {
		return 1 // no goroutine, as the module skips kernel threads: this call is let go
	}
	binary.NativeEndian.PutUint64(ri.Data, uint64(time.Since(start)))
	return 0
}

// retHandler runs when the function returns.
func retHandler(ri *kprobes.KretprobeInstance, regs *kprobes.Regs) int {
	entered := time.Duration(binary.NativeEndian.Uint64(ri.Data))
	done.Put(call{regs.ReturnValue(), time.Since(start) - entered})
	return 0
}

// room is how many calls wait to be printed at most.
const room = 1024

// drain prints what has been handed over. It has an end where printing itself makes calls.
func drain() {
	for range room {
		c, ok := done.Get()
		if !ok {
			return
		}
		fmt.Printf("%s returned %d and took %d ns to execute\n", *funcName, c.returned, c.took.Nanoseconds())
	}
}

// work calls the function until all calls are done or ctx ends, and says how often it did.
func work(ctx context.Context) (n int) {
	tick := time.NewTicker(max(*pause, 1))
	defer tick.Stop()
	for *calls == 0 || n < *calls {
		select {
		case <-ctx.Done():
			return n
		case <-tick.C:
			clone(4711 + uint64(n))
			n++
			drain()
		}
	}
	return n
}

func run(ctx context.Context) error {
	rp := &kprobes.Kretprobe{
		Kp:           kprobes.Kprobe{SymbolName: *funcName},
		Handler:      retHandler,
		EntryHandler: entryHandler,
		DataSize:     dataSize,
		MaxActive:    20, // calls that are followed at once
	}
	if err := kprobes.RegisterKretprobe(rp); err != nil {
		var errno syscall.Errno
		errors.As(err, &errno)
		return fmt.Errorf("register_kretprobe failed, returned %d: %w", -int(errno), err)
	}
	addr := rp.Kp.Addr
	fmt.Printf("Planted return probe at %s: %016x\n", *funcName, addr)

	n := work(ctx)

	kprobes.UnregisterKretprobe(rp)
	drain()
	fmt.Printf("kretprobe at %016x unregistered\n", addr)
	fmt.Printf("Missed probing %d instances of %s\n", rp.NMissed(), *funcName)
	fmt.Printf("main.clone was called %d times; %d returns, %d lines dropped\n", n, rp.State().Hits, done.Dropped())
	return nil
}

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
