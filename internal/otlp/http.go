package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// httpSender sends batches over HTTP, packed with gzip: fast, since it is work beside the program that is probed.
type httpSender struct {
	url     string
	headers http.Header
	client  *http.Client
	packed  bytes.Buffer
	zip     *gzip.Writer // nil: no batch was sent
}

// Send implements Sender.
func (s *httpSender) Send(ctx context.Context, b *Batch) (Answer, error) {
	s.packed.Reset()
	if s.zip == nil {
		zip, err := gzip.NewWriterLevel(&s.packed, gzip.BestSpeed)
		if err != nil {
			return Answer{}, err
		}
		s.zip = zip
	}
	s.zip.Reset(&s.packed)
	_, err := s.zip.Write(b.Proto())
	if err == nil {
		err = s.zip.Close()
	}
	if err != nil {
		return Answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(s.packed.Bytes()))
	if err != nil {
		return Answer{}, err
	}
	for name, vs := range s.headers {
		req.Header[name] = vs
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("Content-Encoding", "gzip")
	resp, err := s.client.Do(req)
	if err != nil {
		return Answer{}, unsent(err)
	}
	defer resp.Body.Close()
	body, err := readAnswer(resp.Body)
	switch {
	case resp.StatusCode != http.StatusOK:
		return Answer{}, refused(resp, body)
	case err != nil:
		return Answer{}, unsent(err)
	case !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/x-protobuf"):
		return Answer{}, nil // some collectors answer a success with no message, or with JSON
	}
	return parseAnswer(body)
}

// refused is the error of an answer that is not 200.
func refused(resp *http.Response, body []byte) error {
	err := fmt.Errorf("%s answers %s%s", resp.Request.URL.Host, resp.Status, reason(resp, body))
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return &RetryError{Err: err, After: retryAfter(resp.Header.Get("Retry-After"), time.Now())}
	}
	return err
}

// reason is what the body of an answer says: a google.rpc.Status, or text.
func reason(resp *http.Response, body []byte) string {
	text := string(body)
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "application/x-protobuf") {
		text = ""
		_ = fields(body, func(field int, _ uint64, data []byte) {
			if field == 2 {
				text = string(data)
			}
		})
	}
	if text = oneLine(text); text == "" {
		return ""
	}
	return ": " + text
}

// oneLine is a text of somebody else as a message shows it: short, and without control characters.
func oneLine(s string) string {
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, valid(s)))
	if r := []rune(s); len(r) > maxReason {
		return string(r[:maxReason]) + "…"
	}
	return s
}

// maxReason is how many characters a message shows of what a collector says.
const maxReason = 200

// retryAfter reads the header of that name: seconds, or a date (RFC 9110, 10.2.3).
func retryAfter(text string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(text); err == nil {
		return max(t.Sub(now), 0)
	}
	return 0
}

// Close implements Sender.
func (s *httpSender) Close() error {
	s.client.CloseIdleConnections()
	return nil
}
