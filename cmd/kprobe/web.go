package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"kprobes.dev/kprobes/internal/holder"
	"kprobes.dev/kprobes/internal/httpaccess"
)

// listenFlag is the flag of the verbs that answer requests.
func listenFlag(fl *pflag.FlagSet, addr *string) {
	fl.StringVar(addr, "listen", "", "answer HTTP requests at HOST:PORT while it counts: /metrics for Prometheus; the token is that of "+httpaccess.TokenVar)
}

// listen opens the listener of an address that --listen was given. The token is read once: who runs the verb for this process has another environment.
func (c *console) listen(addr string) error {
	if addr == "" || c.host != nil { // the client has opened it
		return nil
	}
	var err error
	c.web, err = openWeb("--listen "+addr, addr, sync.OnceValues(httpaccess.EnvToken))
	return err
}

// openWeb listens at an address. of names it in errors; token gives what requests must bear, at each request.
func openWeb(of, addr string, token func() (string, error)) (*web, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, usagef("%s: give HOST:PORT, as in 127.0.0.1:9464", of)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		return nil, usagef("%s: name one address of this machine, or 127.0.0.1: only requests that are addressed to it are answered", of)
	}
	if _, err := token(); err != nil {
		return nil, usagef("%s: no request is answered without a token: %v", of, err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", of, err)
	}
	return &web{listener: l.(*net.TCPListener), token: token, hosts: []string{host}}, nil
}

// webOf takes over what the client of a command line has opened.
func webOf(s *holder.Session) (*web, error) {
	if s.HTTP == nil {
		return nil, nil
	}
	l, err := net.FileListener(s.Files.Listener)
	if err != nil {
		return nil, err
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the client listens at %v, which is no address of TCP", l.Addr()), l.Close())
	}
	return &web{listener: tcp, token: func() (string, error) { return s.HTTP.Token, nil }, hosts: s.HTTP.Hosts}, nil
}

// runServed runs the command line of a session, and gives its exit status.
func (c *console) runServed(s *holder.Session) int {
	w, err := webOf(s)
	if err != nil {
		return status(c.stderr, err)
	}
	if c.web = w; w != nil {
		defer w.listener.Close()
	}
	return c.run()
}

// page answers a request that may pass. A returned error is answered in its place.
type page func(w http.ResponseWriter, r *http.Request) error

// serve answers requests for pages, by their paths, until stop is called, which waits for those that are being answered. Open ones, which tell
// nothing of what is probed, are for all.
func (w *web) serve(pages, open map[string]page) (stop func()) {
	access := &httpaccess.Access{Token: w.token, Hosts: w.hosts}
	life, end := context.WithCancel(context.Background())
	srv := &http.Server{
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		BaseContext:       func(net.Listener) context.Context { return life },
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			httpaccess.Secure(rw.Header())
			answer := open[r.URL.Path]
			var err error
			if answer == nil {
				err = access.Admit(r, true)
				answer = pages[r.URL.Path]
			}
			switch {
			case err != nil:
			case answer == nil:
				err = httpaccess.Refuse(http.StatusNotFound, "nothing is at %s", r.URL.Path)
			case r.Method != http.MethodGet:
				rw.Header().Set("Allow", http.MethodGet)
				err = httpaccess.Refuse(http.StatusMethodNotAllowed, "method %q: this is read by GET", r.Method)
			default:
				err = answer(rw, r)
			}
			if err != nil {
				httpaccess.Deny(rw, err, http.StatusInternalServerError, err.Error()+"\n")
			}
		}),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(w.listener) // it ends by stop
	}()
	return func() {
		end() // who waits for the end of an interval gets what there is
		wait, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if srv.Shutdown(wait) != nil {
			_ = srv.Close() // of connections whose clients do not read
		}
		<-served
	}
}

const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 5 * time.Minute // longer than what Prometheus waits between two requests
	stopTimeout   = 2 * time.Second
)
