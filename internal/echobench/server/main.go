// Command server answers requests over HTTP and gRPC with what they ask for: a number, and with -ids the goroutine that it was answered on.
//
// It prints a line with its addresses, "HOST:PORT HOST:PORT". For each line that it reads it prints how many requests it has answered over HTTP and
// gRPC and how much CPU time it has taken, in nanoseconds, and at the end of its input it ends.
package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

var (
	ids          = flag.Bool("ids", false, "answer with the goroutine too")
	overHTTP     atomic.Uint64
	overGRPC     atomic.Uint64
	serviceOfOne = grpc.ServiceDesc{
		ServiceName: "echo.Echo",
		HandlerType: (*echoer)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Say", Handler: say}},
	}
)

// echoer is the service.
type echoer interface {
	Say(context.Context, *wrapperspb.StringValue) (*wrapperspb.StringValue, error)
}

type service struct{}

// answer is a request's answer: its number, and the goroutine.
//
//go:noinline
func answer(id uint64) string {
	if !*ids {
		return fmt.Sprintf("%016x", id)
	}
	return fmt.Sprintf("%016x %d", id, goroutine())
}

// goroutine reads the number of the goroutine out of its trace.
func goroutine() uint64 {
	b := make([]byte, 64)
	words := bytes.Fields(b[:runtime.Stack(b, false)])
	n, err := strconv.ParseUint(string(words[1]), 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	return n
}

// Say answers over gRPC.
func (service) Say(_ context.Context, in *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	id, err := strconv.ParseUint(in.Value, 16, 64)
	if err != nil {
		return nil, err
	}
	overGRPC.Add(1)
	return wrapperspb.String(answer(id)), nil
}

// say is what gRPC's generator makes for a method.
func say(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
	in := new(wrapperspb.StringValue)
	if err := decode(in); err != nil {
		return nil, err
	}
	if intercept == nil {
		return srv.(echoer).Say(ctx, in)
	}
	info := &grpc.UnaryServerInfo{Server: srv, FullMethod: "/echo.Echo/Say"}
	return intercept(ctx, in, info, func(ctx context.Context, in any) (any, error) {
		return srv.(echoer).Say(ctx, in.(*wrapperspb.StringValue))
	})
}

// ServeHTTP answers over HTTP.
func (service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseUint(r.PathValue("id"), 16, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	overHTTP.Add(1)
	fmt.Fprintln(w, answer(id))
}

// cpu is the CPU time of the process, in nanoseconds.
func cpu() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		log.Fatal(err)
	}
	return ts.Nano()
}

func listen() net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	return l
}

func main() {
	flag.Parse()
	mux := http.NewServeMux()
	mux.Handle("/echo/{id}", service{})
	h, g := listen(), listen()
	go func() { log.Fatal(http.Serve(h, mux)) }()
	s := grpc.NewServer()
	s.RegisterService(&serviceOfOne, service{})
	go func() { log.Fatal(s.Serve(g)) }()
	fmt.Println(h.Addr(), g.Addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(overHTTP.Load(), overGRPC.Load(), cpu())
	}
}
