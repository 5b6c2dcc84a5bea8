// Command grpcecho is a gRPC server and its clients.
//
//	grpcecho CALLS CLIENTS    each client makes so many calls, by Call, and a stream for each ten of them, by Follow
//
// The argument n of Call and Follow counts up over all clients. The name of the service that a call asks for is n in decimal, and tells the handler how
// to answer: by an error if 5 divides n. A stream gets one answer, or an error if 20 divides n. At the end the program prints its counts: calls, streams, and how many
// of both have failed, at the client and at the server.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

var counts struct {
	calls, callsFailed, streams, streamsFailed, served, servedFailed, followed, followedFailed atomic.Uint64
}

type server struct {
	pb.UnimplementedHealthServer
}

// Check answers a call.
func (s *server) Check(_ context.Context, req *pb.HealthCheckRequest) (*pb.HealthCheckResponse, error) {
	n, err := strconv.Atoi(req.Service)
	if err == nil {
		err = Answer(n)
	}
	return &pb.HealthCheckResponse{Status: pb.HealthCheckResponse_SERVING}, err
}

// Answer says how call n is answered.
//
//go:noinline
func Answer(n int) error {
	counts.served.Add(1)
	if n%5 == 0 {
		counts.servedFailed.Add(1)
		return status.Error(codes.NotFound, "five divides it")
	}
	return nil
}

// Watch answers a stream.
func (s *server) Watch(req *pb.HealthCheckRequest, to pb.Health_WatchServer) error {
	counts.followed.Add(1)
	n, err := strconv.Atoi(req.Service)
	if err != nil || n%20 == 0 {
		counts.followedFailed.Add(1)
		return status.Error(codes.NotFound, "twenty divides it")
	}
	return to.Send(&pb.HealthCheckResponse{Status: pb.HealthCheckResponse_SERVING})
}

// Call makes a call.
//
//go:noinline
func Call(c pb.HealthClient, n int) error {
	counts.calls.Add(1)
	_, err := c.Check(context.Background(), &pb.HealthCheckRequest{Service: strconv.Itoa(n)})
	if err != nil {
		counts.callsFailed.Add(1)
	}
	return err
}

// Follow makes a stream and reads it to its end.
//
//go:noinline
func Follow(c pb.HealthClient, n int) error {
	counts.streams.Add(1)
	s, err := c.Watch(context.Background(), &pb.HealthCheckRequest{Service: strconv.Itoa(n)})
	if err == nil {
		_, err = s.Recv()
	}
	if err == nil {
		s.Recv() // its end: the server has returned
		return nil
	}
	counts.streamsFailed.Add(1)
	return err
}

func load(c pb.HealthClient, first, calls int) {
	for n := first; n < first+calls; n++ {
		_ = Call(c, n) // counted
		if n%10 == 0 {
			_ = Follow(c, n)
		}
	}
}

func run(calls, clients int) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	pb.RegisterHealthServer(s, &server{})
	go s.Serve(l)
	//lint:ignore SA1019 the oldest version that is tested has no NewClient
	conn, err := grpc.Dial(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() { load(pb.NewHealthClient(conn), 1+i*calls, calls) })
	}
	all.Wait()
	s.GracefulStop()
	for handles() { // the oldest version does not wait for what handles streams
		time.Sleep(time.Millisecond)
	}
	return conn.Close()
}

// handles says whether a goroutine of the server handles a stream.
func handles() bool {
	all := make([]byte, 1<<20)
	return bytes.Contains(all[:runtime.Stack(all, true)], []byte("grpc.(*Server).handleStream"))
}

func main() {
	var calls, clients int
	_, err := fmt.Sscan(os.Args[1]+" "+os.Args[2], &calls, &clients)
	if err == nil {
		err = run(calls, clients)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]uint64{
		"calls": counts.calls.Load(), "calls_failed": counts.callsFailed.Load(), "streams": counts.streams.Load(), "streams_failed": counts.streamsFailed.Load(),
		"served": counts.served.Load(), "served_failed": counts.servedFailed.Load(), "followed": counts.followed.Load(), "followed_failed": counts.followedFailed.Load(),
	})
}
