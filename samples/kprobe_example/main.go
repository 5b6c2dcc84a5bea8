// Command kprobe_example is Linux's sample module kprobe_example (samples/kprobes) as
// a Go program. It plants a kprobe in a function of its own process and prints the registers
// before and after the instruction:
//
//	go run ./samples/kprobe_example
//	go run ./samples/kprobe_example -symbol runtime.mallocgc -calls 1000
//
// A module's parameters are flags here, its init function is the first half of run, its exit
// function the second.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/samples/handover"
)

var (
	symbol = flag.String("symbol", "main.clone", "the function to probe")
	calls  = flag.Int("calls", 5, "call main.clone so often and end; 0: until Ctrl-C")
	pause  = flag.Duration("pause", 200*time.Millisecond, "time between the calls")
	stack  = flag.Bool("stack", false, "print the call stack of each hit too, as the first sample did (dump_stack)")
)

// clone is probed by default. It must not be inlined: what is inlined has no code of its own.
//
//go:noinline
func clone(flags, stackStart, stackSize uint64) uint64 { return flags ^ stackStart + stackSize }

// Handlers, as a hit tells them.
const (
	pre = iota
	post
	fault
)

// hit is what a handler hands over: values, and no pointers. What these point to may be
// another goroutine's, or gone; and storing one asks the garbage collector, in whose code
// the probe may stand.
type hit struct {
	handler   int
	ip, flags uint64
	trap      int
	pcs       [16]uint64
	depth     int
}

// hits is where the handlers hand over.
var hits = handover.New[hit](room)

// handlerPre runs just before the probed instruction. It is atomic: it may not print.
func handlerPre(_ *kprobes.Kprobe, regs *kprobes.Regs) int {
	h := hit{handler: pre, ip: regs.IP, flags: regs.Flags}
	if *stack {
		h.depth = len(regs.Stack(h.pcs[:]))
	}
	hits.Put(h)
	return 0
}

// handlerPost runs just after the probed instruction.
func handlerPost(_ *kprobes.Kprobe, regs *kprobes.Regs, _ uint64) {
	hits.Put(hit{handler: post, flags: regs.Flags})
}

// handlerFault is told when one of the two went wrong. 0: we have not dealt with it, so the
// probe is disabled.
func handlerFault(_ *kprobes.Kprobe, _ *kprobes.Regs, trapnr int) int {
	hits.Put(hit{handler: fault, trap: trapnr})
	return 0
}

// print prints a hit, at leisure and on an ordinary goroutine.
func (h *hit) print(kp *kprobes.Kprobe) {
	switch h.handler {
	case pre:
		fmt.Printf("pre_handler: <%s> p->addr = 0x%016x, ip = %x, flags = 0x%x\n", kp.SymbolName, kp.Addr, h.ip, h.flags)
	case post:
		fmt.Printf("post_handler: <%s> p->addr = 0x%016x, flags = 0x%x\n", kp.SymbolName, kp.Addr, h.flags)
	default:
		fmt.Printf("fault_handler: p->addr = 0x%016x, trap #%d\n", kp.Addr, h.trap)
	}
	pcs := make([]uintptr, h.depth)
	for i := range pcs {
		pcs[i] = uintptr(h.pcs[i])
	}
	for frames, more := runtime.CallersFrames(pcs), len(pcs) > 0; more; {
		var f runtime.Frame
		f, more = frames.Next()
		fmt.Printf(" %s+0x%x\n", f.Function, f.PC-f.Entry)
	}
}

// room is how many hits wait to be printed at most.
const room = 1024

// drain prints what has been handed over. It has an end where printing itself makes hits.
func drain(kp *kprobes.Kprobe) {
	for range room {
		h, ok := hits.Get()
		if !ok {
			return
		}
		h.print(kp)
	}
}

// work calls the function until all calls are done or ctx ends, and says how often it did.
func work(ctx context.Context, each func()) (n int) {
	tick := time.NewTicker(max(*pause, 1))
	defer tick.Stop()
	for *calls == 0 || n < *calls {
		select {
		case <-ctx.Done():
			return n
		case <-tick.C:
			_ = clone(0x11, uint64(n), 0)
			n++
			each()
		}
	}
	return n
}

func run(ctx context.Context) error {
	kp := &kprobes.Kprobe{
		SymbolName: *symbol,
		PreHandler: handlerPre, PostHandler: handlerPost, FaultHandler: handlerFault,
	}
	if err := kprobes.RegisterKprobe(kp); err != nil {
		var errno syscall.Errno
		errors.As(err, &errno)
		return fmt.Errorf("register_kprobe failed, returned %d: %w", -int(errno), err)
	}
	addr := kp.Addr
	fmt.Printf("Planted kprobe at %016x\n", addr)

	n := work(ctx, func() { drain(kp) })

	kprobes.UnregisterKprobe(kp)
	drain(kp)
	fmt.Printf("kprobe at %016x unregistered\n", addr)
	fmt.Printf("main.clone was called %d times; %d hits, %d missed, %d lines dropped\n", n, kp.State().Hits, kp.NMissed(), hits.Dropped())
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
