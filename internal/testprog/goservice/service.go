package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// service is the server and its clients.
type service struct {
	base  string
	roots *x509.CertPool
	calls [4]atomic.Uint64 // of the handlers, by kind of request
	armed
}

// order is what a request's body holds.
type order struct {
	ID     uint64             `json:"id"`
	Name   string             `json:"name"`
	Tags   []string           `json:"tags,omitempty"`
	Prices map[string]float64 `json:"prices"`
	Lines  []line             `json:"lines"`
	Extra  any                `json:"extra"`
}

type line struct {
	Item  string  `json:"item"`
	Count int     `json:"count"`
	Price float64 `json:"price"`
	Gift  *bool   `json:"gift"`
}

// serve starts the server on a free port of the loopback interface.
func serve() (*service, error) {
	s := &service{}
	cert, err := s.certificate()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.base = "https://" + l.Addr().String()
	mux := http.NewServeMux()
	for i, h := range []func(*order, http.ResponseWriter) error{price, sorted, digest, echo} {
		mux.HandleFunc(paths[i], func(w http.ResponseWriter, r *http.Request) { s.handle(i, h, w, r) })
	}
	srv := &http.Server{
		Handler: mux, ErrorLog: log.New(io.Discard, "", 0),
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // no HTTP/2
	}
	go func() {
		_ = srv.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}}))
	}()
	return s, nil
}

// certificate makes a key and a certificate of its own.
func (s *service) certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "goservice"}, IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return tls.Certificate{}, err
	}
	s.roots = x509.NewCertPool()
	s.roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// handle answers a request.
//
//go:noinline
func (s *service) handle(kind int, h func(*order, http.ResponseWriter) error, w http.ResponseWriter, r *http.Request) {
	s.calls[kind].Add(1)
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	var o order
	if err == nil {
		err = json.Unmarshal(body, &o)
	}
	if err == nil {
		err = h(&o, w)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

// price answers with the sum of an order.
//
//go:noinline
func price(o *order, w http.ResponseWriter) error {
	sum := 0.0
	for _, l := range o.Lines {
		sum += cost(o, l)
	}
	_, err := fmt.Fprintf(w, "%s owes %.2f for %d", o.Name, sum, nested(o.Extra))
	return err
}

//go:noinline
func cost(o *order, l line) float64 {
	if p, ok := o.Prices[l.Item]; ok {
		return p * float64(l.Count)
	}
	return l.Price * float64(l.Count)
}

// nested counts the values in a JSON value, recursively.
//
//go:noinline
func nested(v any) int {
	n := 1
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			n += nested(e)
		}
	case map[string]any:
		for _, e := range v {
			n += nested(e)
		}
	}
	return n
}

// sorted answers with the lines in another order.
//
//go:noinline
func sorted(o *order, w http.ResponseWriter) error {
	slices.SortStableFunc(o.Lines, func(a, b line) int { return strings.Compare(a.Item, b.Item) })
	slices.Sort(o.Tags)
	return json.NewEncoder(w).Encode(o.Lines)
}

// digest answers with a digest of the order in another form.
//
//go:noinline
func digest(o *order, w http.ResponseWriter) error {
	b, err := json.MarshalIndent(o, "", "  ")
	if err == nil {
		_, err = fmt.Fprintf(w, "%x", sha256.Sum256(b))
	}
	return err
}

// echo answers with the order, compacted and with escapes.
//
//go:noinline
func echo(o *order, w http.ResponseWriter) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	json.HTMLEscape(&buf, b)
	_, err = w.Write(buf.Bytes())
	return err
}

// paths are the kinds of requests.
var paths = [4]string{"/price", "/sorted", "/digest", "/echo"}

// body makes the i-th request's.
func body(i int) []byte {
	o := order{ID: uint64(i), Name: fmt.Sprintf("nöbody <%d>", i%97), Prices: map[string]float64{}}
	yes := i%2 == 0
	for j := range 3 + i%7 {
		item := "item-" + strconv.Itoa(i*7919%1000+j*j%13)
		o.Lines = append(o.Lines, line{item, j + 1, float64(i%50) + 0.25*float64(j), &yes})
		o.Prices[item] = float64(i*j%300) / 4
		o.Tags = append(o.Tags, strings.Repeat("t", j+1), "\"quoted\"\t")
	}
	var extra any = []any{true, nil, float64(i), "x"}
	for range i % 9 {
		extra = map[string]any{"deeper": extra, "list": []any{1.5, "two", extra}}
	}
	o.Extra = extra
	b, err := json.Marshal(&o)
	if err != nil {
		panic(err) // it can be marshalled
	}
	return b
}

// loaded is the answer to "load".
type loaded struct {
	Requests  int               `json:"requests"`
	Bad       int64             `json:"bad"`
	Why       string            `json:"why"` // the first that is bad
	Hash      string            `json:"hash"`
	PerSecond float64           `json:"per_second"`
	Calls     map[string]uint64 `json:"calls"` // of the handlers, since the start
}

// load sends n requests from c clients.
func (s *service) load(n, c int) *loaded {
	out := &loaded{Requests: n, Calls: map[string]uint64{}}
	sums := make([][4]uint64, c)
	var bad atomic.Int64
	var why atomic.Pointer[string]
	var wg sync.WaitGroup
	start := time.Now()
	for id := range c {
		wg.Go(func() {
			t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots}, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}
			defer t.CloseIdleConnections()
			client := &http.Client{Transport: t}
			for i := id; i < n; i += c {
				sum, err := s.ask(client, i)
				if err != nil {
					bad.Add(1)
					text := err.Error()
					why.CompareAndSwap(nil, &text)
				}
				for k := range sum {
					sums[id][k] += sum[k]
				}
			}
		})
	}
	wg.Wait()
	out.PerSecond = float64(n) / time.Since(start).Seconds()
	var all [4]uint64
	for _, sum := range sums {
		for k := range sum {
			all[k] += sum[k]
		}
	}
	out.Hash, out.Bad = fmt.Sprintf("%016x", all), bad.Load()
	if p := why.Load(); p != nil {
		out.Why = *p
	}
	for i, p := range paths {
		out.Calls[p] = s.calls[i].Load()
	}
	return out
}

// ask sends the i-th request and gives a hash of its answer.
func (s *service) ask(client *http.Client, i int) (sum [4]uint64, err error) {
	resp, err := client.Post(s.base+paths[i%len(paths)]+"?n="+strconv.Itoa(i), "application/json", bytes.NewReader(body(i)))
	if err != nil {
		return sum, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return sum, err
	}
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("request %d: status %s: %.100s", i, resp.Status, b)
	}
	h := sha256.Sum256(fmt.Appendf(nil, "%d %d %s %s", i, resp.StatusCode, resp.Header.Get("Content-Type"), b))
	for k := range sum {
		sum[k] = binary.LittleEndian.Uint64(h[8*k:])
	}
	return sum, err
}
