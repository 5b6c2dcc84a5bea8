// Package a has handlers that do what an atomic handler must not do.
package a

import (
	"fmt"
	"log"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"kprobes.dev/kprobes"
)

var (
	ch   = make(chan int, 1)
	mu   sync.Mutex
	rw   sync.RWMutex
	wg   sync.WaitGroup
	cond sync.Cond
	conn net.Conn
	hits atomic.Int64
	work = make(chan func(), 1)
)

var channels = kprobes.Kprobe{
	SymbolName: "main.f",
	PreHandler: func(p *kprobes.Kprobe, regs *kprobes.Regs) int {
		ch <- 1        // want `channel: send to a channel in an atomic handler, Kprobe.PreHandler: send in a select with default, or set FlagSleepable`
		<-ch           // want `channel: receive from a channel`
		for range ch { // want `channel: range over a channel`
		}
		select { // want `select: select without default`
		case <-ch:
		case v := <-ch:
			_ = v
		}
		select {
		case ch <- 1:
		default:
		}
		select {
		case ch <- <-ch: // want `channel: receive from a channel`
		case work <- func() { time.Sleep(1) }:
		case v, ok := <-ch:
			_, _ = v, ok
			time.Sleep(1) // want `sleep: time.Sleep`
		default:
			mu.Lock() // want `lock: sync.Mutex.Lock`
		}
		return 0
	},
	PostHandler: func(p *kprobes.Kprobe, regs *kprobes.Regs, flags uint64) {
		rw.RLock()             // want `lock: sync.RWMutex.RLock in an atomic handler, Kprobe.PostHandler`
		wg.Wait()              // want `lock: sync.WaitGroup.Wait`
		cond.Wait()            // want `lock: sync.Cond.Wait`
		runtime.Gosched()      // want `schedule: runtime.Gosched`
		runtime.GC()           // want `schedule: runtime.GC`
		defer runtime.Goexit() // want `schedule: runtime.Goexit`
		if mu.TryLock() {
			hits.Add(1)
			mu.Unlock()
		}
	},
	FaultHandler: func(p *kprobes.Kprobe, regs *kprobes.Regs, trapnr int) int {
		fmt.Println(trapnr)        // want `print: fmt.Println in an atomic handler, Kprobe.FaultHandler`
		log.Printf("%d", trapnr)   // want `print: log.Printf`
		_ = fmt.Sprintf("%v", mu2) // want `print: fmt.Sprintf`
		panic("no")                // want `panic: panic`
	},
}

var mu2 struct{ sync.Locker }

func init() {
	p := &kprobes.Kprobe{SymbolName: "main.g"}
	p.PreHandler = named
	p.PostHandler = func(*kprobes.Kprobe, *kprobes.Regs, uint64) {
		go fmt.Println(<-ch) // want `channel: receive from a channel`
		go func() { time.Sleep(1) }()
		func() {
			conn.Write(nil) // want `io: net.Conn.Write`
		}()
		mu2.Lock() // want `lock: sync.Locker.Lock`
	}
	kprobes.RegisterKprobe(p)
}

func named(p *kprobes.Kprobe, regs *kprobes.Regs) int {
	os.ReadFile("/etc/passwd") // want `io: os.ReadFile in an atomic handler, Kprobe.PreHandler: hand`
	return helper(3)
}

func helper(n int) int {
	var f os.File
	f.Write(nil)                // want `io: os.File.Write in an atomic handler, Kprobe.PreHandler, in helper that it calls`
	syscall.Syscall(1, 2, 3, 4) // want `io: syscall.Syscall`
	syscall.RawSyscall(1, 2, 3, 4)
	net.Dial("tcp", "x") // want `io: net.Dial`
	if n > 0 {
		return helper(n - 1)
	}
	return generic[int](n)
}

func generic[T any](v T) T {
	time.Sleep(1) // want `sleep: time.Sleep in an atomic handler, Kprobe.PreHandler, in generic that it calls`
	return v
}

func returns() {
	handler := func(ri *kprobes.KretprobeInstance, regs *kprobes.Regs) int {
		time.Sleep(1) // want `sleep: time.Sleep in an atomic handler, Kretprobe.Handler`
		return 0
	}
	_ = []*kprobes.Kretprobe{{
		Kp:           kprobes.Kprobe{SymbolName: "main.h", Flags: kprobes.FlagDisabled},
		Handler:      handler,
		EntryHandler: (&state{}).entry,
	}}
	_ = kprobes.Jprobe{kprobes.Kprobe{SymbolName: "main.h"}, jump}
	j := kprobes.Jprobe{}
	kp := kprobes.Kprobe{SymbolName: "main.h"}
	_ = kprobes.Jprobe{Kp: kp, Entry: func() { time.Sleep(1) }} // want `sleep: time.Sleep`
	j.Entry = func(int) { time.Sleep(1) }                       // want `sleep: time.Sleep in an atomic handler, Jprobe.Entry`
}

type state struct{ sync.Mutex }

func (s *state) entry(ri *kprobes.KretprobeInstance, regs *kprobes.Regs) int {
	s.Lock() // want `lock: sync.Mutex.Lock in an atomic handler, Kretprobe.EntryHandler`
	defer s.Unlock()
	return 0
}

func jump(a int, b string) {
	defer hits.Add(1) // want `defer: defer beside one in a loop in an atomic handler, Jprobe.Entry`
	for range a {
		defer hits.Add(1) // want `defer: defer in a loop`
		func() { defer hits.Add(1) }()
	}
	few(a)
	many(a)
	nine()
}

func few(a int) int {
	defer hits.Add(1)
	if a > 0 {
		return 1
	}
	return 0
}

func many(a int) int {
	defer hits.Add(1) // want `defer: defers times returns above 15`
	defer hits.Add(1) // want `defer: defers times returns above 15`
	switch a {
	case 1:
		return 1
	case 2:
		return 2
	case 3:
		return 3
	case 4:
		return 4
	case 5:
		return 5
	case 6:
		return 6
	case 7:
		return 7
	}
	return 8
}

func nine() {
	defer hits.Add(1) // want `more than 8`
	defer hits.Add(1) // want `more than 8`
	defer hits.Add(1) // want `more than 8`
	defer hits.Add(1) // want `more than 8`
	defer hits.Add(1) // want `more than 8`
	defer hits.Add(1) // want `more than 8`
	defer hits.Add(1) // want `more than 8`
	defer hits.Add(1) // want `more than 8`
	defer hits.Add(1) // want `more than 8`
}

func typed() {
	_, _ = kprobes.OnCall(typed, func() { time.Sleep(1) }) // want `sleep: time.Sleep in an atomic handler, OnCall`
	_, _ = kprobes.OnReturn("main.f", prints)
}

func prints(n int) {
	fmt.Println(n) // want `print: fmt.Println in an atomic handler, OnReturn`
}
