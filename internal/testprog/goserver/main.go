// Command goserver is a net/http server whose handlers do what makes return probes hard in
// Go: they recurse, make their stack grow and so move, panic and recover, and keep the
// garbage collector busy.
//
//	goserver     prints "ready", then its address, "127.0.0.1:PORT"; commands: load N C, gc, profile, counts, times, quit
//
// Any client on this machine may ask it too, by HTTP/1 or HTTP/2:
//
//	/walk?n=N    Walk(N): recurses N deep with a large frame; answers N*(N+1)/2
//	/panic?n=N   Climb(N) panics N frames deep; Handle recovers; answers "recovered N"
//	/mix?n=N     both by turns, N times, allocating
//	/status?n=N  answers with the status N, and with 0 nothing at all
//	/counts      exact counters as JSON
//
// "profile" profiles the CPU at 1 kHz from then on. "load N C" sends N requests from C clients of its own, checks every answer, and answers the
// counts. In the counts: every call of Handle, Walk and Climb; Walk always returns, Climb
// returns only for frames that did not panic ("climb_unwound" counts those that did); "status N", of what /status has answered. "times" answers the calls of Handle by
// kind, and the nanoseconds that they have taken: inside of it, and around it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxDepth bounds what a request may ask for, in calls.
const maxDepth = 2000

var counts struct {
	handle, walk, climb, climbUnwound, recovered, bad atomic.Uint64
}

// statuses are what /status has answered.
var statuses [600]atomic.Uint64

// taken is what calls of Handle have taken, in nanoseconds: from its first statement to its last one, and around it.
type taken struct{ calls, inner, outer atomic.Uint64 }

// times are those of each kind.
var times = map[string]*taken{"walk": {}, "panic": {}, "mix": {}}

// junk keeps the last few allocations alive, so that the collector has something to mark.
var junk [64]atomic.Pointer[[]byte]

// Walk recurses n deep and returns n + (n-1) + … + 1.
//
//go:noinline
func Walk(n uint64) uint64 {
	counts.walk.Add(1)
	var frame [48]uint64
	frame[n%48] = n
	if n == 0 {
		return 0
	}
	if n%16 == 0 {
		b := make([]byte, 512+n)
		junk[n/16%64].Store(&b)
	}
	return Walk(n-1) + frame[n%48]
}

// Climb recurses n deep and panics there if fail is set; else it returns n.
//
//go:noinline
func Climb(n uint64, fail bool) uint64 {
	counts.climb.Add(1)
	done := false
	defer func() {
		if !done {
			counts.climbUnwound.Add(1)
		}
	}()
	var r uint64
	switch {
	case n > 0:
		r = Climb(n-1, fail) + 1
	case fail:
		panic("as asked")
	}
	done = true
	return r
}

// Handle answers one request. It returns the length of the answer, also where it recovered.
//
//go:noinline
func Handle(w http.ResponseWriter, kind string, n uint64) (length int) {
	began := time.Now()
	counts.handle.Add(1)
	defer func() {
		if e := recover(); e != nil {
			counts.recovered.Add(1)
			length, _ = fmt.Fprintf(w, "recovered %d", n)
		}
		times[kind].inner.Add(uint64(time.Since(began)))
	}()
	var answer uint64
	switch kind {
	case "walk":
		answer = Walk(n)
	case "panic":
		answer = Climb(n, true)
	case "mix":
		answer = mix(n)
	}
	length, _ = fmt.Fprint(w, answer)
	return length
}

// mix walks and climbs by turns and returns what Walk(n) does.
func mix(n uint64) (sum uint64) {
	for i := range n {
		if i%2 == 0 {
			sum = Walk(n)
		} else if Climb(i, false) != i {
			counts.bad.Add(1)
		}
	}
	return sum
}

func serve(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseUint(r.FormValue("n"), 10, 64)
	if err != nil || n > maxDepth {
		http.Error(w, "n: a number up to 2000", http.StatusBadRequest)
		return
	}
	kind := strings.TrimPrefix(r.URL.Path, "/")
	t := times[kind]
	if t == nil {
		http.NotFound(w, r)
		return
	}
	began := time.Now()
	Handle(w, kind, n)
	t.outer.Add(uint64(time.Since(began)))
	t.calls.Add(1)
}

// status answers with the status that is asked for; with 0 it leaves that to net/http.
func status(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseUint(r.FormValue("n"), 10, 64)
	if err != nil || n > 0 && n < 200 || n >= uint64(len(statuses)) {
		http.Error(w, "n: 0, or a status from 200 to 599", http.StatusBadRequest)
		return
	}
	statuses[n].Add(1)
	if n > 0 {
		w.WriteHeader(int(n))
	}
}

func current() map[string]uint64 {
	c := &counts
	all := map[string]uint64{
		"main.Handle": c.handle.Load(), "main.Walk": c.walk.Load(), "main.Climb": c.climb.Load(),
		"climb_unwound": c.climbUnwound.Load(), "recovered": c.recovered.Load(), "bad": c.bad.Load(),
	}
	for n := range statuses {
		if k := statuses[n].Load(); k > 0 {
			all["status "+strconv.Itoa(n)] = k
		}
	}
	return all
}

// timesOf are the times of each kind as "times" answers them.
func timesOf() map[string]map[string]uint64 {
	all := map[string]map[string]uint64{}
	for kind, t := range times {
		all[kind] = map[string]uint64{"calls": t.calls.Load(), "inner": t.inner.Load(), "outer": t.outer.Load()}
	}
	return all
}

// request sends the i-th request and compares its answer.
func request(client *http.Client, base string, i uint64) {
	kind, n := [3]string{"walk", "panic", "mix"}[i%3], i%200
	want := strconv.FormatUint(n*(n+1)/2, 10)
	switch kind {
	case "panic":
		want = fmt.Sprintf("recovered %d", n)
	case "mix":
		n %= 20
		want = strconv.FormatUint(n*(n+1)/2, 10)
	}
	resp, err := client.Get(fmt.Sprintf("http://%s/%s?n=%d", base, kind, n))
	if err != nil {
		counts.bad.Add(1)
		return
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err != nil || string(got) != want {
		counts.bad.Add(1)
	}
}

// load sends n requests from c clients.
func load(base string, n, c uint64) {
	var next atomic.Uint64
	var wg sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: int(c)}}
	for range c {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < n; i = next.Add(1) - 1 {
				request(client, base, i)
			}
		})
	}
	wg.Wait()
	client.CloseIdleConnections()
}

// profile makes the runtime send SIGPROF a thousand times a second of CPU time. The
// rate is set first: pprof would take a hundred, and says on stderr that it is too late.
func profile() {
	runtime.SetCPUProfileRate(1000)
	if pprof.StartCPUProfile(io.Discard) != nil {
		counts.bad.Add(1)
	}
}

func print(v any) {
	if err := json.NewEncoder(os.Stdout).Encode(v); err != nil {
		os.Exit(1)
	}
}

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/counts", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(current()) })
	mux.HandleFunc("/status", status)
	mux.HandleFunc("/", serve)
	server := http.Server{Handler: mux, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	go func() {
		fmt.Fprintln(os.Stderr, server.Serve(l))
		os.Exit(1)
	}()
	base := l.Addr().String()
	fmt.Printf("ready\n%s\n", base)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() && in.Text() != "quit" {
		f := strings.Fields(in.Text() + " 1 1 .")
		n, _ := strconv.ParseUint(f[1], 10, 32)
		c, _ := strconv.ParseUint(f[2], 10, 16)
		switch f[0] {
		case "load":
			load(base, n, max(c, 1))
		case "gc":
			runtime.GC()
		case "profile":
			profile()
		case "times":
			print(timesOf())
			continue
		}
		print(current())
	}
	print(current())
}
