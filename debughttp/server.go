package debughttp

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"kprobes.dev/kprobes/internal/tracefile"
	"kprobes.dev/kprobes/trace"
)

// Prefix is where the files are served.
const Prefix = "/debug/kprobes/"

// Options are the choices of New; nil means the defaults.
type Options struct {
	// Token is what requests must bear, at least 16 characters; "": what the environment
	// names in TokenVar or TokenFileVar, looked up at each request.
	Token string
	// Hosts are names, beside those of loopback, that requests may be addressed to: what
	// stands in their Host header, without the port.
	Hosts []string
	// MaxBody bounds what a request may write, in bytes; 0: 1 MiB.
	MaxBody int64
}

const defaultBody = 1 << 20

// Server serves the files of one trace instance.
type Server struct {
	o     Options
	open  func() (*trace.Instance, error)
	token func() (string, error)
}

// New makes the handler for a trace instance, which the caller closes.
func New(in *trace.Instance, o *Options) *Server {
	return newServer(func() (*trace.Instance, error) { return in, nil }, o)
}

func newServer(open func() (*trace.Instance, error), o *Options) *Server {
	s := &Server{open: open}
	if o != nil {
		s.o = *o
	}
	if s.o.MaxBody <= 0 {
		s.o.MaxBody = defaultBody
	}
	s.token = tokenOf(&s.o)
	return s
}

// ServeHTTP implements http.Handler for paths below Prefix.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	if err := s.serve(w, r); err != nil {
		deny(w, err)
	}
}

// serve answers a request. An error means that nothing was written yet.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) error {
	if err := s.admit(r); err != nil {
		return err
	}
	if r.URL.RawQuery != "" {
		return refuse(http.StatusBadRequest, "parameters %q: none are taken", r.URL.RawQuery)
	}
	path, ok := strings.CutPrefix(r.URL.Path, Prefix)
	if !ok && r.URL.Path != strings.TrimSuffix(Prefix, "/") {
		return refuse(http.StatusNotFound, "the files are below %s", Prefix)
	}
	in, err := s.open()
	if err != nil {
		return refuse(http.StatusServiceUnavailable, "%v", err)
	}
	c := &call{in: in, tree: tracefile.New(in), w: w, r: r}
	if path == "" {
		if err := allows(w, r.Method, true, false); err != nil {
			return err
		}
		return index(c)
	}
	f, err := c.lookup(path)
	if err != nil {
		return err
	}
	if err := allows(w, r.Method, f.Readable() || f.Mode.IsDir(), f.Writable()); err != nil {
		return err
	}
	if r.Method == http.MethodGet {
		return c.get(f)
	}
	body, err := s.body(w, r)
	if err != nil {
		return err
	}
	return c.put(f, body, r.Method == http.MethodPut)
}

// body reads what a request writes.
func (s *Server) body(w http.ResponseWriter, r *http.Request) (string, error) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.o.MaxBody))
	var tooMuch *http.MaxBytesError
	switch {
	case errors.As(err, &tooMuch):
		return "", refuse(http.StatusRequestEntityTooLarge, "the request writes more than %d bytes", s.o.MaxBody)
	case err != nil:
		return "", refuse(http.StatusBadRequest, "what the request writes can not be read: %v", err)
	}
	return string(b), nil
}

// call is one request to a file.
type call struct {
	in   *trace.Instance
	tree *tracefile.Tree
	w    http.ResponseWriter
	r    *http.Request
}

// allows refuses methods that a file does not know: it is read by GET, and written by POST
// (as >> does) and PUT (as > does).
func allows(w http.ResponseWriter, method string, read, write bool) error {
	var allow []string
	if read {
		allow = append(allow, http.MethodGet)
	}
	if write {
		allow = append(allow, http.MethodPost, http.MethodPut)
	}
	if slices.Contains(allow, method) {
		return nil
	}
	w.Header().Set("Allow", strings.Join(allow, ", "))
	return refuse(http.StatusMethodNotAllowed, "method %q: this file takes %s", method, strings.Join(allow, ", "))
}

// text answers with text.
func (c *call) text(s string) error {
	_, _ = io.WriteString(c.w, s) // the client may be gone
	return nil
}
