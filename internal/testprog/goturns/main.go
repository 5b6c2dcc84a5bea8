// Command goturns probes itself in turns while it works: it opens a registry of its own, registers
// a probe of each kind, has four goroutines call what is probed, unregisters them and closes the
// registry; between two turns the same calls run without probes. So other processes' tracers
// sometimes find an engine in it and sometimes none.
//
//	goturns
//	         prints "ready", and takes turns from then on; commands: turns, quit
//
// "turns" answers with a report of all turns so far. A turn in which another engine holds the
// process is refused with EBUSY; every other error, every wrong result of a function, and every
// difference between what was called and what the probes counted is a problem.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kprobes.dev/kprobes"
	"kprobes.dev/kprobes/target/self"
)

// report is the answer to "turns".
type report struct {
	Turns    int            `json:"turns"`
	Held     int            `json:"held"`     // turns in which this program had its probes
	Refused  map[string]int `json:"refused"`  // turns in which another engine held it, by what was said
	Calls    uint64         `json:"calls"`    // of leaf
	Problems []string       `json:"problems"` // the first few
}

var (
	mu  sync.Mutex
	sum = report{Refused: map[string]int{}}
)

// wrong notes a problem.
func wrong(format string, args ...any) {
	mu.Lock()
	defer mu.Unlock()
	if len(sum.Problems) < 20 {
		sum.Problems = append(sum.Problems, fmt.Sprintf(format, args...))
	}
}

// leaf is probed by this program, and by others.
//
//go:noinline
func leaf(a, b uint64) uint64 { return a*31 + b>>3 ^ 0x9e37 }

// deep makes the stack grow.
//
//go:noinline
func deep(n int) int {
	var pad [128]byte
	pad[n&127] = 1
	if n == 0 {
		return 0
	}
	return deep(n-1) + int(pad[n&127])
}

// What a turn's goroutines do.
const (
	workers = 4
	rounds  = 500
	depth   = 20
)

// work calls the functions and checks what they return.
func work() {
	var wg sync.WaitGroup
	for w := range uint64(workers) {
		wg.Go(func() {
			for i := range uint64(rounds) {
				if got := leaf(i, w); got != i*31+w>>3^0x9e37 {
					wrong("leaf(%d, %d) is %d", i, w, got)
				}
				if i%50 == 0 {
					if got := deep(depth); got != depth {
						wrong("deep(%d) is %d", depth, got)
					}
				}
			}
		})
	}
	wg.Wait()
}

// Calls of a turn.
const (
	leafCalls = workers * rounds
	deepCalls = workers * rounds / 50 * (depth + 1)
)

// turn has the probes in while the goroutines work.
func turn() error {
	t, err := self.Attach(nil)
	if err != nil {
		return err
	}
	c, err := kprobes.Open(t, nil)
	if err != nil {
		return errors.Join(err, t.Close())
	}
	var pre, ret, paired, jumped atomic.Uint64
	k := &kprobes.Kprobe{SymbolName: "main.leaf", PreHandler: func(*kprobes.Kprobe, *kprobes.Regs) int { pre.Add(1); return 0 }}
	r := &kprobes.Kretprobe{
		Kp: kprobes.Kprobe{SymbolName: "main.deep"}, DataSize: 8, MaxActive: 4096,
		EntryHandler: func(ri *kprobes.KretprobeInstance, _ *kprobes.Regs) int { ri.Data[0] = 0x5a; return 0 },
		Handler: func(ri *kprobes.KretprobeInstance, _ *kprobes.Regs) int {
			ret.Add(1)
			if ri.Data[0] == 0x5a {
				paired.Add(1)
			}
			return 0
		},
	}
	j := &kprobes.Jprobe{Kp: kprobes.Kprobe{SymbolName: "main.leaf"}, Entry: func(_, b uint64) { jumped.Add(b) }}
	if err := errors.Join(c.RegisterKprobe(k)); err != nil {
		return errors.Join(err, c.Close(nil))
	}
	if err := errors.Join(c.RegisterKretprobe(r), c.RegisterJprobe(j)); err != nil {
		wrong("the second registration: %v", err)
	}
	work()
	c.UnregisterKretprobe(r)
	c.UnregisterJprobe(j)
	c.UnregisterKprobe(k)
	check := func(what string, s kprobes.State, ran, calls uint64) {
		if s.Hits != calls-s.Misses.Total() || ran != s.Hits {
			wrong("%s: %d calls, %d runs of the handler, %+v", what, calls, ran, s)
		}
	}
	check("kprobe", k.State(), pre.Load(), leafCalls)
	check("kretprobe", r.State(), ret.Load(), deepCalls)
	if ret.Load() != paired.Load() {
		wrong("%d of %d returns with another call's data", ret.Load()-paired.Load(), ret.Load())
	}
	const seen = rounds * workers * (workers - 1) / 2
	if s := j.Kp.State(); s.Misses.Total() == 0 && jumped.Load() != seen {
		wrong("jprobe: arguments add up to %d, not %d", jumped.Load(), seen)
	}
	return c.Close(nil)
}

// turns takes turns until stop is closed.
func turns(stop chan bool) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		err := turn()
		work()
		mu.Lock()
		sum.Turns++
		sum.Calls += leafCalls
		switch {
		case err == nil:
			sum.Held++
			sum.Calls += leafCalls
		case errors.Is(err, unix.EBUSY):
			text, _, _ := strings.Cut(err.Error(), "started") // when the holder was started differs each time
			sum.Refused[strings.Map(undigit, text)]++
		}
		mu.Unlock()
		if err != nil && !errors.Is(err, unix.EBUSY) {
			wrong("%v", err)
		}
	}
}

// undigit makes all numbers look alike.
func undigit(r rune) rune {
	if r >= '0' && r <= '9' {
		return -1
	}
	return r
}

func main() {
	runtime.GOMAXPROCS(max(4, runtime.NumCPU()))
	stop := make(chan bool)
	var wg sync.WaitGroup
	fmt.Println("ready")
	wg.Go(func() { turns(stop) })
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() && in.Text() != "quit" {
		mu.Lock()
		err := json.NewEncoder(os.Stdout).Encode(&sum)
		mu.Unlock()
		if err != nil {
			os.Exit(1)
		}
	}
	close(stop)
	wg.Wait()
	if err := json.NewEncoder(os.Stdout).Encode(&sum); err != nil {
		os.Exit(1)
	}
}
