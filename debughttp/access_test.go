package debughttp

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kprobes.dev/kprobes/internal/tracefile"
	"kprobes.dev/kprobes/trace"
)

const word = "a-token-of-sixteen-or-more"

// errOpened tells that a request got past all checks.
var errOpened = errors.New("the target is opened")

// answer gives what a server without a target answers.
func answer(o *Options, change func(r *http.Request)) *httptest.ResponseRecorder {
	s := newServer(func() (*trace.Instance, error) { return nil, errOpened }, o)
	r := httptest.NewRequest(http.MethodGet, "http://localhost:6060"+Prefix+"kprobe_events", nil)
	r.Header.Set("Authorization", "Bearer "+word)
	change(r)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func TestAccess(t *testing.T) {
	set := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(h string) func(*http.Request) { return func(r *http.Request) { r.Host = h } }
	const passed = http.StatusServiceUnavailable // with errOpened
	tests := []struct {
		name   string
		change func(*http.Request)
		status int
		words  string
	}{
		{"right", func(*http.Request) {}, passed, errOpened.Error()},
		{"bearer in small letters", set("Authorization", "bearer "+word), passed, ""},
		{"no token", func(r *http.Request) { r.Header.Del("Authorization") }, http.StatusUnauthorized, "Authorization: Bearer"},
		{"wrong token", set("Authorization", "Bearer "+word+"x"), http.StatusUnauthorized, "Authorization: Bearer"},
		{"start of the token", set("Authorization", "Bearer "+word[:20]), http.StatusUnauthorized, ""},
		{"empty token", set("Authorization", "Bearer "), http.StatusUnauthorized, ""},
		{"basic", set("Authorization", "Basic "+word), http.StatusUnauthorized, ""},
		{"token alone", set("Authorization", word), http.StatusUnauthorized, ""},
		{"no token to write", func(r *http.Request) { r.Method = http.MethodPost; r.Header.Del("Authorization") }, http.StatusUnauthorized, ""},
		{"no token for the index", func(r *http.Request) { r.URL.Path = Prefix; r.Header.Del("Authorization") }, http.StatusUnauthorized, ""},
		{"no token for nothing", func(r *http.Request) { r.URL.Path = Prefix + "nosuch"; r.Header.Del("Authorization") }, http.StatusUnauthorized, ""},
		{"127.0.0.1", host("127.0.0.1:80"), passed, ""},
		{"127.1.2.3", host("127.1.2.3"), passed, ""},
		{"::1", host("[::1]:6060"), passed, ""},
		{"::1 without port", host("[::1]"), passed, ""},
		{"LOCALHOST", host("LOCALHOST"), passed, ""},
		{"listed", host("Box.example:6060"), passed, ""},
		{"wrong host", host("evil.example"), http.StatusForbidden, "evil.example"},
		{"host that starts like ours", host("localhost.evil.example"), http.StatusForbidden, "host"},
		{"address of another machine", host("192.0.2.1:6060"), http.StatusForbidden, "host"},
		{"any address", host("0.0.0.0:6060"), http.StatusForbidden, "host"},
		{"no host", host(""), http.StatusForbidden, "host"},
		{"own origin", set("Origin", "http://localhost:6060"), passed, ""},
		{"own origin, https", set("Origin", "https://localhost:6060"), passed, ""},
		{"foreign origin", set("Origin", "http://evil.example"), http.StatusForbidden, "origin"},
		{"origin of another port", set("Origin", "http://localhost:8080"), http.StatusForbidden, "origin"},
		{"null origin", set("Origin", "null"), http.StatusForbidden, "origin"},
		{"two origins", func(r *http.Request) { r.Header["Origin"] = []string{"http://localhost:6060", "http://evil.example"} }, http.StatusForbidden, "origin"},
		{"forwarded", set("Forwarded", "for=192.0.2.1"), http.StatusForbidden, "proxy"},
		{"x-forwarded-for", set("X-Forwarded-For", "127.0.0.1"), http.StatusForbidden, "proxy"},
		{"x-forwarded-host", set("X-Forwarded-Host", "localhost"), http.StatusForbidden, "proxy"},
		{"via", set("Via", "1.1 proxy"), http.StatusForbidden, "proxy"},
		{"x-real-ip", set("X-Real-Ip", "127.0.0.1"), http.StatusForbidden, "proxy"},
		{"outside", func(r *http.Request) { r.URL.Path = "/debug/kprobesX" }, http.StatusNotFound, Prefix},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := answer(&Options{Token: word, Hosts: []string{"", "box.example"}}, tt.change)
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.words) {
				t.Errorf("status %d, not %d with %q: %s", w.Code, tt.status, tt.words, w.Body)
			}
			if strings.Contains(w.Body.String(), word) {
				t.Errorf("the answer tells the token: %s", w.Body)
			}
			for name, want := range map[string]string{
				"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Content-Type": "text/plain; charset=utf-8",
			} {
				if got := w.Header().Get(name); got != want {
					t.Errorf("%s: %q", name, got)
				}
			}
			if csp := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") {
				t.Errorf("policy %q", csp)
			}
			if got := w.Header().Get("WWW-Authenticate") != ""; got != (tt.status == http.StatusUnauthorized) {
				t.Errorf("WWW-Authenticate %q", w.Header().Get("WWW-Authenticate"))
			}
		})
	}
}

// The import registers the process's own files, and answers nobody without a token.
func TestImport(t *testing.T) {
	t.Setenv(TokenVar, "")
	t.Setenv(TokenFileVar, "")
	r := httptest.NewRequest(http.MethodGet, "http://localhost"+Prefix+"list", nil)
	h, pattern := http.DefaultServeMux.Handler(r)
	if pattern != Prefix || h != Handler() {
		t.Errorf("%s is served by %T for %q", Prefix, h, pattern)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), TokenVar) {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

// Where the token comes from, and which ones are not taken.
func TestToken(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, mode os.FileMode, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil { // whatever the umask
			t.Fatal(err)
		}
		return path
	}
	foreign := file("foreign", 0o600, word)
	if os.Geteuid() == 0 {
		if err := os.Chown(foreign, 12345, 0); err != nil {
			t.Fatal(err)
		}
	} else {
		foreign = "/proc/1/environ"
	}
	tests := []struct {
		name, env, file string
		words           string // "": the request passes
	}{
		{"nothing set", "", "", "set " + TokenVar},
		{"variable", word, "", ""},
		{"variable before file", word, "/nosuch", ""},
		{"short", "short", "", "at least 16"},
		{"with a space", "a token of sixteen or more", "", "space"},
		{"file", "", file("right", 0o600, word+"\n"), ""},
		{"read-only file", "", file("readonly", 0o400, word), ""},
		{"group can read", "", file("group", 0o640, word), "chmod 600"},
		{"others can read", "", file("others", 0o604, word), "chmod 600"},
		{"others can write", "", file("writable", 0o602, word), "chmod 600"},
		{"someone else's", "", foreign, ""},
		{"empty file", "", file("empty", 0o600, "\n"), "at least 16"},
		{"huge file", "", file("huge", 0o600, strings.Repeat("x", 1<<20)), "longer than"},
		{"no file", "", filepath.Join(dir, "nosuch"), "no such file"},
		{"directory", "", dir, "not a regular file"},
		{"device", "", "/dev/zero", "not a regular file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(TokenVar, tt.env)
			t.Setenv(TokenFileVar, tt.file)
			w := answer(nil, func(*http.Request) {})
			passes := tt.words == "" && tt.name != "someone else's"
			if passes && w.Code != http.StatusServiceUnavailable || !passes && (w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), tt.words)) {
				t.Errorf("status %d: %s", w.Code, w.Body)
			}
		})
	}
}

// Whatever path and body: an answer, no panic, and only text.
func FuzzRequest(f *testing.F) {
	if err := tracefile.New(trace.New(nil, nil)).Walk("", func(path string, _ *tracefile.File) error {
		f.Add(http.MethodGet, path, "")
		f.Add(http.MethodPost, path, "1")
		return nil
	}); err != nil {
		f.Fatal(err)
	}
	f.Add(http.MethodPut, "events/g/e/enable", "0\n")
	f.Add(http.MethodPut, "instances/x", "")
	f.Add(http.MethodDelete, "instances/x", "")
	f.Add(http.MethodGet, "events/../../x", "")
	f.Add(http.MethodGet, "events/\x00/%2f/format", "")
	f.Fuzz(func(t *testing.T, method, path, body string) {
		s := newServer(func() (*trace.Instance, error) { return trace.New(nil, nil), nil }, &Options{Token: word, MaxBody: 1 << 12})
		r := httptest.NewRequest(http.MethodGet, "http://localhost"+Prefix, strings.NewReader(body))
		r.Method, r.URL.Path = method, Prefix+path
		r.Header.Set("Authorization", "Bearer "+word)
		c := &call{tree: tracefile.New(trace.New(nil, nil))}
		file, err := c.lookup(path)
		if err == nil && touches(file, path, method, body) {
			return
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code < 200 || w.Code > 499 {
			t.Errorf("%s %q: status %d: %s", method, path, w.Code, w.Body)
		}
		if path != "" && path != "/" && !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
			t.Errorf("%s %q: type %s", method, path, w.Header().Get("Content-Type"))
		}
	})
}

// touches says whether a request would ask the target, which the fuzz test has not, or would
// not end.
func touches(f *tracefile.File, path, method, body string) bool {
	switch strings.Trim(path, "/") {
	case "kprobes/list", "kprobes/blacklist", "kprobes/enabled", "sys/debug/kprobes-optimization", "available_filter_functions",
		"list", "blacklist", "enabled", "optimization", "trace_pipe", "trace", "kprobe_profile":
		return true
	case "tracing_on":
		return method != http.MethodGet
	case "kprobe_events", "dynamic_events":
		return method != http.MethodGet && strings.ContainsAny(body, "pr")
	}
	return f.Streams() || !f.Readable() && !f.Mode.IsDir()
}
