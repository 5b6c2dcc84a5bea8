// Command goservice is an HTTP service over TLS that probes itself: a fixed list of 1,000
// functions (functions.txt), of its own, of the standard library and of the runtime.
//
//	goservice     prints "ready"; commands: load N C, probe, counts, churn, settle, unprobe, survey GLOB, quit
//
// "load N C" sends N requests from C clients of the same process, each on its connection,
// and answers how many were answered wrongly, a hash over all answers, and requests a
// second. Two loads with the same numbers do the same. "probe" arms all, most as counters,
// some with a handler in Go at the entry or at the return; "counts" tells what they have
// counted; "churn" begins to disarm and arm them all in a loop, which "settle" ends; and
// "unprobe" takes them out and tells how many bytes of generated code are left. "survey"
// puts a counter on every function of a pattern that can have one, runs a load and tells
// which were hit: the list was chosen from it.
//
// The garbage collector runs all the time, and the CPU is profiled at 1 kHz.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"time"
)

// profile makes the runtime send SIGPROF a thousand times a second of CPU time. The
// rate is set first: pprof would take a hundred, and says on stderr that it is too late.
func profile() error {
	runtime.SetCPUProfileRate(1000)
	return pprof.StartCPUProfile(io.Discard)
}

// collect keeps the garbage collector busy.
func collect() {
	for range time.Tick(20 * time.Millisecond) {
		runtime.GC()
	}
}

// do does a command. What it gives is the answer.
func (s *service) do(command string) (any, error) {
	f := strings.Fields(command)
	if len(f) == 0 {
		return nil, fmt.Errorf("no command")
	}
	switch f[0] {
	case "load":
		var n, c int
		if _, err := fmt.Sscan(strings.Join(f[1:], " "), &n, &c); err != nil || n < 1 || c < 1 {
			return nil, fmt.Errorf("load: two numbers above 0 are wanted: %q", command)
		}
		return s.load(n, c), nil
	case "probe":
		return s.probe()
	case "counts":
		return s.counts(), nil
	case "churn":
		return nil, s.startChurn()
	case "settle":
		return s.endChurn()
	case "unprobe":
		return s.unprobe()
	case "survey":
		return s.survey(strings.Join(f[1:], " "))
	}
	return nil, fmt.Errorf("%q is no command", command)
}

func main() {
	debug.SetGCPercent(50)
	s, err := serve()
	if err == nil {
		err = profile()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go collect()
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() && in.Text() != "quit" {
		v, err := s.do(in.Text())
		if err != nil {
			v = map[string]string{"error": err.Error()}
		}
		b, err := json.Marshal(v)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Printf("%s\n", b)
	}
	pprof.StopCPUProfile()
	fmt.Println("{}")
}
