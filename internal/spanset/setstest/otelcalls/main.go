// Command otelcalls calls functions with contexts that carry spans of OpenTelemetry, at random, and tells of each call what the package of
// OpenTelemetry says of its context:
//
//	otelcalls SEED ROUNDS
//
// A line of JSON for each call goes to standard output when all have returned.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Call is what a call knows of itself.
type Call struct {
	N int
	// Outer are the calls that it is in, the innermost last: those of its goroutine, and before them the one that it was created in.
	Outer   []int
	Created bool // the first of them is the one that the goroutine was created in
	// What its context carries.
	Trace, Span     string
	Sampled, Remote bool
	Unread          bool // its context can not be gone through
}

// program makes calls. Each goroutine has one.
type program struct {
	rnd     *rand.Rand
	outer   []int
	created bool
	tracer  trace.Tracer
}

var (
	mu   sync.Mutex
	all  []Call
	some sync.WaitGroup
)

// begin notes a call.
func (p *program) begin(ctx context.Context, unread bool) int {
	c := Call{Outer: append([]int(nil), p.outer...), Created: p.created, Unread: unread}
	if ctx != nil && !unread {
		if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
			c.Trace, c.Span, c.Sampled, c.Remote = sc.TraceID().String(), sc.SpanID().String(), sc.IsSampled(), sc.IsRemote()
		}
	}
	mu.Lock()
	defer mu.Unlock()
	c.N = len(all) + 1
	all = append(all, c)
	return c.N
}

// in runs what a call does.
func (p *program) in(n int, f func()) {
	p.outer = append(p.outer, n)
	f()
	p.outer = p.outer[:len(p.outer)-1]
}

// With has a context.
//
//go:noinline
func With(ctx context.Context, n int, p *program, f func()) { p.in(n, f) }

// Serve has a context in a request.
//
//go:noinline
func Serve(n int, r *http.Request, p *program, f func()) { p.in(n, f) }

// Without has none.
//
//go:noinline
func Without(n int, p *program, f func()) { p.in(n, f) }

// Contexts of the program's own.
type (
	named struct {
		name string
		context.Context
	}
	detached struct {
		n      int
		parent context.Context
	}
	double struct {
		context.Context
		other context.Context
	}
	key struct{ n int }
)

func (d detached) Deadline() (time.Time, bool) { return time.Time{}, false }
func (d detached) Done() <-chan struct{}       { return nil }
func (d detached) Err() error                  { return nil }
func (d detached) Value(k any) any             { return d.parent.Value(k) }

// long is more contexts than are gone through.
const long = 64

// derive makes another context of one. It says whether that can not be gone through.
func (p *program) derive(ctx context.Context) (to context.Context, unread bool) {
	switch p.rnd.IntN(16) {
	case 0:
		return context.Background(), false
	case 1:
		to, cancel := context.WithCancel(ctx)
		cancel()
		return to, false
	case 2:
		to, cancel := context.WithTimeout(ctx, time.Hour)
		cancel()
		return to, false
	case 3:
		return context.WithValue(ctx, key{p.rnd.IntN(9)}, "v"), false
	case 4:
		return context.WithoutCancel(ctx), false
	case 5:
		return named{"value", ctx}, false
	case 6:
		return &named{"pointer", ctx}, false
	case 7:
		return detached{1, ctx}, false
	case 8:
		to, stop := signal.NotifyContext(ctx, syscall.SIGUSR1)
		stop()
		return to, false
	case 9, 10, 11:
		to, _ := p.tracer.Start(ctx, "work")
		return to, false
	case 12:
		var id trace.SpanContextConfig
		for i := range id.TraceID {
			id.TraceID[i] = byte(1 + p.rnd.IntN(255))
		}
		for i := range id.SpanID {
			id.SpanID[i] = byte(1 + p.rnd.IntN(255))
		}
		id.TraceFlags = trace.TraceFlags(p.rnd.IntN(2))
		return trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(id)), false
	case 13:
		to, _ := noop.NewTracerProvider().Tracer("none").Start(ctx, "none")
		return to, false
	case 14:
		to, _ := otel.Tracer("global").Start(ctx, "none")
		return to, false
	}
	return &double{ctx, ctx}, true
}

// far is a context with the span of a new one, behind others: as many as are gone through, or one more.
func (p *program) far() (ctx context.Context, unread bool) {
	ctx, _ = p.tracer.Start(context.Background(), "far")
	n := p.rnd.IntN(2)
	for i := range long - 1 + n {
		ctx = context.WithValue(ctx, key{i}, i)
	}
	return ctx, n == 1
}

// calls makes some calls with a context, which is links contexts away from the last one at most.
func (p *program) calls(ctx context.Context, links, depth int) {
	var none context.Context
	for range p.rnd.IntN(4) {
		to, unread := p.derive(ctx)
		next := func() { p.calls(to, links+2, depth+1) }
		if unread || links > 40 || depth > 8 {
			next = func() { p.calls(context.Background(), 1, depth+1) }
		}
		if depth > 12 {
			next = func() {}
		}
		switch p.rnd.IntN(9) {
		case 0:
			With(none, p.begin(none, false), p, next)
		case 1:
			Without(p.begin(none, false), p, next)
		case 2:
			to, unread := p.far()
			With(to, p.begin(to, unread), p, func() {})
		case 3, 4:
			r, err := http.NewRequestWithContext(to, "GET", "http://localhost/", nil)
			if err != nil {
				log.Fatal(err)
			}
			Serve(p.begin(to, unread), r, p, next)
		case 5:
			p.spawn(to, links, depth, unread)
		default:
			With(to, p.begin(to, unread), p, next)
		}
	}
}

// spawn goes on with the calls on another goroutine.
func (p *program) spawn(ctx context.Context, links, depth int, unread bool) {
	if unread {
		ctx = context.Background()
	}
	q := &program{rnd: rand.New(rand.NewPCG(p.rnd.Uint64(), 1)), tracer: p.tracer}
	if n := len(p.outer); n > 0 {
		q.outer, q.created = []int{p.outer[n-1]}, true
	}
	some.Go(func() { q.calls(ctx, links+2, depth+1) })
}

func main() {
	seed, err := strconv.ParseUint(os.Args[1], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	rounds, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	tp := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.6))))
	p := &program{rnd: rand.New(rand.NewPCG(seed, 0)), tracer: tp.Tracer("calls")}
	for range rounds {
		p.calls(context.Background(), 1, 0)
	}
	some.Wait()
	out := bufio.NewWriter(os.Stdout)
	for i := range all {
		if err := json.NewEncoder(out).Encode(&all[i]); err != nil {
			log.Fatal(err)
		}
	}
	if err := out.Flush(); err != nil {
		log.Fatal(err)
	}
}
