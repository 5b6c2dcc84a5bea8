package otlp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Sender sends batches. Its methods are called by one goroutine at a time.
type Sender interface {
	// Send sends a batch. An error that wraps a *RetryError may be no error if the batch is sent once more; any other is final.
	Send(ctx context.Context, b *Batch) (Answer, error)
	// Close gives back what the sender has open. What has been sent is then where it should be, or the error says why not.
	Close() error
}

// Answer is what a collector says of a batch that it has taken.
type Answer struct {
	Rejected int64  // spans that it has not taken
	Message  string // why not
}

// RetryError is a failure that may pass.
type RetryError struct {
	Err error
	// After is how long the collector asks to wait; 0: it does not say.
	After time.Duration
}

func (e *RetryError) Error() string { return e.Err.Error() }
func (e *RetryError) Unwrap() error { return e.Err }

// maxAnswer bounds what is read of an answer.
const maxAnswer = 1 << 20

// Dial makes the sender for the address of a collector. It does not connect yet.
//
//	http://HOST[:4318][/PATH], https://…    OTLP over HTTP; without a path /v1/traces
//	grpc://HOST[:4317], grpcs://…           OTLP over gRPC, in the clear and with TLS
//
// headers are sent with each request. The error says what is wrong with the address.
func Dial(address string, headers http.Header) (Sender, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, fmt.Errorf("address of a collector: %w", err)
	case !slices.Contains([]string{"http", "https", "grpc", "grpcs"}, u.Scheme):
		return nil, fmt.Errorf("address of a collector %q: it begins with http://, https://, grpc:// or grpcs://, as in http://localhost:4318", address)
	case u.Hostname() == "":
		return nil, fmt.Errorf("address of a collector %q: the host is missing, as in %s://localhost:%s", address, u.Scheme, defaultPort(u.Scheme))
	case u.User != nil || u.Fragment != "":
		return nil, fmt.Errorf("address of a collector %q: it has neither a user nor a fragment; give a header for the right to send", address)
	}
	if u.Port() == "" && strings.HasPrefix(u.Scheme, "grpc") {
		u.Host = net.JoinHostPort(u.Hostname(), defaultPort(u.Scheme))
	}
	if u.Scheme == "http" && u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), defaultPort(u.Scheme))
	}
	if !strings.HasPrefix(u.Scheme, "grpc") {
		if u.Path == "" || u.Path == "/" {
			u.Path = "/v1/traces"
		}
		return &httpSender{url: u.String(), headers: headers, client: &http.Client{Transport: transport(false)}}, nil
	}
	if u.Path != "" && u.Path != "/" || u.RawQuery != "" {
		return nil, fmt.Errorf("address of a collector %q: gRPC takes a host and a port alone", address)
	}
	g := &grpcSender{headers: headers, client: &http.Client{Transport: transport(true)}}
	u.Scheme, u.Path = strings.Replace(u.Scheme, "grpc", "http", 1), grpcMethod
	g.url = u.String()
	return g, nil
}

// headerName is the name of a header: a token (RFC 9110, 5.6.2).
var headerName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

// CheckHeader says why a header can not be sent.
func CheckHeader(name, value string) error {
	switch {
	case !headerName.MatchString(name):
		return fmt.Errorf("%q is no name of a header", name)
	case strings.ContainsFunc(value, unicode.IsControl):
		return fmt.Errorf("%s: the value %q has a control character", name, value)
	}
	return nil
}

// defaultPort is the port that OTLP has for a scheme; of https it is the scheme's own.
func defaultPort(scheme string) string {
	switch scheme {
	case "http":
		return "4318"
	case "https":
		return "443"
	}
	return "4317"
}

// transport connects; for gRPC it speaks HTTP/2 alone, also in the clear.
func transport(grpc bool) *http.Transport {
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute}
	if grpc {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetHTTP2(true)
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	return t
}

// unsent is the error of a request that has no answer. A connection that can not be made may be made later.
func unsent(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return &RetryError{Err: err}
}

// readAnswer reads what a collector answers.
func readAnswer(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err == nil && len(b) > maxAnswer {
		err = fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	return b, err
}
