package e2e

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"testing"
)

// gotSpan is a span as somebody else got it.
type gotSpan struct {
	name, trace, id, parent string
	start, end              uint64
	attrs                   map[string]string
	kind                    uint64
	failed                  bool
	message                 string
	about                   map[string]string // the attributes of its resource
}

// number is an attribute that is a number.
func (s *gotSpan) number(t testing.TB, key string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s.attrs[key], 10, 64)
	if err != nil {
		t.Fatalf("%s of %+v: %v", key, s, err)
	}
	return n
}

// pieces calls f for each field of a message of protocol buffers: with its number, and with its value or its bytes.
func pieces(t testing.TB, b []byte, f func(field int, v uint64, data []byte)) {
	for r := bytes.NewReader(b); r.Len() > 0; {
		tag, err := binary.ReadUvarint(r)
		var v uint64
		var data []byte
		if err == nil {
			v, data, err = piece(r, tag&7)
		}
		if err != nil {
			t.Errorf("%v: % x", err, b)
			return
		}
		f(int(tag>>3), v, data)
	}
}

// piece reads what stands behind the tag of a field.
func piece(r *bytes.Reader, wire uint64) (v uint64, data []byte, err error) {
	switch wire {
	case 0:
		v, err = binary.ReadUvarint(r)
	case 1:
		err = binary.Read(r, binary.LittleEndian, &v)
	case 2:
		if v, err = binary.ReadUvarint(r); err == nil && v <= uint64(r.Len()) {
			data = make([]byte, v)
			_, err = io.ReadFull(r, data)
		}
	case 5:
		var short uint32
		err = binary.Read(r, binary.LittleEndian, &short)
		v = uint64(short)
	default:
		err = fmt.Errorf("wire type %d", wire)
	}
	return v, data, err
}

// collector is a server that takes spans over HTTP.
type collector struct {
	t     testing.TB
	url   string
	mu    sync.Mutex
	spans []*gotSpan
	about map[string]string // the attributes of the resource
	posts int
	// answer may answer a request itself, by its number from 0; nil: all are taken.
	answer func(w http.ResponseWriter, post int) bool
}

func newCollector(t testing.TB) *collector {
	c := &collector{t: t, about: map[string]string{}}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	c.url = s.URL
	return c
}

// ServeHTTP implements http.Handler.
func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.posts
	c.posts++
	z, err := gzip.NewReader(r.Body)
	if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.t.Errorf("%s %v: %v", r.URL, r.Header, err)
		return
	}
	b, err := io.ReadAll(z)
	if err != nil {
		c.t.Error(err)
	}
	if c.answer != nil && c.answer(w, n) {
		return
	}
	pieces(c.t, b, func(field int, _ uint64, of []byte) { // ResourceSpans
		about := map[string]string{}
		pieces(c.t, of, func(field int, _ uint64, data []byte) {
			switch field {
			case 1:
				pieces(c.t, data, func(_ int, _ uint64, kv []byte) { c.attr(about, kv) })
				maps.Copy(c.about, about)
			case 2:
				pieces(c.t, data, func(field int, _ uint64, span []byte) {
					if field == 2 {
						c.span(span)
						c.spans[len(c.spans)-1].about = about
					}
				})
			}
		})
	})
}

// count is how many spans there are.
func (c *collector) count() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return uint64(len(c.spans))
}

// attr reads a KeyValue.
func (c *collector) attr(to map[string]string, kv []byte) {
	key, value := "", ""
	pieces(c.t, kv, func(field int, _ uint64, data []byte) {
		if field == 1 {
			key = string(data)
			return
		}
		pieces(c.t, data, func(field int, v uint64, data []byte) {
			if value = string(data); field != 1 {
				value = strconv.FormatInt(int64(v), 10)
			}
		})
	})
	to[key] = value
}

func (c *collector) span(b []byte) {
	s := &gotSpan{attrs: map[string]string{}}
	pieces(c.t, b, func(field int, v uint64, data []byte) {
		switch field {
		case 1:
			s.trace = hex.EncodeToString(data)
		case 2:
			s.id = hex.EncodeToString(data)
		case 4:
			s.parent = hex.EncodeToString(data)
		case 5:
			s.name = string(data)
		case 6:
			s.kind = v
		case 7:
			s.start = v
		case 8:
			s.end = v
		case 9:
			c.attr(s.attrs, data)
		case 15:
			pieces(c.t, data, func(field int, v uint64, data []byte) {
				if field == 2 {
					s.message = string(data)
				} else {
					s.failed = v == 2
				}
			})
		}
	})
	c.spans = append(c.spans, s)
}

// spansIn reads a file of OTLP's JSON.
func spansIn(t testing.TB, path string) (out []*gotSpan) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	type value struct{ StringValue, IntValue *string }
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var line struct {
			ResourceSpans []struct {
				ScopeSpans []struct {
					Spans []struct {
						TraceID, SpanID, ParentSpanID, Name string
						Kind                                uint64
						StartTimeUnixNano, EndTimeUnixNano  uint64 `json:",string"`
						Status                              struct{ Code int }
						Attributes                          []struct {
							Key   string
							Value value
						}
					}
				}
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
		for _, s := range line.ResourceSpans[0].ScopeSpans[0].Spans {
			one := &gotSpan{name: s.Name, kind: s.Kind, trace: s.TraceID, id: s.SpanID, parent: s.ParentSpanID, start: s.StartTimeUnixNano, end: s.EndTimeUnixNano, failed: s.Status.Code == 2, attrs: map[string]string{}}
			for _, a := range s.Attributes {
				if a.Value.IntValue != nil {
					one.attrs[a.Key] = *a.Value.IntValue
				} else if a.Value.StringValue != nil {
					one.attrs[a.Key] = *a.Value.StringValue
				}
			}
			out = append(out, one)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}
