package otlptest

import (
	"context"
	"encoding/pem"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"kprobes.dev/kprobes/internal/otlp"
)

// server takes spans as a collector does.
type server struct {
	collector.UnimplementedTraceServiceServer
	t       *testing.T
	answers []error // one after the other; then nil
	partial *collector.ExportTracePartialSuccess
	got     []*collector.ExportTraceServiceRequest
}

func (s *server) Export(ctx context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("x-key")) != 1 || md.Get("x-key")[0] != "secret" {
		s.t.Errorf("metadata %v", md)
	}
	n := len(s.got)
	s.got = append(s.got, r)
	if n < len(s.answers) && s.answers[n] != nil {
		return nil, s.answers[n]
	}
	return &collector.ExportTraceServiceResponse{PartialSuccess: s.partial}, nil
}

// start serves, and gives the address without its scheme.
func (s *server) start(o ...grpc.ServerOption) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	g := grpc.NewServer(o...)
	collector.RegisterTraceServiceServer(g, s)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	s.t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
	return l.Addr().String()
}

// later is a status that asks to come again.
func later(t *testing.T, code codes.Code, after time.Duration) error {
	s, err := status.New(code, "busy\nwith this").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	if err != nil {
		t.Fatal(err)
	}
	return s.Err()
}

func TestGRPC(t *testing.T) {
	for _, tt := range []struct {
		name    string
		answers []error
		partial *collector.ExportTracePartialSuccess
		want    otlp.Stats
		err     string
	}{
		{name: "taken", want: otlp.Stats{Sent: 2}},
		{name: "partly", partial: &collector.ExportTracePartialSuccess{RejectedSpans: 1, ErrorMessage: "too old"}, want: otlp.Stats{Sent: 1, Rejected: 1}, err: "too old"},
		{
			name:    "again",
			answers: []error{status.Error(codes.Unavailable, "down"), later(t, codes.ResourceExhausted, time.Millisecond), status.Error(codes.Aborted, "")},
			want:    otlp.Stats{Sent: 2, Retries: 3},
		},
		{name: "exhausted", answers: []error{status.Error(codes.ResourceExhausted, "quota 100 % used")}, want: otlp.Stats{Failed: 2}, err: "status 8: quota 100 % used"},
		{name: "long", answers: []error{later(t, codes.Unavailable, time.Hour)}, want: otlp.Stats{Failed: 2}, err: "status 14: busy with this"},
		{name: "refused", answers: []error{status.Error(codes.Unauthenticated, "who are you")}, want: otlp.Stats{Failed: 2}, err: "status 16: who are you"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &server{t: t, answers: tt.answers, partial: tt.partial}
			st := exported(t, "grpc://"+s.start(), &otlp.Options{})
			err := st.Err
			if st.Err = nil; st != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%+v, %v", st, err)
			}
			for _, m := range s.got {
				wanted(t, m)
			}
		})
	}
}

// TestGRPCTLS sends with TLS to a server whose certificate the system knows.
func TestGRPCTLS(t *testing.T) {
	https := httptest.NewTLSServer(nil)
	defer https.Close()
	file := filepath.Join(t.TempDir(), "certificate")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: https.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", file) // read when a certificate is checked first
	s := &server{t: t}
	address := s.start(grpc.Creds(credentials.NewServerTLSFromCert(&https.TLS.Certificates[0])))
	if st := exported(t, "grpcs://"+address, &otlp.Options{}); st != (otlp.Stats{Sent: 2}) {
		t.Errorf("%+v", st)
	}
	if len(s.got) != 1 {
		t.Fatalf("%d requests", len(s.got))
	}
	wanted(t, s.got[0])
	if st := exported(t, "grpc://"+address, &otlp.Options{Patience: time.Nanosecond}); st.Failed != 2 || st.Err == nil {
		t.Errorf("without TLS: %+v", st)
	}
}
