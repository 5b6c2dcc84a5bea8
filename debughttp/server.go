package debughttp

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"kprobes.dev/kprobes/internal/httpaccess"
	"kprobes.dev/kprobes/internal/tracefile"
	"kprobes.dev/kprobes/trace"
)

// Prefix is where the files are served.
const Prefix = "/debug/kprobes/"

// Variables of the environment that hold the token, or the name of a file that does.
const (
	TokenVar     = httpaccess.TokenVar
	TokenFileVar = httpaccess.TokenFileVar
)

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
	o      Options
	open   func() (*trace.Instance, error)
	access httpaccess.Access
	shown  shown
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
	s.access = httpaccess.Access{Token: httpaccess.EnvToken, Hosts: s.o.Hosts}
	if s.o.Token != "" {
		s.access.Token = func() (string, error) { return httpaccess.Checked(s.o.Token, "Options.Token") }
	}
	return s
}

// ServeHTTP implements http.Handler for paths below Prefix.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	httpaccess.Secure(w.Header())
	if err := s.serve(w, r); err != nil {
		httpaccess.Deny(w, err, statusOf(err), explain(err))
	}
}

// serve answers a request. An error means that nothing was written yet.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) error {
	path, ok := strings.CutPrefix(r.URL.Path, Prefix)
	profiled := ok && path == profilePath
	if err := s.access.Admit(r, profiled); err != nil {
		return err
	}
	if r.URL.RawQuery != "" && !profiled {
		return httpaccess.Refuse(http.StatusBadRequest, "parameters %q: none are taken", r.URL.RawQuery)
	}
	if !ok && r.URL.Path != strings.TrimSuffix(Prefix, "/") {
		return httpaccess.Refuse(http.StatusNotFound, "the files are below %s", Prefix)
	}
	in, err := s.open()
	if err != nil {
		return httpaccess.Refuse(http.StatusServiceUnavailable, "%v", err)
	}
	c := &call{in: in, tree: tracefile.New(in), w: w, r: r}
	if path == "" {
		if err := allows(w, r.Method, []string{http.MethodGet}); err != nil {
			return err
		}
		return index(c)
	}
	switch {
	case profiled:
		return c.profile()
	case path == metricsPath:
		return s.metrics(c)
	}
	if dir, ok := instanceDir(path); ok && r.Method != http.MethodGet {
		return s.change(c, dir)
	}
	f, err := c.lookup(path)
	if err != nil {
		return err
	}
	if err := allows(w, r.Method, methods(f)); err != nil {
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

// instanceDir says whether a path is that of an instance's directory, one that is not there yet too.
func instanceDir(path string) (dir string, ok bool) {
	dir = strings.TrimSuffix(path, "/")
	name, ok := strings.CutPrefix(dir, "instances/")
	return dir, ok && name != "" && !strings.Contains(name, "/")
}

// change makes or removes an instance.
func (s *Server) change(c *call, dir string) error {
	if err := allows(c.w, c.r.Method, []string{http.MethodGet, http.MethodPut, http.MethodDelete}); err != nil {
		return err
	}
	switch body, err := s.body(c.w, c.r); {
	case err != nil:
		return err
	case body != "":
		return httpaccess.Refuse(http.StatusBadRequest, "%s %s: a directory takes no text; send none, and write to the files below it", c.r.Method, dir)
	}
	if c.r.Method == http.MethodDelete {
		return c.tree.Rmdir(dir)
	}
	return c.tree.Mkdir(dir)
}

// body reads what a request writes.
func (s *Server) body(w http.ResponseWriter, r *http.Request) (string, error) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.o.MaxBody))
	var tooMuch *http.MaxBytesError
	switch {
	case errors.As(err, &tooMuch):
		return "", httpaccess.Refuse(http.StatusRequestEntityTooLarge, "the request writes more than %d bytes", s.o.MaxBody)
	case err != nil:
		return "", httpaccess.Refuse(http.StatusBadRequest, "what the request writes can not be read: %v", err)
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

// methods are what a file is asked by: it is read by GET, and written by POST (as >> does) and PUT (as > does).
func methods(f *tracefile.File) (allow []string) {
	if f.Readable() || f.Mode.IsDir() {
		allow = append(allow, http.MethodGet)
	}
	if f.Writable() {
		allow = append(allow, http.MethodPost, http.MethodPut)
	}
	return allow
}

// allows refuses methods that a file does not know.
func allows(w http.ResponseWriter, method string, allow []string) error {
	if slices.Contains(allow, method) {
		return nil
	}
	w.Header().Set("Allow", strings.Join(allow, ", "))
	return httpaccess.Refuse(http.StatusMethodNotAllowed, "method %q: this file takes %s", method, strings.Join(allow, ", "))
}

// text answers with text.
func (c *call) text(s string) error {
	_, _ = io.WriteString(c.w, s) // the client may be gone
	return nil
}
