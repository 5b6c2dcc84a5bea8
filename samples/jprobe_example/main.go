// Command jprobe_example is Linux's sample module jprobe_example (samples/kprobes,
// until Linux 4.15) as a Go program. It plants a jprobe, whose handler has the probed
// function's signature and is called with its arguments, and prints these:
//
//	go run ./samples/jprobe_example
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"sync/atomic"
	"syscall"
	"time"

	"kprobes.dev/kprobes"
)

var (
	symbol = flag.String("symbol", "main.clone", "the function to probe; it must have the signature of main.clone")
	calls  = flag.Int("calls", 5, "call main.clone so often and end; 0: until Ctrl-C")
	pause  = flag.Duration("pause", 200*time.Millisecond, "time between the calls")
)

// clone is probed by default.
//
//go:noinline
func clone(flags, stackStart, stackSize uint64) uint64 { return flags ^ stackStart + stackSize }

// args is what the handler hands over.
type args struct{ flags, stackStart, stackSize uint64 }

var (
	seen    = make(chan args, 64)
	dropped atomic.Uint64
)

// jclone is the mirror of clone: what it does to its arguments does not matter to clone, and
// what it returns is dropped. It is atomic: it may not print, nor wait for whoever receives,
// so the select has a default.
func jclone(flags, stackStart, stackSize uint64) uint64 {
	select {
	case seen <- args{flags, stackStart, stackSize}:
	default:
		dropped.Add(1)
	}
	return 0 // Linux's jprobe_return()
}

// printAll prints what is handed over until seen is closed.
func printAll() {
	for a := range seen {
		fmt.Printf("jprobe: clone_flags = 0x%x, stack_start = 0x%x stack_size = 0x%x\n", a.flags, a.stackStart, a.stackSize)
	}
}

// work calls the function until all calls are done or ctx ends, and says how often it did.
func work(ctx context.Context) (n, wrong int) {
	tick := time.NewTicker(max(*pause, 1))
	defer tick.Stop()
	for *calls == 0 || n < *calls {
		select {
		case <-ctx.Done():
			return n, wrong
		case <-tick.C:
			at := uint64(n) << 12
			if clone(0x11, at, 0x2000) != 0x11^at+0x2000 {
				wrong++
			}
			n++
		}
	}
	return n, wrong
}

func run(ctx context.Context) error {
	jp := &kprobes.Jprobe{Kp: kprobes.Kprobe{SymbolName: *symbol}, Entry: jclone}
	if err := kprobes.RegisterJprobe(jp); err != nil {
		var errno syscall.Errno
		errors.As(err, &errno)
		return fmt.Errorf("register_jprobe failed, returned %d: %w", -int(errno), err)
	}
	addr := jp.Kp.Addr
	fmt.Printf("Planted jprobe at %016x, handler addr %016x\n", addr, reflect.ValueOf(jclone).Pointer())
	printed := make(chan bool)
	go func() {
		defer close(printed)
		printAll()
	}()

	n, wrong := work(ctx)

	kprobes.UnregisterJprobe(jp) // no handler sends any more
	close(seen)
	<-printed
	fmt.Printf("jprobe at %016x unregistered\n", addr)
	fmt.Printf("main.clone was called %d times, %d with another result; %d hits, %d missed, %d lines dropped\n",
		n, wrong, jp.State().Hits, jp.NMissed(), dropped.Load())
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
