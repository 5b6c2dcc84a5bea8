// Command gohammer probes itself while it works: 16 goroutines run a few hot functions, and
// 16 others register, enable, disable and unregister kprobes, kretprobes and jprobes on
// them. Stacks grow and move, goroutines are preempted in loops and change threads, the
// garbage collector runs all the time, and the CPU is profiled at 1 kHz.
//
//	gohammer [-kinds LIST] [-funcs LIST] [-probers N] [-gc=false] [-profile=false]
//	         prints "ready"; commands: phase MS, hot MS, quit
//
// The hot functions count their calls for themselves. "phase MS" registers one probe of
// each kind, where a function takes it, before the others begin, runs all for so many
// milliseconds, and unregisters them when all have ended; "hot" does the same, and some of
// the probers probe functions of the runtime. The answer is a report: what each of those
// probes counted beside what its function did; what the others found wrong; how many bytes
// of generated code are left. The flags leave things out, to reduce a failure.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"kprobes.dev/kprobes"
)

// workers is the number of goroutines that run the hot functions.
const workers = 16

// What is left out.
var (
	onlyKinds = flag.String("kinds", strings.Join(kinds, ","), "kinds of probes")
	onlyFuncs = flag.String("funcs", "", "hot functions to run; none: all")
	probers   = flag.Int("probers", 16, "goroutines that probe")
	gc        = flag.Bool("gc", true, "collect garbage all the time")
	profiling = flag.Bool("profile", true, "profile the CPU")
)

// report is the answer to "phase".
type report struct {
	Whole    []count        `json:"whole"`    // the probes that were armed all the time
	Rounds   map[string]int `json:"rounds"`   // what the probers did, by kind of probe
	Hits     uint64         `json:"hits"`     // of the probers' probes
	Calls    uint64         `json:"calls"`    // of all hot functions
	Grown    uint64         `json:"grown"`    // times that a stack had to grow at least
	Switched uint64         `json:"switched"` // times that a worker found itself on another thread
	GCs      uint32         `json:"gcs"`
	Mappings int            `json:"mappings"` // of the process's memory
	RSS      uint64         `json:"rss"`      // KiB
	Code     uint64         `json:"code"`     // bytes of generated code that are left
	Problems []string       `json:"problems"` // what was found wrong, the first of it
}

// problems keeps what was found wrong.
var problems struct {
	sync.Mutex
	list []string
}

// maxProblems bounds what is kept.
const maxProblems = 20

func wrong(format string, args ...any) {
	problems.Lock()
	defer problems.Unlock()
	if len(problems.list) < maxProblems {
		problems.list = append(problems.list, fmt.Sprintf(format, args...))
	}
}

func takeProblems() []string {
	problems.Lock()
	defer problems.Unlock()
	out := problems.list
	problems.list = nil
	return out
}

// phase hammers for a while.
func phase(d time.Duration, rt bool) *report {
	r := &report{Rounds: map[string]int{}}
	before := totals()
	whole := registerWhole()
	stop := make(chan bool)
	var work, probe sync.WaitGroup
	for i := range workers {
		work.Go(func() { worker(i, stop) })
	}
	out := make([]tally, *probers)
	for i := range *probers {
		probe.Go(func() { out[i] = prober(i, rt, stop) })
	}
	if *gc {
		probe.Go(func() { collect(stop) })
	}
	time.Sleep(d)
	close(stop)
	probe.Wait()
	work.Wait()
	r.Whole = unregisterWhole(whole, before)
	for _, t := range out {
		for k, n := range t.rounds {
			r.Rounds[k] += n
		}
		r.Hits += t.hits
	}
	for name, n := range totals() {
		r.Calls += n.calls - before[name].calls
	}
	r.fill()
	return r
}

// collect keeps the garbage collector busy, which also makes stacks shrink.
func collect(stop chan bool) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(10 * time.Millisecond):
			runtime.GC()
		}
	}
}

// fill tells what of the process is as it is.
func (r *report) fill() {
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	r.GCs, r.Grown, r.Switched = ms.NumGC, grown.Load(), switched.Load()
	if b, err := os.ReadFile("/proc/self/maps"); err == nil {
		r.Mappings = strings.Count(string(b), "\n")
	}
	if b, err := os.ReadFile("/proc/self/status"); err == nil {
		_, rest, _ := strings.Cut(string(b), "VmRSS:")
		_, _ = fmt.Sscan(rest, &r.RSS)
	}
	r.Code = codeUsed()
	r.Problems = takeProblems()
}

// codeUsed is the number of bytes of generated code that are taken.
func codeUsed() uint64 {
	c, err := kprobes.Self()
	if err != nil {
		wrong("%v", err)
		return 0
	}
	return c.Target().Capabilities().CodeUsed()
}

// profile makes the runtime send SIGPROF a thousand times a second of CPU time. The
// rate is set first: pprof would take a hundred, and says on stderr that it is too late.
func profile() {
	runtime.SetCPUProfileRate(1000)
	if err := pprof.StartCPUProfile(io.Discard); err != nil {
		wrong("profile: %v", err)
	}
}

// choose does as the flags say, and says whether anything is left.
func choose() bool {
	kinds = slices.DeleteFunc(kinds, func(k string) bool { return !slices.Contains(strings.Split(*onlyKinds, ","), k) })
	if *onlyFuncs != "" {
		hots = slices.DeleteFunc(hots, func(h *hot) bool { return !slices.Contains(strings.Split(*onlyFuncs, ","), h.name) })
	}
	return len(kinds) > 0 && len(hots) > 0
}

func main() {
	flag.Parse()
	if !choose() {
		os.Exit(2)
	}
	runtime.GOMAXPROCS(max(4, runtime.NumCPU()))
	if *gc {
		debug.SetGCPercent(20)
	}
	if *profiling {
		profile()
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() && in.Text() != "quit" {
		var what string
		var ms int
		_, _ = fmt.Sscan(in.Text(), &what, &ms)
		if err := json.NewEncoder(os.Stdout).Encode(phase(time.Duration(ms)*time.Millisecond, what == "hot")); err != nil {
			os.Exit(1)
		}
	}
	pprof.StopCPUProfile()
	fmt.Println("{}")
}
