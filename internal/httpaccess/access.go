// Package httpaccess says who may ask over HTTP: whoever can define a probe, or read what one has recorded, reads the program's memory. It knows nothing
// of what is served.
package httpaccess

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Variables of the environment that hold the token, or the name of a file that does.
const (
	TokenVar     = "KPROBES_HTTP_TOKEN"
	TokenFileVar = "KPROBES_HTTP_TOKEN_FILE"
)

// minToken is the shortest token that is taken, in bytes, and maxToken the longest.
const (
	minToken = 16
	maxToken = 4096
)

// Refusal is an answer to a request that may not pass.
type Refusal struct {
	Status int // of HTTP
	words  string
}

// Error implements error.
func (r *Refusal) Error() string { return r.words }

// Refuse makes a *Refusal.
func Refuse(status int, format string, args ...any) error {
	return &Refusal{status, fmt.Sprintf(format, args...)}
}

// Access is who may ask a server.
type Access struct {
	// Token gives what requests must bear, at each request.
	Token func() (string, error)
	// Hosts are names, beside those of loopback, that requests may be addressed to: what stands in their Host header, without the port.
	Hosts []string
}

// forwarding are headers, beside X-Forwarded-*, that proxies add.
var forwarding = map[string]bool{"forwarded": true, "via": true, "x-real-ip": true}

// Admit says why a request may not pass: what would let a web page, another machine or
// another user in. basic lets a request bear the token as the password of Basic authentication too, with any user name: for what is only read by clients that
// send no other header. A browser sends such a password again by itself, so what is changed by a request does not take it.
func (a *Access) Admit(r *http.Request, basic bool) error {
	want, err := a.Token()
	if err != nil {
		return Refuse(http.StatusForbidden, "no request is answered without a token: %v", err)
	}
	for name := range r.Header {
		if low := strings.ToLower(name); forwarding[low] || strings.HasPrefix(low, "x-forwarded") {
			return Refuse(http.StatusForbidden, "the request has a header %s, so a proxy passed it on: only direct requests are answered", name)
		}
	}
	if !a.ours(r.Host) {
		return Refuse(http.StatusForbidden, "host %q: neither a loopback name nor one that the program lists", r.Host)
	}
	for _, o := range r.Header.Values("Origin") {
		u, err := url.Parse(o)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || !strings.EqualFold(u.Host, r.Host) {
			return Refuse(http.StatusForbidden, "origin %q: pages of another origin may not ask", o)
		}
	}
	if !bears(r, want, basic) {
		return Refuse(http.StatusUnauthorized, "the request needs the header Authorization: Bearer TOKEN, with the token of %s or %s", TokenVar, TokenFileVar)
	}
	return nil
}

// ours says whether a Host header names this program: loopback, or one of the hosts listed.
func (a *Access) ours(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
		return true
	}
	return slices.ContainsFunc(a.Hosts, func(h string) bool { return h != "" && strings.EqualFold(h, host) })
}

// bears compares the request's token in a time that does not depend on where they differ.
func bears(r *http.Request, want string, basic bool) bool {
	kind, got, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if _, password, has := r.BasicAuth(); has && basic {
		kind, got = "Bearer", password
	}
	if !ok || !strings.EqualFold(kind, "Bearer") {
		return false
	}
	a, b := sha256.Sum256([]byte(strings.TrimSpace(got))), sha256.Sum256([]byte(want))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// EnvToken takes the token from the environment, at each request: a file may change.
func EnvToken() (string, error) {
	if t := os.Getenv(TokenVar); t != "" {
		return Checked(t, TokenVar)
	}
	if name := os.Getenv(TokenFileVar); name != "" {
		return FileToken(name, TokenFileVar)
	}
	return "", fmt.Errorf("set %s to a secret of at least %d characters, or %s to the name of a file (mode 0600) that holds one, and start the program anew",
		TokenVar, minToken, TokenFileVar)
}

// Checked refuses tokens that can be guessed or not be sent.
func Checked(t, from string) (string, error) {
	switch {
	case len(t) < minToken:
		return "", fmt.Errorf("the token in %s has %d characters: it needs at least %d, as from: openssl rand -hex 16", from, len(t), minToken)
	case len(t) > maxToken:
		return "", fmt.Errorf("the token in %s is longer than %d characters", from, maxToken)
	case strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return "", fmt.Errorf("the token in %s holds a space, a control or a non-ASCII character, which no header carries", from)
	}
	return t, nil
}

// FileToken reads the token from a file that only its owner, who must be us, can read. from says in errors what has named the file.
func FileToken(name, from string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("%s: %w", from, err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", fmt.Errorf("%s: %s: %w", from, name, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return "", fmt.Errorf("%s: %s is not a regular file", from, name)
	case st.Mode&0o077 != 0:
		return "", fmt.Errorf("%s: %s has mode %04o, so others can get at it: chmod 600 %s", from, name, st.Mode&0o777, name)
	case int(st.Uid) != os.Geteuid():
		return "", fmt.Errorf("%s: %s belongs to user %d, not to user %d, who runs this program", from, name, st.Uid, os.Geteuid())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxToken+2))
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w", from, name, err)
	}
	return Checked(strings.TrimSpace(string(b)), name)
}

// Secure sets what every answer has: no sniffing, no scripts, no frames, no copies.
func Secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "text/plain; charset=utf-8")
}

// Deny writes an error as text: that of a *Refusal with its status, of others with this one.
func Deny(w http.ResponseWriter, err error, status int, text string) {
	var r *Refusal
	if errors.As(err, &r) {
		status = r.Status
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="kprobes"`)
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // the client may be gone
}
