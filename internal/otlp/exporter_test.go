package otlp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// fake is a sender that a test answers for.
type fake struct {
	asked  chan *Batch
	answer chan error
	closed bool
}

func newFake() *fake { return &fake{asked: make(chan *Batch), answer: make(chan error)} }

func (f *fake) Send(ctx context.Context, b *Batch) (Answer, error) {
	f.asked <- b
	select {
	case err := <-f.answer:
		return Answer{}, err
	case <-ctx.Done():
		return Answer{}, unsent(ctx.Err())
	}
}

func (f *fake) Close() error {
	f.closed = true
	return nil
}

// begin starts an exporter whose pauses end at once; their lengths go to the function.
func begin(f *fake, o *Options, paused func(time.Duration)) *Exporter {
	e := newExporter(f, o)
	e.pause = func(ctx context.Context, d time.Duration) error {
		paused(d)
		return ctx.Err()
	}
	go e.run()
	return e
}

func names(b *Batch) string {
	var out []string
	for _, s := range b.Spans {
		out = append(out, s.Name)
	}
	return strings.Join(out, " ")
}

// TestQueue fills the queue while a batch is being sent: who comes then is counted as dropped, and all others are sent in their order.
func TestQueue(t *testing.T) {
	f := newFake()
	e := begin(f, &Options{Batch: 2, Queue: 3, Every: time.Hour}, func(time.Duration) {})
	export := func(from, to int) {
		for i := from; i < to; i++ {
			e.Export(&Span{Name: fmt.Sprint(i)})
		}
	}
	export(0, 2)
	if got := names(<-f.asked); got != "0 1" {
		t.Errorf("batch %q", got)
	}
	export(2, 7) // 2 3 4 wait
	f.answer <- nil
	if got := names(<-f.asked); got != "2 3" {
		t.Errorf("batch %q", got)
	}
	f.answer <- nil
	if got := names(<-f.asked); got != "4" {
		t.Errorf("batch %q", got)
	}
	f.answer <- nil
	st, err := e.Close()
	if err != nil || st != (Stats{Sent: 5, Dropped: 2}) || !f.closed {
		t.Errorf("%+v, %v", st, err)
	}
	e.Export(&Span{})
	if st := e.Stats(); st.Dropped != 3 {
		t.Errorf("behind the end: %+v", st)
	}
}

// TestRetries has a batch tried again while that may help, each time after a longer pause, or after as long as the collector asks for.
func TestRetries(t *testing.T) {
	busy := &RetryError{Err: errors.New("busy")}
	f := newFake()
	var pauses []time.Duration
	e := begin(f, &Options{Batch: 1, Every: time.Hour}, func(d time.Duration) { pauses = append(pauses, d) })
	e.Export(&Span{})
	for _, err := range []error{busy, fmt.Errorf("wrapped: %w", busy), &RetryError{Err: busy.Err, After: 20 * time.Second}, errors.New("no")} {
		<-f.asked
		f.answer <- err
	}
	st, err := e.Close()
	if err != nil || st.Failed != 1 || st.Retries != 3 || st.Err == nil || st.Err.Error() != "no" {
		t.Errorf("%+v, %v", st, err)
	}
	for i, bounds := range [][2]time.Duration{{125 * time.Millisecond, 250 * time.Millisecond}, {250 * time.Millisecond, 500 * time.Millisecond}, {20 * time.Second, 20 * time.Second}} {
		if pauses[i] < bounds[0] || pauses[i] > bounds[1] {
			t.Errorf("pause %d: %v, not from %v to %v", i, pauses[i], bounds[0], bounds[1])
		}
	}
}

// TestCloseEnds has a collector that never answers: Close gives up after its time, and counts what was not sent.
func TestCloseEnds(t *testing.T) {
	f := newFake()
	e := begin(f, &Options{Batch: 2, Every: time.Hour, Last: time.Nanosecond}, func(time.Duration) {})
	for range 3 {
		e.Export(&Span{})
	}
	done := make(chan Stats)
	go func() {
		st, _ := e.Close()
		done <- st
	}()
	for {
		select {
		case <-f.asked:
			continue
		case st := <-done:
			if st.Failed != 3 || st.Sent != 0 || !errors.Is(st.Err, context.Canceled) {
				t.Errorf("%+v", st)
			}
			return
		}
	}
}

// TestCloseTells has a collector that can not be reached when the time is up: that is the reason, and not that the time was up.
func TestCloseTells(t *testing.T) {
	f := newFake()
	e := newExporter(f, &Options{Batch: 1, Every: time.Hour})
	e.pause = func(ctx context.Context, _ time.Duration) error {
		err := ctx.Err()
		e.cancel() // it is tried once more, and then no time is left
		return err
	}
	go e.run()
	e.Export(&Span{})
	<-f.asked
	f.answer <- &RetryError{Err: errors.New("no such host")}
	<-f.asked
	st, err := e.Close()
	if err != nil || st.Failed != 1 || st.Retries != 1 || st.Err == nil || st.Err.Error() != "no such host" {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestBatchBytes has spans that are so large that a batch of them would be refused.
func TestBatchBytes(t *testing.T) {
	f := newFake()
	e := begin(f, &Options{Batch: 3, Every: time.Hour}, func(time.Duration) {})
	for range 3 {
		e.Export(&Span{Attrs: []Attr{{"text", strings.Repeat("x", maxBatch/2)}}})
	}
	for range 3 {
		if b := <-f.asked; len(b.Spans) != 1 {
			t.Errorf("%d spans", len(b.Spans))
		}
		f.answer <- nil
	}
	if st, err := e.Close(); err != nil || st.Sent != 3 {
		t.Errorf("%+v, %v", st, err)
	}
}

// TestBlock has a queue in which there is no room for who comes: they wait, and none is dropped.
func TestBlock(t *testing.T) {
	f := newFake()
	e := begin(f, &Options{Batch: 1, Queue: 1, Every: time.Hour, Block: true}, func(time.Duration) {})
	const n = 100
	go func() {
		for i := range n {
			e.Export(&Span{Name: fmt.Sprint(i)})
		}
	}()
	for i := range n {
		if got := names(<-f.asked); got != fmt.Sprint(i) {
			t.Errorf("batch %q", got)
		}
		f.answer <- nil
	}
	if st, err := e.Close(); err != nil || st != (Stats{Sent: n}) {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-1": 0, "99999999999": 0, "soon": 0,
		now.Add(time.Minute).Format(http.TimeFormat):  time.Minute,
		now.Add(-time.Minute).Format(http.TimeFormat): 0,
	} {
		if got := retryAfter(text, now); got != want {
			t.Errorf("%q: %v, not %v", text, got, want)
		}
	}
}

func TestDial(t *testing.T) {
	for address, want := range map[string]string{
		"http://host":             "http://host:4318/v1/traces",
		"http://host:1/":          "http://host:1/v1/traces",
		"http://[::1]/a?b=c":      "http://[::1]:4318/a?b=c",
		"https://host":            "https://host/v1/traces",
		"https://host/otlp/v1":    "https://host/otlp/v1",
		"grpc://host":             "http://host:4317" + grpcMethod,
		"grpcs://host:443/":       "https://host:443" + grpcMethod,
		"host:4317":               "",
		"":                        "",
		"ftp://host":              "",
		"http://":                 "",
		"http://user:word@host":   "",
		"grpc://host/path":        "",
		"http://host:port/":       "",
		"https://host/#fragment":  "",
		"grpc://host:4317?a=b":    "",
		"unix:///run/otlp.socket": "",
	} {
		s, err := Dial(address, nil)
		got := ""
		switch s := s.(type) {
		case *httpSender:
			got = s.url
		case *grpcSender:
			got = s.url
		}
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; not %q", address, got, err, want)
		}
	}
}

// TestAnswers has answers that are no messages, as of a server that is no collector.
func TestAnswers(t *testing.T) {
	for _, b := range []string{"\x0a", "\x0a\x05", "\x0b", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "\x09abc", "\x0d", "\x08", "\x0a\x01\x08", "<html>"} {
		if a, err := parseAnswer([]byte(b)); err == nil {
			t.Errorf("%q: %+v", b, a)
		}
	}
	a, err := parseAnswer([]byte("\x0a\x0c\x08\x07\x12\x03why\x18\x01\x21"))
	if err == nil {
		t.Errorf("%+v", a)
	}
	a, err = parseAnswer([]byte("\x0a\x09\x08\x07\x12\x03why\x18\x01\x10\x01"))
	if err != nil || a != (Answer{Rejected: 7, Message: "why"}) {
		t.Errorf("%+v, %v", a, err)
	}
}
