package otlp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// grpcMethod is the path of the method that takes spans.
const grpcMethod = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

// grpcSender sends batches over gRPC: a unary call is a POST over HTTP/2 with a prefix of five bytes before its message, and its status is
// in the trailers (gRPC over HTTP/2, doc/PROTOCOL-HTTP2.md of gRPC).
type grpcSender struct {
	url     string
	headers http.Header
	client  *http.Client
}

// Codes of gRPC's status.
const (
	grpcOK                = 0
	grpcCancelled         = 1
	grpcDeadlineExceeded  = 4
	grpcResourceExhausted = 8
	grpcAborted           = 10
	grpcOutOfRange        = 11
	grpcUnavailable       = 14
	grpcDataLoss          = 15
)

// Send implements Sender.
func (s *grpcSender) Send(ctx context.Context, b *Batch) (Answer, error) {
	m := b.Proto()
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	for name, vs := range s.headers {
		req.Header[name] = vs
	}
	req.Header.Set("Content-Type", "application/grpc+proto")
	req.Header.Set("Te", "trailers")
	resp, err := s.client.Do(req)
	if err != nil {
		return Answer{}, unsent(err)
	}
	defer resp.Body.Close()
	answer, err := readAnswer(resp.Body)
	if err != nil {
		return Answer{}, unsent(err)
	}
	if err := grpcStatus(resp); err != nil {
		return Answer{}, err
	}
	if len(answer) < 5 || answer[0] != 0 || uint64(binary.BigEndian.Uint32(answer[1:])) != uint64(len(answer)-5) {
		return Answer{}, errMessage
	}
	return parseAnswer(answer[5:])
}

// grpcStatus is the error that a call ends with. Its status is in the trailers, of an answer without a message in the header.
func grpcStatus(resp *http.Response) error {
	from := resp.Trailer
	if from.Get("Grpc-Status") == "" {
		from = resp.Header
	}
	text := from.Get("Grpc-Status")
	host := resp.Request.URL.Host
	code, err := strconv.Atoi(text)
	switch {
	case text == "" && resp.StatusCode != http.StatusOK:
		return refused(resp, nil)
	case text == "" || err != nil:
		return fmt.Errorf("%s does not speak gRPC: its answer has no grpc-status", host)
	case code == grpcOK:
		return nil
	}
	said, err := url.PathUnescape(from.Get("Grpc-Message"))
	if err != nil {
		said = from.Get("Grpc-Message")
	}
	failed := fmt.Errorf("%s answers with gRPC's status %d: %s", host, code, cmp.Or(oneLine(said), "it gives no reason"))
	after, asked := retryInfo(from.Get("Grpc-Status-Details-Bin"))
	switch code {
	case grpcCancelled, grpcDeadlineExceeded, grpcAborted, grpcOutOfRange, grpcUnavailable, grpcDataLoss:
		return &RetryError{Err: failed, After: after}
	case grpcResourceExhausted:
		if asked { // else what is exhausted does not come back
			return &RetryError{Err: failed, After: after}
		}
	}
	return failed
}

// retryInfo finds how long a google.rpc.Status asks to wait, if it has a google.rpc.RetryInfo.
func retryInfo(details string) (after time.Duration, ok bool) {
	status, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(details, "="))
	if err != nil {
		return 0, false
	}
	_ = fields(status, func(field int, _ uint64, detail []byte) {
		if field != 3 {
			return
		}
		var name string
		var value []byte
		_ = fields(detail, func(field int, _ uint64, data []byte) {
			switch field {
			case 1:
				name = string(data)
			case 2:
				value = data
			}
		})
		if !strings.HasSuffix(name, "/google.rpc.RetryInfo") {
			return
		}
		ok = true
		_ = fields(value, func(field int, _ uint64, delay []byte) {
			if field == 1 {
				after = duration(delay)
			}
		})
	})
	return after, ok
}

// duration reads a google.protobuf.Duration; one that is negative or absurdly long is none.
func duration(b []byte) time.Duration {
	var seconds, nanos int64
	_ = fields(b, func(field int, num uint64, _ []byte) {
		switch field {
		case 1:
			seconds = int64(num)
		case 2:
			nanos = int64(num)
		}
	})
	if seconds < 0 || seconds > maxDelay || nanos < 0 || nanos >= 1e9 {
		return 0
	}
	return time.Duration(seconds)*time.Second + time.Duration(nanos)
}

// maxDelay is the longest delay that is believed, in seconds.
const maxDelay = 24 * 3600

// Close implements Sender.
func (s *grpcSender) Close() error {
	s.client.CloseIdleConnections()
	return nil
}
